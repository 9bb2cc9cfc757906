"""Schedules: the knobs of each template, their valid values, and the defaults.

In: a group with its captured sizes and the GPU. Out: a schedule. Nothing here writes CUDA text.
"""
