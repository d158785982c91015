"""The schema: what records of cells, tenants, noise and causes hold. Plain data, no torch."""
