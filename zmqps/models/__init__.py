"""Models in NumPy: layers, losses, networks and the random start of their parameters."""
