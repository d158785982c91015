"""Processes: starting them, channels, services, process groups, and how they ended."""
