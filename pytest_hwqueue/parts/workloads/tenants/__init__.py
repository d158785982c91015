"""Models that tenants of a shared device run."""
