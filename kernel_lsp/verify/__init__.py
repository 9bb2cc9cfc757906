"""Reach a candidate's verdict: from its text to correct or incorrect, with times.

In: a `Candidate`, a captured `Task` and the devices of a session. Out: a `Verdict`. No candidate code runs in this
process, and no candidate can read an expected value.
Size: seven tenths reach verdicts; `probes`, which also read the kernel's own code, are a third of that. The rest needs
the same session: `timing` in turn with PyTorch, `profile`, kernels with host code (`foreign`), and filters of `tasks`.
"""
