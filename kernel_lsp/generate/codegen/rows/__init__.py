"""Kernels of row groups: a thread, warp, block, cluster or cooperative grid per row, and sums over rows.

In: a row group and its schedule. Out: CUDA text. Nothing here chooses a schedule.
"""
