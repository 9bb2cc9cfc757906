"""GPU specifications, and time estimates based on them.

In: a GPU's name, and counters of the executor or of a profiler. Out: specifications, occupancy, times with an interval.
Never: a measured time, or an estimate that is not called one.
"""
