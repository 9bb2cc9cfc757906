"""Detect data races by happens-before between threads and between blocks, in shared and global memory."""
