"""Is this machine fit to measure on, and what are its limits: ``hwq doctor``."""
