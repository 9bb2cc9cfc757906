"""Interpretation of a kernel for one block of threads: values of indices, elements accessed, barriers met.

In: the model of a function and of those it calls. Out: races, indices out of bounds and divergence, each with its node.
Never: values of elements, which stay unknown.
"""
