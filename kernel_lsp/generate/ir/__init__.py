"""The intermediate representation: index polynomials, hashed scalars and tensor definitions.

In: sizes and values of a graph. Out: definitions that compare by content. Never: storage, threads or text.
"""
