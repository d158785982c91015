"""Decides what is a regression: plain functions on the figures of process runs."""
