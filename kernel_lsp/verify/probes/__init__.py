"""Probes: which sizes, inputs and numbers a kernel is tried with.

In: a resolved kernel, its task and its compiled code. Out: test cases.
A probe proposes cases; it runs nothing and judges nothing.
"""
