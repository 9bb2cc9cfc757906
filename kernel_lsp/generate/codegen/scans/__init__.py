"""Cumulative functions with one read and one write: within a row, along columns, and by look-back between blocks.

In: a scan group and its schedule. Out: one kernel. Never: a second read of the source.
"""
