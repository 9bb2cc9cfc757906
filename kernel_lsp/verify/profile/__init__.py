"""Profiles of a kernel: what bounds it, by line, and what would help.

In: a verified candidate. Out: a `Profile` from the executor's counters or from NVIDIA's tools.
"""
