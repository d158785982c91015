"""What a session came to: tables, notes, outcome."""
