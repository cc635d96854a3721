"""The commands of `zmqps`, one module for each group; `zmqps.cli` puts them together."""
