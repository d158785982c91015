"""One scenario under every scheduler: its runs, its table and the choice."""
