"""The CPU device: runs test cases on PTX executors and judges them.

In: a built candidate and bound cases. Out: outcomes, findings by line and counters.
A case that exceeds its budget is inconclusive, never clean.
"""
