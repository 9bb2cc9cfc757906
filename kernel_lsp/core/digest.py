"""Name texts by their SHA-256, for caches, archives and records."""

from __future__ import annotations

import hashlib

SHORT_DIGITS = 16
"""Hexadecimal digits of a digest that identifies a text within one workspace."""


def sha256_of(text: str, n_digits: int = 64) -> str:
    """Return the first `n_digits` hexadecimal digits of the SHA-256 of the text in UTF-8. A lone surrogate, as in a
    file that is not UTF-8, counts as "?"."""
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:n_digits]
