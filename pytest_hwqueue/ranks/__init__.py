"""Several processes that measure a cell together: finding each other, agreeing, merging."""
