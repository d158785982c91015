"""Sweeps over numbers of streams: what is left to measure, and how throughput scales."""
