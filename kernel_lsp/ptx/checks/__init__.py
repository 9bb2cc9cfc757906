"""Runtime checks: bounds, uninitialised reads, bank conflicts and sectors, livelock.

In: accesses of running threads and the buffers they may touch. Out: faults, warnings, traces of sectors, and findings
in words. Never: a correction of an access: a faulty one ends its block.
"""
