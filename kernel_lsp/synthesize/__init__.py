"""Synthesize tasks: draws of the worker and compositions of models pass through filters, and are written with an index.

In: a seed, a number, held-out folders. Out: KernelBench files and a Parquet index. The worker draws and measures; every
threshold is here or in `verify.task_filters`.
"""
