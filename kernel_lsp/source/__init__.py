"""Parse source text without running it: CUDA kernels and PyTorch targets."""
