"""Why slow requests were slow: what traced passes saw, joined into one cause for each."""
