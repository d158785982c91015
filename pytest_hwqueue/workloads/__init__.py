"""What is run: one file per workload."""

MAXIMUM_STREAMS = 1024
