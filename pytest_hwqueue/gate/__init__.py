"""What is a regression: plain functions on the figures of process runs, without pytest or torch."""
