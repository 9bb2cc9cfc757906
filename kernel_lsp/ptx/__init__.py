"""Run the PTX of CUDA kernels on the CPU: check every access and count the work.

In: PTX, bound launches, buffers as files. Out: what the kernels wrote, findings (bounds, races, divergence, livelock),
and counters. Never: an access outside of the buffers, or an instruction that is skipped because it is unknown.
"""
