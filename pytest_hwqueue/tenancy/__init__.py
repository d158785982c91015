"""Several tenants on one GPU: who runs, when, and what each of them got."""

SCENARIO_SUFFIX = ".hwq.yaml"
"""What ends the name of a scenario file. Here, since pytest's start must import nothing heavy."""
