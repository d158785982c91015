"""Measures cells: loops, passes, and the runs that become records."""
