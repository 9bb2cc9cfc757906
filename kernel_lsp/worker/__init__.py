"""The program that runs under the user's interpreter: captures tasks, computes references, runs library steps.

In: requests as JSON lines on stdin, and tensors as files. Out: answers on stdout, and tensors as files. Never: an
import beside the standard library and torch. `__main__` loads this folder as a package of its own name, so that neither
`kernel_lsp` nor its dependencies need to be installed beside the user's torch; `protocol` has the loop.
Size: half is `capture`, `cases` and `oracle`. The rest is here since no other room imports torch: a GPU's worker,
PyTorch's times, foreign kernels, synthesis and examination of tasks. `shipped` is copied beside users' operators.
"""
