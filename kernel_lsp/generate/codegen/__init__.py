"""Render groups as CUDA: one template per kind of group, over a shared writer of expressions."""
