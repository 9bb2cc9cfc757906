"""Run launches: memory of blocks, scheduling of threads, blocks and clusters, counters and findings.

In: native code and a run request. Out: results, counters, findings. Used only in the executor's process.
"""
