"""Pull requests on GitHub: one comment with a session's verdicts, kept up to date."""
