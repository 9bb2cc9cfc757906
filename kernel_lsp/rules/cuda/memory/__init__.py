"""Rules on memory: coalescing, strides, aliasing, shared memory.

In: the model of a function. Out: findings on access patterns and shared memory. Never: a measured figure: strides are
read from the text.
"""
