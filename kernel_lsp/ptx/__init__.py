"""Run the PTX of CUDA kernels on the CPU: check every access and count the work."""
