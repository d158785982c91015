"""What tenants of a shared device run."""
