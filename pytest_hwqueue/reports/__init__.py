"""What a person reads: tables at the end of a session, and the same samples for other tools."""
