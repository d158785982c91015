"""Why slow requests were slow: joins what traced passes saw into one cause for each."""
