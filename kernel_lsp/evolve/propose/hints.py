"""Optimization hints: a curated catalogue in `prompts/hints.toml`, each with the facts that it requires."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from kernel_lsp.llm.prompts import PROMPTS_FOLDER

CATALOGUE_NAME = "hints.toml"


@dataclass(frozen=True)
class Hint:
    """`when` are the facts that must all hold. `kind` is the category whose value the ensemble learns."""

    id: str
    kind: str
    when: frozenset[str]
    text: str


@cache
def catalogue() -> tuple[Hint, ...]:
    """Return every hint, in the order of the file."""
    entries = tomllib.loads((PROMPTS_FOLDER / CATALOGUE_NAME).read_text(encoding="utf-8"))["hint"]
    return tuple(Hint(entry["id"], entry["kind"], frozenset(entry["when"]), entry["text"]) for entry in entries)


def applicable(facts: frozenset[str], hints: Sequence[Hint] | None = None) -> tuple[Hint, ...]:
    """Return the hints whose facts all hold."""
    return tuple(hint for hint in (catalogue() if hints is None else hints) if hint.when <= facts)


def kinds(hints: Sequence[Hint]) -> tuple[str, ...]:
    """Return each kind once, in order."""
    return tuple(dict.fromkeys(hint.kind for hint in hints))


def pick(hints: Sequence[Hint], kind: str, draw: random.Random) -> Hint | None:
    """Pick one hint of that kind; None without any."""
    of_kind = [hint for hint in hints if hint.kind == kind]
    return draw.choice(of_kind) if of_kind else None
