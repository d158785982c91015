"""What an extension adds one of: devices, workloads, schedulers; and processes."""
