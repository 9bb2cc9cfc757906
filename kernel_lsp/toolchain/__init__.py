"""Finds and runs the CUDA compiler, reads what it says, and keeps what it made."""
