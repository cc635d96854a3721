"""The mathematics of optimisation: update rules and rate schedules."""
