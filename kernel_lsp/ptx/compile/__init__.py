"""Compile PTX to native code through LLVM: one function per kernel that runs one thread from yield to yield.

In: parsed PTX. Out: machine code with a check on every access. Unsupported instructions raise `UnsupportedPtxError`.
"""
