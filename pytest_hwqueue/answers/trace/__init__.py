"""One workload in one file for a viewer."""
