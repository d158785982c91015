"""Compares new runs with a baseline: which figures are gated, and their verdicts."""
