"""NVRTC: find it, compile in a process that can be killed, parse its log, cache builds by content.

In: CUDA text, options and names of kernels. Out: PTX with ptxas's facts, or findings with lines. Never: a compile in
our own process.
"""
