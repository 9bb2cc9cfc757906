"""Loops that an export has unrolled: find chains of equal steps in a graph, and compute each by one kernel."""
