"""Timing: rounds in turn with PyTorch, noise against itself, intervals and claims.

In: prepared subjects on a device. Out: `Measurement` and `TimeClaim`. Values are compared before anything is timed, and
no claim is made inside the noise.
"""
