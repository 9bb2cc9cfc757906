"""Export the kernel and its PyTorch operator as files of the user's.

In: a task, a kernel with its plan, and the evidence of its verdict. Out: an operator in Python, a package with an
operator in C++, a report. Never: a kernel whose verdict is not correct, or code that imports
`kernel_lsp`.
"""
