"""Figures of requests and cells, with their intervals."""
