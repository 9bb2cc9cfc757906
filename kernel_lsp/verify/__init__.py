"""Reach a candidate's verdict: from its text to correct or incorrect, with times.

In: a `Candidate`, a captured `Task` and the devices of a session. Out: a `Verdict`. No candidate code runs in this
process, and no candidate can read an expected value.
"""
