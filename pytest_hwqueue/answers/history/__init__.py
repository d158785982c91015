"""The history of a baseline: its sessions over time, where they changed, and what they hide."""
