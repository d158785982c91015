"""A/B comparisons: two versions or variants measured in turn within one session."""
