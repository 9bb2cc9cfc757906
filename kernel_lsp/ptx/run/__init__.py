"""Runs launches: memory of blocks, schedules of threads, blocks and clusters, counters and findings.

In: native code and a run request. Out: results, counters, findings. Runs in the executor's process alone.
"""
