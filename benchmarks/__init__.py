"""The suite: one test file per family."""
