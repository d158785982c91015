"""Several processes that run a cell together: where they are, how they agree, what they found."""
