"""Synthesis of tasks: crawl torch for operators, probe them, compose some into a task, and trace tasks for comparison.

In: a seed and an index. Out: the text of a KernelBench file. Nothing is judged here.
"""
