"""Schedulers compared on a scenario, and the load that it carries."""
