"""Read the table of ATen operators, `operators.json` beside this file. `kernel_lsp.core.operators` reads it, too."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

_TABLE = json.loads(Path(__file__).with_name("operators.json").read_text())
_ROWS = {
    name: frozenset((kind, *group["words"].split(), *words.split()))
    for kind, group in _TABLE["kinds"].items()
    for name, words in group["operators"].items()
}
_WORDS = frozenset((*_TABLE["kinds"], *_TABLE["words"]))


def is_a(op: object, *words: str) -> bool:
    """Check whether any of these words, or kinds, holds for an operator, e.g. ``aten.mul.Tensor``. Raises KeyError for
    an undeclared word."""
    if not _WORDS.issuperset(words):
        raise KeyError(words)
    return not _row_of(str(op)).isdisjoint(words)


def number(op: object, word: str) -> int | None:
    """Return the number that the operator's row has for this word; None where it has none."""
    found = [entry for entry in _row_of(str(op)) if entry.startswith(f"{word}=")]
    return int(found[0].split("=")[1]) if found else None


def operators(word: str) -> frozenset[str]:
    """Return the operators for which the word, or kind, holds."""
    return frozenset(name for name in _ROWS if is_a(f"aten.{name}", word))


@lru_cache(maxsize=4096)
def _row_of(op: str) -> frozenset[str]:
    parts = op.split(".")
    names = (".".join(parts[1:3]), parts[1], parts[1].rstrip("_")) if parts[0] == "aten" else (".".join(parts[:2]),)
    return next((_ROWS[name] for name in names if name in _ROWS), frozenset())
