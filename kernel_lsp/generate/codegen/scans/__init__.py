"""Cumulative functions with one read and one write: within a row, along columns, and by look-back between blocks."""
