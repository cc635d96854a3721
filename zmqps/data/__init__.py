"""Data sets, and which part of one each replica trains on."""
