"""Compares schedulers on one scenario: its runs, its table and the choice."""
