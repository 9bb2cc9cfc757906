"""Data races by happens-before: what threads and blocks know of each other, in shared and global memory."""
