"""zmqps: parameter server and decentralised trainer over ZeroMQ."""
