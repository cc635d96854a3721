"""The replica: fetch, compute and push in threads of their own, and a session to steer them."""
