"""Scheduler modes, which decide the order of kernels: one file each."""
