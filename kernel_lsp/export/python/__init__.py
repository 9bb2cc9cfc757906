"""Export the PyTorch operator as Python text: contract, launches, autograd, fallback.

In: a task and a verified plan. Out: the text of an operator file and of the runtime that operators share. Never: a
change of the kernel's text.
"""
