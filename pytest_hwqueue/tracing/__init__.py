"""How the CPU side affects GPU work: counters, event traces by level, clocks, exports."""
