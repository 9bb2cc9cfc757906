"""Infer what a target is called with from its text: no user code is executed.

In: the text of a function or module. Out: pragmas that its code would accept, or the reason why there are none. Never:
code of the user's that runs.
"""
