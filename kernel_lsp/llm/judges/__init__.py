"""Judges: language models that order and filter candidates before they reach hardware.

Input: a candidate's text with its task, compiler output and shapes. Output: votes and a verdict with reasons. A judge
never decides correctness: a rejected candidate is only tried later, or not at all.
"""
