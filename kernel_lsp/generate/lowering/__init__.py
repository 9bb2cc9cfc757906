"""Lower ATen calls to definitions of tensors. The modules of this package fill one table of rules.

In: calls of ATen with their arguments. Out: definitions of the results. Never: a kernel's layout; an operator without a
rule is named, not guessed.
"""
