"""Probes: choose the sizes, inputs and scalars that a kernel is tested with.

In: a resolved kernel, its task and its compiled code. Out: test cases. A probe proposes cases; it runs nothing and
judges nothing.
"""
