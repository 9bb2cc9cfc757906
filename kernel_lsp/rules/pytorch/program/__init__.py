"""Model of a file of Python as the rules read it: syntax, names, functions, scopes, and which expressions are tensors.

In: the text of a file. Out: a syntax tree, its functions, and a scope for each. Never: a finding, or code that runs.
"""
