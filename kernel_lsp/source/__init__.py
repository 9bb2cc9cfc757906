"""Reads text, never runs it: CUDA kernels and PyTorch targets."""
