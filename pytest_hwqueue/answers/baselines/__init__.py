"""Stored baselines, and comparisons with them."""
