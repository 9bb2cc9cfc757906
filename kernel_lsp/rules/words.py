"""Write long lists of names as text."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """Return the whitespace-separated words of `text`."""
    return frozenset(text.split())
