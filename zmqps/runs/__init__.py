"""Runs on this machine: their folders, training, progress, what came out, and the simulator."""
