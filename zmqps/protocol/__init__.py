"""What travels between actors: messages, their wire form, keys, and the rules of a session."""
