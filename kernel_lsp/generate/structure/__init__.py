"""Decide which kernels a graph becomes, before any is written: detected patterns, methods, splits, and kept values.

In: a lowered graph, a workload and a schedule. Out: definitions to be fused, and what one kernel shall compute of them.
Never: CUDA text.
"""
