"""Choose small sizes inside a contract, each with another property. Most cases use them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernel_lsp.core.task import Symbol, Task
from kernel_lsp.verify.model.cases import (
    ALIGNMENTS,
    CHEAP_ELEMENTS,
    MAX_REDUCED_ELEMENTS,
    OperationKind,
    Sizes,
    captured_sizes,
    clamped,
    is_usable,
)

PATTERNS: dict[str, tuple[int, ...]] = {
    "primes": (7, 5, 3, 11, 13),
    "long": (3, 1031, 67, 37, 5),
    "edges": (9, 17, 33, 5, 3),
    "powers": (4, 8, 16, 2, 32),
    "multiples": (12, 20, 36, 4, 8),
    "long_even": (2, 1032, 68, 36, 4),
}
"""Sizes for the first symbol, the second, and so on; a task with one symbol begins with the second. The long ones take
more than one block of nearly any kernel: they expose a grid that is rounded down, and are watched for races."""
OTHER_SIZES = (7, 1, 12, 32, 64, 256)
"""Sizes tried to see whether a symbol may differ from the captured size."""
MAX_TIED = 4
"""Maximum symbols of one common size, e.g. the lengths of queries, keys and values."""
MAX_REDUCED_ASSIGNMENTS = 4
MULTIPLES = ((2, 1), (3, 1), (5, 1), (1, 2), (1, 3), (1, 5))
"""Factors on a captured size, as numerator and denominator, tried in this order."""
HIDDEN_SIZES = (1, 2, 31, 33, 61, 63, 65, 127, 129, 251, 255, 257, 509, 511, 513, 1021, 1023, 1025, 2039, 2049, 4097)
"""One, two, primes, and neighbours of powers of two. The seed selects the ones of a run, and no candidate sees it."""
MANY = (63, 64, 96)
"""Numbers of rows, tried in this order: three of each magnitude of `octaves`."""
N_ROWS, MAX_ROWS_ELEMENTS = (3, 2, 1), 1 << 16
"""Numbers of rows for captured sizes, and the maximum elements of such a case."""
MAX_HIDDEN_ELEMENTS = 1 << 22
"""Maximum elements of all inputs and outputs of a hidden case. The captured sizes' count applies where nothing smaller
is inside the contract."""
N_HIDDEN = 4
N_HIDDEN_TRIES = 64


@dataclass(frozen=True)
class Freedom:
    """Symbols that a contract fixes to their captured sizes (`held`), and symbols that must equal another one (`tied`),
    by the name of that one."""

    held: Sizes = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)

    def leads(self, symbol: Symbol) -> bool:
        """Check whether the symbol may have a size of its own."""
        return symbol.name not in self.held and self.tied.get(symbol.name, symbol.name) == symbol.name


ALL_FREE = Freedom()


def reduced_sizes(
    task: Task, operation: OperationKind, holds: Callable[[Sizes], bool], freedom: Freedom = ALL_FREE
) -> list[Sizes]:
    """Return small sizes inside the candidate's contract, each with another property. Empty when the task has no
    symbol, or when only the captured sizes are inside the contract."""
    found: list[Sizes] = []
    for sizes_by_symbol in PATTERNS.values() if task.symbols else ():
        pattern = sizes_by_symbol if len(task.symbols) > 1 else sizes_by_symbol[1:]
        tried = aligned_sizes(task, pattern, freedom)
        sizes = next((s for s in tried if is_usable(task, operation, s) and holds(s)), None)
        sizes = sizes or _captured_but_first(task, operation, pattern, holds, is_first=not found)
        if sizes is not None and sizes not in found:
            found.append(sizes)
    found = found[:MAX_REDUCED_ASSIGNMENTS]
    return [*found, *_changing_the_rest(task, operation, holds, found)]


def captured_rows(task: Task, operation: OperationKind, holds: Callable[[Sizes], bool]) -> Sizes | None:
    """Return the captured sizes with few rows, or unchanged where they are small, too; None where all are large."""
    captured = captured_sizes(task)
    tried = [captured]
    for n_leading in range(1, len(task.symbols)):
        leading = task.symbols[:n_leading]
        tried += [{**captured, **{symbol.name: clamped(symbol, n, 1) for symbol in leading}} for n in N_ROWS]
    cheap = (s for s in tried if is_usable(task, operation, s, MAX_ROWS_ELEMENTS, or_as_captured=False))
    return next((sizes for sizes in cheap if holds(sizes)), None)


def many_rows(
    task: Task, operation: OperationKind, holds: Callable[[Sizes], bool], reduced: Sequence[Sizes]
) -> Sizes | None:
    """Return one of the small sizes with many rows, if the contract allows any."""
    tried = (
        {**sizes, symbol.name: clamped(symbol, n, 1)} for symbol in task.symbols[:1] for sizes in reduced for n in MANY
    )
    return next((s for s in tried if is_usable(task, operation, s, MAX_ROWS_ELEMENTS, False) and holds(s)), None)


def least_sizes(task: Task, operation: OperationKind, holds: Callable[[Sizes], bool], freedom: Freedom) -> Sizes | None:
    """Return size one for every symbol: the first element is also the last."""
    tried = aligned_sizes(task, (1,), freedom)
    return next((s for s in tried if is_usable(task, operation, s) and holds(s)), None) if task.symbols else None


def hidden_sizes(
    task: Task, operation: OperationKind, holds: Callable[[Sizes], bool], seed: int, n_wanted: int = N_HIDDEN
) -> list[Sizes]:
    """Return sizes inside the contract that the task does not name: random ones, or the captured ones with one random
    symbol. Aligned where the contract requires it. Empty for a task without symbols."""
    draw = random.Random(f"{seed} {task.name} {operation}")
    found: list[Sizes] = []
    for attempt in range(N_HIDDEN_TRIES if task.symbols else 0):
        alignment = ALIGNMENTS[min(attempt // len(ALIGNMENTS), len(ALIGNMENTS) - 1)]
        drawn = {symbol.name: clamped(symbol, draw.choice(HIDDEN_SIZES), alignment) for symbol in task.symbols}
        kept = draw.choice(task.symbols).name
        sizes = drawn if attempt % 2 == 0 else {**captured_sizes(task), kept: drawn[kept]}
        or_as_captured = attempt >= N_HIDDEN_TRIES // 2 and not found
        if sizes in found or not is_usable(task, operation, sizes, MAX_HIDDEN_ELEMENTS, or_as_captured):
            continue
        if holds(sizes):
            found.append(sizes)
        if len(found) == n_wanted:
            break
    return found


def aligned_sizes(task: Task, pattern: tuple[int, ...], freedom: Freedom) -> Iterator[Sizes]:
    """Yield the pattern's sizes for the symbols, in their order, each aligned and inside its bounds. First as the
    contract's freedom allows, then for all symbols, which may be coupled in some other way."""
    for known in (freedom, ALL_FREE) if freedom != ALL_FREE else (ALL_FREE,):
        for alignment in ALIGNMENTS:
            sizes = {
                symbol.name: clamped(symbol, pattern[position % len(pattern)], alignment)
                for position, symbol in enumerate(task.symbols)
            }
            yield {name: known.held.get(name, sizes[known.tied.get(name, name)]) for name in sizes}


def freedom_of(task: Task, operation: OperationKind, holds: Callable[[Sizes], bool]) -> Freedom:
    """Return the freedom that the contract leaves, as far as a few other sizes show."""
    captured = captured_sizes(task)

    def may_change(*symbols: Symbol) -> bool:
        others = (*OTHER_SIZES, 2 * symbols[0].captured, symbols[0].captured // 2)
        changed = (
            {**captured, **{symbol.name: clamped(symbol, size, 1) for symbol in symbols}}
            for size in dict.fromkeys(others)
            if size != symbols[0].captured
        )
        return any(sizes != captured and is_usable(task, operation, sizes) and holds(sizes) for sizes in changed)

    bound = [symbol for symbol in task.symbols if not may_change(symbol)]
    tied: dict[str, str] = {}
    for n in range(2, min(len(bound), MAX_TIED) + 1):
        for group in itertools.combinations(bound, n):
            is_new = not any(symbol.name in tied for symbol in group)
            if is_new and len({symbol.captured for symbol in group}) == 1 and may_change(*group):
                tied |= {symbol.name: group[0].name for symbol in group}
    return Freedom({symbol.name: symbol.captured for symbol in bound if symbol.name not in tied}, tied)


# --- below: where no pattern holds


def _captured_but_first(
    task: Task, operation: OperationKind, pattern: tuple[int, ...], holds: Callable[[Sizes], bool], *, is_first: bool
) -> Sizes | None:
    """Return the captured sizes with the first symbol (nearly always the batch) made small. A large case is made only
    where there is no other: each of its families costs as much."""
    first = task.symbols[0]
    sizes = {**captured_sizes(task), first.name: clamped(first, pattern[0], 1)}
    max_elements = MAX_REDUCED_ELEMENTS if is_first else CHEAP_ELEMENTS
    return sizes if is_usable(task, operation, sizes, max_elements, is_first) and holds(sizes) else None


def _changing_the_rest(
    task: Task, operation: OperationKind, holds: Callable[[Sizes], bool], found: Sequence[Sizes]
) -> Iterator[Sizes]:
    """Yield multiples and parts of the captured size of each symbol that never changed so far: no pattern fits some
    contracts, e.g. `N % 1000 == 0` and `B * N == 6000`."""
    captured = captured_sizes(task)
    for symbol in task.symbols:
        if any(sizes[symbol.name] != symbol.captured for sizes in found):
            continue
        changed = (
            {**base, symbol.name: clamped(symbol, multiple * symbol.captured // part, 1), **other}
            for multiple, part in MULTIPLES
            for base in (*found[:1], captured)
            for other in ({}, *_divided(task, symbol, multiple, part))
        )
        usable = (sizes for sizes in changed if is_usable(task, operation, sizes) and holds(sizes))
        sizes = next((sizes for sizes in usable if sizes[symbol.name] != symbol.captured), None)
        if sizes is not None:
            yield sizes


def _divided(task: Task, symbol: Symbol, multiple: int, part: int) -> Iterator[Sizes]:
    """Yield each other symbol divided by the factor of this one."""
    for other in task.symbols:
        if other != symbol and other.captured * part % multiple == 0:
            yield {other.name: clamped(other, other.captured * part // multiple, 1)}
