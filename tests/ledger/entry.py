"""Print and read a kernel's entry in the ledger: an unindented line with its file's name, then indented lines.

Runs of one part of the check are grouped by sizes and sorted, so that a change of the code that proposes them shows as
few changed lines. A digest tells whether their order is the same.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

N_DIGITS = 8
"""Hexadecimal digits of a digest: enough to distinguish orders."""


@dataclass(frozen=True)
class Run:
    """One run that was asked for. `part` is the part of the check that asks, e.g. ``forward``; `program` tells builds
    of one kernel apart; `inputs` are family, thread order and environment. Seeds are left out: they may be redrawn."""

    part: str
    program: str
    architecture: str
    sizes: str
    inputs: str


@dataclass(frozen=True)
class Entry:
    """The text about one kernel."""

    name: str
    lines: tuple[str, ...]


def entry_of(name: str, task: str, outcome: str, runs: Sequence[Run], on_gpu: Sequence[Run]) -> Entry:
    """The entry of a kernel. `outcome` is what becomes of it where every run is right. Of the runs `on_gpu` it has
    those that the executor has not."""
    known = {(run.part, run.sizes, run.inputs) for run in runs}
    more = [run for run in on_gpu if (run.part.removeprefix("gpu "), run.sizes, run.inputs) not in known]
    return Entry(name, (f"task: {task}", f"outcome: {outcome}", *_lines([*runs, *more])))


def digest(texts: Iterable[str]) -> str:
    """A short hash."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:N_DIGITS]


def printed(entries: Iterable[Entry]) -> str:
    """The entries by name."""
    ordered = sorted(entries, key=lambda entry: entry.name)
    return "".join(f"{entry.name}\n" + "".join(f" {line}\n" for line in entry.lines) for entry in ordered)


def read(text: str) -> list[Entry]:
    """Parse what `printed` wrote."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith(" "):
            found[-1][1].append(line[1:])
        else:
            found.append((line, []))
    return [Entry(name, tuple(lines)) for name, lines in found]


def differences(recorded: Iterable[Entry], found: Iterable[Entry]) -> Iterator[str]:
    """Lines that say what differs, by kernel; none where nothing does."""
    before, after = ({entry.name: entry.lines for entry in entries} for entries in (recorded, found))
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            yield name
            yield from _changes(before.get(name, ()), after.get(name, ()))


# --- below


def _lines(runs: Sequence[Run]) -> Iterator[str]:
    """By program, the kernel's own first; other programs, which are met in no order, by their text."""
    own = runs[0].program if runs else ""
    yield from _parts([run for run in runs if run.program == own])
    others = sorted((run for run in runs if run.program != own), key=lambda run: run.program)
    texts = [
        (f"other program: {same[0].architecture}", *(f" {line}" for line in _parts(same)))
        for _, group in groupby(others, key=lambda run: run.program)
        if (same := list(group))
    ]
    for text in sorted(texts):
        yield from text


def _parts(runs: Sequence[Run]) -> Iterator[str]:
    for part in dict.fromkeys(run.part for run in runs):
        same = [run for run in runs if run.part == part]
        yield f"{part}: {len(same)} runs, order {digest(f'{run.sizes} {run.inputs}' for run in same)}"
        by_sizes = {run.sizes: [other.inputs for other in same if other.sizes == run.sizes] for run in same}
        for sizes in sorted(by_sizes, key=_numeric):
            yield f" {sizes}: {' '.join(_counted(by_sizes[sizes]))}"


def _counted(inputs: Sequence[str]) -> list[str]:
    return [each if n == 1 else f"{each}*{n}" for each, n in sorted(Counter(inputs).items())]


def _numeric(sizes: str) -> tuple[tuple[int, str], ...]:
    words = (word.partition("=")[2] or word for word in sizes.split())
    return tuple((int(word), "") if word.isdigit() else (0, word) for word in words)


def _changes(before: Sequence[str], after: Sequence[str]) -> Iterator[str]:
    """Lines that are gone or new. Where both have a line of the same part and sizes: the words that are."""
    old, new = _by_place(before), _by_place(after)
    for place in dict.fromkeys((*old, *new)):
        words = [f"- {word}" for word in (old.get(place, Counter()) - new.get(place, Counter())).elements()]
        words += [f"+ {word}" for word in (new.get(place, Counter()) - old.get(place, Counter())).elements()]
        if place in old and place in new:
            yield from [f"  ~ {place}: {'; '.join(words)}"] if words else []
        else:
            yield f"  {'-' if place in old else '+'} {place}: {' '.join((old | new)[place].elements())}"


def _by_place(lines: Sequence[str]) -> dict[str, Counter[str]]:
    """The words of each line, by what is before its colon and the part of the check that it is in."""
    found: dict[str, Counter[str]] = {}
    part = ""
    for line in lines:
        head, _, words = line.partition(": ")
        part = part if line.startswith(" ") else head
        found.setdefault(head if head == part else f"{part} at{head}", Counter()).update(words.split())
    return found
