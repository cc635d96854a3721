"""Consensus optimisation: settings, checks, forecasts and the plain recursion."""
