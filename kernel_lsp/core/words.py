"""Words about numbers, and texts cut to a length, for every surface."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """Return ``1 file`` or ``2 files``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def fitted(text: str, n_characters: int) -> str:
    """Return the text in one line of at most `n_characters`, with "…" as the last where it is longer."""
    text = " ".join(text.split())
    return text if len(text) <= n_characters else text[: n_characters - 1] + "…"
