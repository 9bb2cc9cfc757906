"""Contractions on CUDA cores: tiles in shared memory, and tiles whose products threads and clusters share.

In: a contraction group and its schedule. Out: one kernel. Never: instructions of tensor cores.
"""
