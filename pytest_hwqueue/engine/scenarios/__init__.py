"""``*.hwq.yaml``: tenants that share a device, their goals, and the runs these need."""
