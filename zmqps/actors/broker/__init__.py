"""The broker: passes requests of a host's replicas to the shards that own their keys."""
