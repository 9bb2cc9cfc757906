"""Find and run the CUDA compiler, parse its output, and cache its results."""
