"""The ``hwq`` command: a file for each command, thin layers over pytest."""
