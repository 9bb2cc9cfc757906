"""Rewrite what an export cannot take, or the generator has no rule for, to operators that both know.

In: a call that is traced, or its graph. Out: the same values.
"""
