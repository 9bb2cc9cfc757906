"""Static analysis of a parsed kernel: endless loops, instruction census, traits, NaN bits, variable placement.

In: parsed kernels, and counts of executed blocks. Out: loops that cannot end, classes of instructions, addresses of
variables. Never: a kernel that runs.
"""
