"""The analysis process: turns texts into diagnostics, symbols and targets, and rebases them onto the current text.

In: texts of open documents. Out: findings, targets and kernels of each, rebased onto later texts. Never: code of the
user's that runs.
"""
