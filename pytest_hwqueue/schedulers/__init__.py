"""Who decides the order: one scheduler mode per file."""
