"""Read the table of ATen operators, `worker/operators.json`: the kind of each, and the words that hold for it.

Generator, estimates, checks and worker read this one table. It lies in the worker's folder because the worker is loaded
from there alone, without our packages; it is JSON because the user's interpreter may be older than `tomllib`. A row is
named by an operator, or by an overload where it differs, e.g. ``div.Tensor_mode``.
"""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

FILE = Path(__file__).parent.parent / "worker" / "operators.json"
TABLE = json.loads(FILE.read_text())
ROWS = {
    name: frozenset((kind, *group["words"].split(), *words.split()))
    for kind, group in TABLE["kinds"].items()
    for name, words in group["operators"].items()
}
WORDS = frozenset((*TABLE["kinds"], *TABLE["words"]))


def base_op(op: str) -> str:
    """``mul`` for ``aten.mul.Tensor``, ``aten.mul_.Tensor`` and ``aten::mul``; ``_softmax`` keeps its underscore."""
    return op.replace("::", ".").removeprefix("aten.").split(".")[0].rstrip("_")


def is_a(op: str, *words: str) -> bool:
    """Check whether any of these words, or kinds, holds for the operator. Raises KeyError for an undeclared word."""
    if not WORDS.issuperset(words):
        raise KeyError(words)
    return not row_of(op).isdisjoint(words)


def number(op: str, word: str) -> int | None:
    """Return the number that the operator's row has for this word; None where it has none."""
    found = (entry.removeprefix(f"{word}=") for entry in row_of(op) if entry.startswith(f"{word}="))
    return next(map(int, found), None)


@lru_cache(maxsize=4096)
def row_of(op: str) -> frozenset[str]:
    """Return the operator's words, its kind among them; empty for an operator without a row."""
    parts = op.replace("::", ".").split(".")
    names = (".".join(parts[1:3]), parts[1], parts[1].rstrip("_")) if parts[0] == "aten" else (".".join(parts[:2]),)
    return next((ROWS[name] for name in names if name in ROWS), frozenset())
