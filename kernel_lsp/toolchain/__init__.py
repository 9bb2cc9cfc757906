"""Find and run the CUDA compiler, parse its output, and cache its results.

In: CUDA text and an architecture. Out: PTX, a cubin, facts of ptxas, or findings at their lines; extensions of torch;
what profilers say. Never: a compiler without a deadline, or a text compiled that `integrity` refuses.
Size: a third is `integrity`, which questions the text and the PTX instead of simulating what it refuses; a quarter is
`extension`, which builds kernels with host code of their own.
"""
