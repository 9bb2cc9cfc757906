"""Rejects text that may not be compiled or run, and reads facts from PTX for it.

In: CUDA text and PTX. Out: findings at their lines. Nothing is compiled here.
"""
