"""Training steps on several streams: gradients without an optimiser, so that steps repeat."""
