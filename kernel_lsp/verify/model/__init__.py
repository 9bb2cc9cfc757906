"""The nouns of a check: a resolved kernel, a test case, its environment, and what is known so far.

In: a plan and a task. Out: frozen data that every other room of `verify` reads.
Nothing here runs, compiles or reads files.
"""
