"""Turns samples into numbers with intervals, or into the reason why there is no number."""
