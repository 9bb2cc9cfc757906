"""The oracle: references, tolerances and accepted alternatives; compares results with them.

In: outputs of a run and the worker's fp64 reference. Out: errors, or a mismatch with its place.
Expected values stay in this process and in the worker's files.
"""
