"""The supervisor of every subprocess: process group, deadline, bounded output, and termination of the whole group.

In: a command, a deadline, a confinement. Out: its output, or why there is none, and conversations in JSON lines, on
this machine or another. Never: a child that outlives us, output without a bound, or a wait without an end.
"""
