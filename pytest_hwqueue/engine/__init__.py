"""What runs, and why it was slow."""
