"""Computes the figures of records again from what is on disk, and compares to the digit."""
