"""Faults planted on purpose, to see whether they are caught: a testing aid, never a measurement."""
