"""Workloads whose result is the latency of small kernels, or what disturbs it."""
