"""Workloads whose streams are stages: copies, compute and the host, joined by events."""
