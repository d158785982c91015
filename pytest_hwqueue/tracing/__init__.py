"""What the CPU side does to GPU work: counters, event traces by level, clocks, exports."""
