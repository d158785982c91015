"""Noisy neighbours: programs that load the machine while something is measured."""
