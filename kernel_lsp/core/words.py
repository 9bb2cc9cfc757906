"""Words about numbers, for every surface."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """Return ``1 file`` or ``2 files``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
