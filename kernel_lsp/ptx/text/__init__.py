"""Read PTX: parser, syntax, control flow, loops, data flow, inlining. Text in, frozen data out.

In: the text of NVRTC or nvcc. Out: frozen syntax trees, control-flow graphs and inlined kernels. Never: a change of
what a kernel computes, or anything that runs.
"""
