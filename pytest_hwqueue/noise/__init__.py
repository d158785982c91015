"""Noisy neighbours: programs that load the machine beside what is measured."""
