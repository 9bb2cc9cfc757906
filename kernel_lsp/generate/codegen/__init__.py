"""Render groups as CUDA: one template per kind of group, over a shared writer of expressions.

In: a group and its schedule. Out: the text of a kernel and its launch. Never: a choice that a schedule should make.
"""
