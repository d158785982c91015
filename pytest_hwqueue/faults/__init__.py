"""Faults planted on purpose to check that they are caught: a testing aid, not a measurement."""
