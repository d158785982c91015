"""What samples mean: numbers with their intervals, or the reason for having none."""
