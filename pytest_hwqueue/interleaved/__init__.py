"""Two versions or two variants measured in turn, in one session, so that no session differs."""
