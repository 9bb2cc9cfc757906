"""Detect data races by happens-before between threads and between blocks, in shared and global memory.

In: accesses, barriers, fences and signals of running threads. Out: pairs of accesses that nothing orders. Never: a race
reported between accesses that happens-before orders.
"""
