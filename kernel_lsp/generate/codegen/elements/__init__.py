"""Elementwise kernels, boxes of elements, scatters, and the packs that loads and stores move.

In: an elementwise group and its schedule. Out: one kernel. Never: a vector access that the strides do not allow.
"""
