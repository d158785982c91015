"""The ``hwq`` command: one file per command, each a thin layer over pytest."""
