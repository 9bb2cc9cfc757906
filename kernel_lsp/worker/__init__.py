"""The program that runs under the user's interpreter: captures tasks, computes references, runs library steps.

It imports only the standard library and torch. `__main__` loads this folder as a package of its own name, so that
neither `kernel_lsp` nor its dependencies need to be installed beside the user's torch. Requests are JSON lines on
stdin, answers are JSON lines on stdout; `protocol` has the loop and the table of commands.
"""
