"""Filters and scores of tasks: whether a task is worth measuring kernels on, and fast_p.

In: a captured task or finished results. Out: findings and scores. No candidate is run here.
"""
