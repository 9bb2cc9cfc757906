"""The CPU executor: runs the PTX of CUDA kernels, checks every access, counts what was done."""
