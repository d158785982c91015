"""A first test, a scenario and a workflow."""
