"""One workload, scheduler, noise, device and report of another package than pytest-hwqueue."""
