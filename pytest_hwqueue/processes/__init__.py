"""Processes and what holds them: starting, channels, services, groups, how they ended."""
