"""Parse source text without running it: CUDA kernels and PyTorch targets.

In: texts of the user's. Out: targets with their pragmas and shapes, kernels with their signatures, places of calls.
Never: an import of the user's code.
"""
