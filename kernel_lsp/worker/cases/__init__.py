"""Inputs of test cases, drawn from families of values.

In: a captured program, sizes and a family. Out: tensors in files.
"""
