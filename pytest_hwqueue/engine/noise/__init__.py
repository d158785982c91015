"""Background load: neighbours, programs that load the machine during a measurement."""
