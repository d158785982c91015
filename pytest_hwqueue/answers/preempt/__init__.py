"""How long an urgent kernel waits behind a victim's kernels: ``hwq preempt``."""
