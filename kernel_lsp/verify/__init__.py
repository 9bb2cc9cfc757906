"""A candidate's verdict: from its text to correct or incorrect, with times.

In: a `Candidate`, a captured `Task` and the devices of a session. Out: a `Verdict`.
No candidate code runs in this process, and no expected value lies where a candidate can read it.
"""
