"""Fuse definitions into groups. Each group becomes one kernel.

In: the live definitions of an operation. Out: groups in launch order, each the work of one kernel. Never: CUDA text, or
a choice of threads.
"""
