"""Long lists of names, written as text."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of `text`, which white space separates."""
    return frozenset(text.split())
