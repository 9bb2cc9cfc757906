"""The launch plan's grammar: parse, print, bind to shapes, check against the kernels. See `docs/kernel-format.md`.

In: the comment block at the top of a `.cu` file, sizes, signatures. Out: a `LaunchPlan`, findings at their lines, or a
`BoundOperation` with each launch in numbers. Never: CUDA code that runs, or an expression evaluated as Python.
"""
