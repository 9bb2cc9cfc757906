"""Lowering rules for algorithms along one dim: running values, sorted rows, recurrent layers.

In: calls of ATen. Out: definitions, or a routine with an algorithm of its own. Never: a loop over a dim that the caller
cannot bound.
"""
