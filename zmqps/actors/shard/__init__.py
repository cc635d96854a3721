"""The shard: holds blocks of the parameters, applies pushes and answers fetches."""
