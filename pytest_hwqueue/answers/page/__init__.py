"""Stored records as one page."""
