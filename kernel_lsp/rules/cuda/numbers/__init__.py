"""Rules on arithmetic: types, doubles, signatures.

In: the model of a function. Out: findings on slow or inaccurate arithmetic. Never: a type that the text does not show.
"""
