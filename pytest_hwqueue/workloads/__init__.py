"""What is run: one file per workload."""
