"""NVIDIA's and LLVM's command-line tools: ncu, compute-sanitizer, clang-tidy, and parsers for their output.

In: a program's path and what it printed. Out: command lines and typed results. Never: a tool that is required: each may
be absent.
"""
