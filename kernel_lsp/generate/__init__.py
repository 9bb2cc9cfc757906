"""Propose kernels by rules: a captured graph becomes few fused kernels with a launch plan, and a schedule space.

In: a `Task`, a GPU's specifications, a schedule. Out: CUDA text with its plan, and the knobs that a search may turn.
Never: a process, or a text that depends on anything else.
Size: `codegen` is half of it, with a writer for each kind of kernel: elements, rows, products, tensor cores, attention,
scans and routines. `lowering` has a rule for each ATen operator that is supported.
"""
