"""A session: one task's worker, compiler, devices and evaluators, from start to verdict.

In: settings, a target and candidates. Out: verdicts. Owns every process that it starts.
"""
