"""Prints, plots and writes the result of ``hwq which``."""
