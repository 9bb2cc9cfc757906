"""Timing: rounds in turn with PyTorch, noise against itself, intervals and claims.

In: prepared subjects on a device. Out: `Measurement` and `TimeClaim`.
Nothing is timed before its values were compared, and no claim is made inside the noise.
"""
