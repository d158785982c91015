"""Several tenants on one device: who runs, when, and what each of them got."""

TENANTS = "tenants"
"""The family of the records of tenants."""

SCENARIO_SUFFIX = ".hwq.yaml"
"""What ends the name of a scenario file. Here, since pytest's start must import nothing heavy."""

DEVICE = "device"
"""All tenants together, where goals have a tenant's name; no tenant is called so."""
