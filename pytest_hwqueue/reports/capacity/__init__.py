"""Reports of a scenario's capacity."""
