"""Sweeps over stream counts: what is left to measure, and how throughput scales."""
