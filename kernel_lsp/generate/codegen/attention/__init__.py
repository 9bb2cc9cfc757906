"""Attention in one kernel with an online softmax.

In: an attention, or its gradients, and a schedule. Out: kernels that keep scores in registers. Never: scores in memory,
or atomic sums.
"""
