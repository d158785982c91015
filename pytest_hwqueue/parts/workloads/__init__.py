"""The workloads: one file each."""

MAXIMUM_STREAMS = 1024
