"""One workload over several counts of streams: what is left to measure, and how it scales."""
