"""A stage: it computes its part of a replica's model, and exchanges states with the others."""
