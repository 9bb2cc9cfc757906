"""Parse source text without running it: CUDA kernels and PyTorch targets.

In: texts of the user's. Out: targets with their pragmas and shapes, kernels with their signatures, places of calls.
Never: an import of the user's code.
Size: a fourth infers shapes that a file does not state (`inference`). What a benchmark's suite, a torch extension or a
workspace's calls say is read here, too, since nothing of it may run.
"""
