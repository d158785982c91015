"""New runs held against a baseline: which figures are gated, and what the gate makes of them."""
