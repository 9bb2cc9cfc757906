"""Reject text that must not be compiled or run, and extract facts from PTX.

Input: CUDA text and PTX. Output: findings with lines. Nothing is compiled here.
"""
