"""Judges: language models that order and filter candidates before hardware sees them.

In: a candidate's text with its task, compiler output and shapes. Out: votes and a verdict with its reasons.
A judge never decides correctness: what it refuses is only tried later, or not at all.
"""
