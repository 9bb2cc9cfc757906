"""Rules on indices and sizes.

In: the model of a function. Out: findings on missing and wrong bounds. Never: code that runs.
"""
