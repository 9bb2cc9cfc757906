"""Split rows so that no task, family of tasks or lineage of kernels is in two splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
SHARES = {"train": 80, "validation": 10, "test": 10}
"""Shares in percent of the groups; those of rows differ, as groups have different sizes."""


def split_rows(keys: Sequence[Iterable[str]]) -> list[Split]:
    """Return the split of each row. Rows that share a key, also through other rows, are in one split; which one depends
    on the least key of their group alone."""
    parents: dict[str, str] = {}
    rows = [list(dict.fromkeys(each)) for each in keys]
    for row in rows:
        for key in row:
            _join(parents, row[0], key)
    return [_split_of(_root(parents, row[0])) for row in rows]


# --- below: groups


def _root(parents: dict[str, str], key: str) -> str:
    parents.setdefault(key, key)
    while parents[key] != key:
        parents[key] = parents[parents[key]]
        key = parents[key]
    return key


def _join(parents: dict[str, str], one: str, other: str) -> None:
    first, second = sorted((_root(parents, one), _root(parents, other)))
    parents[second] = first  # so a group's root is its least key


def _split_of(key: str) -> Split:
    number = int(hashlib.sha256(key.encode()).hexdigest(), 16) % 100
    for split in SPLITS[:-1]:
        if number < SHARES[split]:
            return split
        number -= SHARES[split]
    return SPLITS[-1]
