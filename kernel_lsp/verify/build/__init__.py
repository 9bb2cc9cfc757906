"""Builds of a candidate: for the target GPU and for other architectures.

In: a candidate's text and kernel names. Out: `Built`, or the compiler's findings.
"""
