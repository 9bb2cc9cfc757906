"""Rules on threads of a block: barriers, warps, atomics, and how values depend on the thread.

In: the model of a function. Out: findings on divergence, races and orders. Never: code that runs.
"""
