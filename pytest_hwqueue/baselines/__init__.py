"""What is remembered of a measurement."""
