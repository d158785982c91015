"""Stored baselines: the runs that later measurements are compared with."""
