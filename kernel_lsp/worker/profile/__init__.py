"""Programs that profilers watch: a candidate's launches, or PyTorch's own trace.

In: a loaded candidate, or a task. Out: launches for a profiler to watch, or PyTorch's own list of them. Never: a
verdict.
"""
