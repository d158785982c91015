"""Finds how much load a scenario carries: the greatest arrival rate at which its goals hold."""
