"""The real cores on a virtual clock and a virtual network: seeded, and the same each time."""
