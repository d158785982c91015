"""Reports for people: tables at the end of a session, and the samples for other tools."""
