"""Foreign kernels: torch extensions and `ModelNew` files, whose host code runs in a process of its own.

In: a file. Out: the same verdicts as for candidates. Host code never runs in a process that holds expected values.
"""
