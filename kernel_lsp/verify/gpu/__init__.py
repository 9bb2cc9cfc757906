"""The CUDA device: runs test cases and timings in a worker process that owns the GPU.

In: a built candidate and bound cases. Out: outcomes and raw times.
One candidate at a time holds a GPU; a lost context costs its worker, not the run.
"""
