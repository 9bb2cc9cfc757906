"""Small, long, many, far and farthest sizes inside a contract, each kind a few patterns for one finder."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence, Set
from typing import TypeVar

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import Symbol, Task
from kernel_lsp.verify.model.cases import ALIGNMENTS, OperationKind, Sizes, clamped, graph_of, shape_of
from kernel_lsp.verify.probes.finder import (
    CHEAP,
    FAR,
    FARTHEST,
    HIDDEN,
    MAX_WIDE_ELEMENTS,
    POSSIBLE,
    REDUCED,
    ROWS,
    WIDE,
    Budget,
    Finder,
    PlanFinder,
    distinct,
    with_new_outcomes,
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
MAX_REDUCED_ASSIGNMENTS = 4
MULTIPLES = ((2, 1), (3, 1), (5, 1), (1, 2), (1, 3), (1, 5))
"""Factors on a captured size, as numerator and denominator, tried in this order."""
FRESH_SIZES = (1, 2, 6, 10, 13, 19, 23, 29, 31, 37, 41, 47, 63, 65, 129)
N_FRESH_TRIES = 64
HIDDEN_SIZES = (1, 2, 31, 33, 61, 63, 65, 127, 129, 251, 255, 257, 509, 511, 513, 1021, 1023, 1025, 2039, 2049, 4097)
"""One, two, primes, and neighbours of powers of two. The seed selects the ones of a run, and no candidate sees it."""
N_HIDDEN, N_HIDDEN_TRIES = 4, 64
MANY = (63, 64, 96)
"""Numbers of rows, tried in this order: three of each magnitude of `octaves`."""
N_ROWS = (3, 2, 1)
"""Numbers of rows for captured sizes."""
WIDE_PATTERNS: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...] = (
    (),
    (((70_001,),), ((2_048,),)),
    (
        ((1, 70_001), (1, 20_011), (37, 4_099), (9, 2_053)),
        ((16_411, 19), (16_411, 7), (4_099, 7)),
        ((5, 2_048), (5, 1_024)),
    ),
    (
        ((37, 4_099, 17, 3), (9, 2_053, 7, 2)),
        ((16_411, 7, 3, 2), (4_099, 7, 3, 2)),
        ((2, 2_048, 3, 2),),
    ),
)
"""Groups of sizes for tasks with one symbol, two, and more; of each group the first inside the contract is taken. A row
of 20,000 exceeds registers and default shared memory, 300,000 elements exceed most fixed grids, and past 65,536 a
16-bit index wraps. Multiples of a thousand would leave no remainder for a last tile. With more symbols one is often a
sequence length, with whose square the work grows. Numbers of rows are below 65,536, a grid's limit along y."""
NEARLY_FULL = (1_023, 511, 255)
"""Sizes of each symbol, with twos or ones for the others: the last tile of any power of two lacks one element."""
LONG_ALONE = (4_099, 2_053, 1_031, 521)
"""Sizes of one of several symbols, with twos or ones for the others, or of those with equal captured sizes together
(the lengths of query and key). Where heads or channels are no symbols, the others are not small enough, and any symbol
may be a sequence length."""
MAX_VAST_HERE, MAX_VAST_ELEMENTS = 1 << 21, 1 << 24
"""Maximum elements of any tensor of a very large case on the executor, where ten instructions for each take about 1 s,
and of all inputs and outputs on a GPU."""
VAST_PATTERNS: tuple[tuple[tuple[int, ...], ...], ...] = (
    (),
    ((1_100_003,),),
    ((70_001, 3), (65_521, 3)),
    ((35_003, 2, 3, 1), (35_003, 2, 1, 3), (32_749, 2, 3, 1), (32_749, 2, 1, 3)),
)
"""More rows than 16 bits count, or more than a million elements, which two levels of 1,024 threads cover. A plan with
rows along the grid's second dim has at most 65,535."""
LARGEST_FAR = 1 << 25
FAR_ELEMENTS = tuple(n + n // 16 for n in (1 << 22, 1 << 23, 1 << 24, LARGEST_FAR))
"""Elements of the largest result that are tried."""
MAX_FAR = 2
FARTHEST_STEPS = (1, 16, 16, 16)
"""Divisors from each size to the next smaller one: smaller sizes serve kernels whose blocks do a lot at large ones."""
MIN_FACTOR = 4
"""Minimum factor to the largest of the known sizes: below it everything is computed."""

Pattern = TypeVar("Pattern")
Outcomes = Callable[[Sizes], Set[tuple[object, ...]]]
Ladder = Iterator[BoundOperation]
"""One operation at ever smaller sizes."""


def reduced_sizes(finder: Finder) -> list[Sizes]:
    """Return small sizes inside the contract, each with another property. Empty when the task has no symbol, or when
    only the captured sizes are inside the contract."""
    found: list[Sizes] = []
    for sizes_by_symbol in PATTERNS.values() if finder.symbols else ():
        pattern = sizes_by_symbol if len(finder.symbols) > 1 else sizes_by_symbol[1:]
        sizes = finder.find(finder.aligned(pattern), REDUCED) or finder.find(
            # The first symbol is nearly always the batch. Each family of a large case costs as much.
            [finder.with_sizes(finder.captured, finder.symbols[:1], pattern[0])],
            CHEAP if found else REDUCED,
        )
        found += [sizes] if sizes is not None and sizes not in found else []
    found = found[:MAX_REDUCED_ASSIGNMENTS]
    return [*found, *_changing_the_rest(finder, found)]


def fresh_sizes(finder: Finder, seed: int) -> Sizes | None:
    """Return small sizes drawn by the seed."""

    def drawn() -> Iterator[Sizes]:
        draw = random.Random(seed)
        for attempt in range(N_FRESH_TRIES if finder.symbols else 0):
            alignment = ALIGNMENTS[attempt * len(ALIGNMENTS) // N_FRESH_TRIES]
            yield {symbol.name: clamped(symbol, draw.choice(FRESH_SIZES), alignment) for symbol in finder.symbols}

    return finder.find(drawn(), REDUCED)


def captured_rows(finder: Finder) -> Sizes | None:
    """Return the captured sizes with few rows, or unchanged where they are small, too; None where all are large."""
    few = (
        finder.with_sizes(finder.captured, finder.symbols[:n_leading], n)
        for n_leading in range(1, len(finder.symbols))
        for n in N_ROWS
    )
    return finder.find([finder.captured, *few], ROWS)


def many_rows(finder: Finder, reduced: Sequence[Sizes]) -> Sizes | None:
    """Return one of the small sizes with many rows, if the contract allows any."""
    first = finder.symbols[:1]
    return finder.find((finder.with_sizes(s, first, n) for s in reduced if first for n in MANY), ROWS)


def least_sizes(finder: Finder) -> Sizes | None:
    """Return size one for every symbol: the first element is also the last."""
    return finder.find(finder.aligned((1,)), REDUCED) if finder.symbols else None


def hidden_sizes(finder: Finder, seed: int) -> list[Sizes]:
    """Return sizes inside the contract that the task does not name: random ones, or the captured ones with one random
    symbol. Aligned where the contract requires it. Empty for a task without symbols."""
    draw = random.Random(f"{seed} {finder.task.name} {finder.direction}")
    found: list[Sizes] = []
    for attempt in range(N_HIDDEN_TRIES if finder.symbols else 0):
        alignment = ALIGNMENTS[min(attempt // len(ALIGNMENTS), len(ALIGNMENTS) - 1)]
        drawn = {symbol.name: clamped(symbol, draw.choice(HIDDEN_SIZES), alignment) for symbol in finder.symbols}
        kept = draw.choice(finder.symbols).name
        sizes = drawn if attempt % 2 == 0 else {**finder.captured, kept: drawn[kept]}
        budget = POSSIBLE if attempt >= N_HIDDEN_TRIES // 2 and not found else HIDDEN
        if sizes not in found and finder.admits(sizes, budget):
            found.append(sizes)
        if len(found) == N_HIDDEN:
            break
    return found


def wide_sizes(finder: Finder) -> list[Sizes]:
    """Return sizes inside the contract with long rows, and with many rows. Empty for a task without symbols, and where
    all of them have too many elements."""

    def first_of(patterns: Sequence[tuple[int, ...]]) -> list[Sizes]:
        sizes = finder.find((sizes for pattern in patterns for sizes in finder.aligned(pattern)), WIDE)
        return [] if sizes is None else [sizes]

    symbols = finder.symbols
    found = distinct(sizes for group in _of_as_many(WIDE_PATTERNS, symbols) for sizes in first_of(group))
    for sizes in (sizes for patterns in _each_long(symbols) for sizes in first_of(patterns)):
        found += [] if _has_as_long(found, sizes) else [sizes]
    leading = [position for position, symbol in enumerate(symbols) if finder.freedom.leads(symbol)]
    nearly = (sizes for n in leading for sizes in first_of(_with_long(len(symbols), (n,), NEARLY_FULL)))
    return [*found, *distinct(nearly, found)]


def vast_sizes(finder: Finder, can_run: Callable[[Sizes], bool], max_elements: int = MAX_WIDE_ELEMENTS) -> Sizes | None:
    """Return one size with very many rows, or very many elements of a single row, within `max_elements` for any tensor.
    None where none can run."""
    patterns = _of_as_many(VAST_PATTERNS, finder.symbols)
    budget = Budget(min(MAX_VAST_ELEMENTS, 4 * max_elements), max_elements)
    tried = (sizes for pattern in patterns for sizes in finder.aligned(pattern) if finder.admits(sizes, budget))
    return next((sizes for sizes in tried if can_run(sizes)), None)


def far_sizes(finder: Finder, literals: Set[int], outcomes: Outcomes, known: Sequence[Sizes]) -> list[Sizes]:
    """Return sizes inside the contract with more elements than the largest of these constants, and sizes with outcomes
    that none of the `known` ones has. The executor runs a sample of the blocks there, the last one among them."""
    largest = sorted((n for n in literals if n <= LARGEST_FAR), reverse=True)
    tried = (sizes for literal in largest for sizes in with_elements(finder, beyond(literal)))
    found = list(itertools.islice(tried, 1))
    further = (sizes for n in FAR_ELEMENTS for sizes in with_elements(finder, n) if sizes not in found)
    return [*found, *with_new_outcomes(further, outcomes, known, MAX_FAR - len(found))]


def beyond(literal: int) -> int:
    """Return a size that exceeds the number by more than its last elements."""
    return literal + literal // 32 + 2


def with_elements(finder: Finder, n_wanted: int) -> Iterator[Sizes]:
    """Yield sizes inside the contract at which the largest result has `n_wanted` elements, through one dim each. Empty
    where the captured sizes have as many."""
    n_captured = max(n_results(finder.task, finder.direction, finder.captured), 1)
    for symbol in finder.symbols if n_captured < n_wanted else ():
        sizes = {**finder.captured, symbol.name: -(-symbol.captured * n_wanted // n_captured)}
        if finder.admits(sizes, FAR):
            yield sizes


def n_results(task: Task, kind: OperationKind, sizes: Sizes) -> int:
    """Return the elements of the largest output."""
    outputs = (output.type for output in graph_of(task, kind).outputs)
    return max((math.prod(shape_of(type_, sizes)) for type_ in outputs if type_ is not None), default=0)


def farthest_operations(finder: PlanFinder, known: Sequence[Sizes]) -> Iterator[Ladder]:
    """Yield, for each symbol and for all of them together, the operation at the contract's maximum and at smaller
    sizes, which are too large to compute. The other symbols are as small as at one of the `known` sizes."""
    names = [symbol.name for symbol in finder.task.symbols]
    for scaled in ([name] for name in names) if len(names) < 2 else (*([name] for name in names), names):
        yield _ladder(finder, known, scaled)


def _changing_the_rest(finder: Finder, found: Sequence[Sizes]) -> Iterator[Sizes]:
    """Yield multiples and parts of the captured size of each symbol that never changed so far: no pattern fits some
    contracts, e.g. `N % 1000 == 0` and `B * N == 6000`."""
    for symbol in finder.symbols:
        if any(sizes[symbol.name] != symbol.captured for sizes in found):
            continue
        changed = (
            {**finder.with_sizes(base, [symbol], multiple * symbol.captured // part), **other}
            for multiple, part in MULTIPLES
            for base in (*found[:1], finder.captured)
            for other in ({}, *_divided(finder.task, symbol, multiple, part))
        )
        sizes = finder.find((sizes for sizes in changed if sizes[symbol.name] != symbol.captured), REDUCED)
        if sizes is not None:
            yield sizes


def _divided(task: Task, symbol: Symbol, multiple: int, part: int) -> Iterator[Sizes]:
    """Yield each other symbol divided by the factor of this one."""
    for other in task.symbols:
        if other != symbol and other.captured * part % multiple == 0:
            yield {other.name: clamped(other, other.captured * part // multiple, 1)}


def _of_as_many(patterns: Sequence[Pattern], symbols: Sequence[Symbol]) -> Pattern:
    """Return the patterns for as many symbols."""
    return patterns[min(len(symbols), len(patterns) - 1)]


def _has_as_long(found: Sequence[Sizes], sizes: Sizes) -> bool:
    """Check whether a found size is as long in the symbol that is longest here."""
    longest = max(sizes, key=lambda name: sizes[name])
    return any(other[longest] >= sizes[longest] for other in found)


def _each_long(symbols: Sequence[Symbol]) -> list[list[tuple[int, ...]]]:
    """Return patterns for each of several symbols alone, and for those with equal captured sizes together."""
    if len(symbols) < 2:
        return []
    alike = [tuple(n for n, other in enumerate(symbols) if other.captured == each.captured) for each in symbols]
    together = [each for each in dict.fromkeys(alike) if 1 < len(each) < len(symbols)]
    return [_with_long(len(symbols), long) for long in [*((n,) for n in range(len(symbols))), *together]]


def _with_long(n_symbols: int, positions: Sequence[int], lengths: Sequence[int] = LONG_ALONE) -> list[tuple[int, ...]]:
    """Return patterns with these symbols long and the others small, as far as the dims that are no symbols allow."""
    return [tuple(size if n in positions else other for n in range(n_symbols)) for other in (2, 1) for size in lengths]


def _ladder(finder: PlanFinder, known: Sequence[Sizes], scaled: Sequence[str]) -> Ladder:
    farthest = _farthest(finder, known, scaled)
    if farthest is None:
        return
    largest = max(_n_scaled(sizes, scaled) for sizes in known)
    factor, base = farthest
    for step in FARTHEST_STEPS:
        factor //= step
        sizes = _scaled(base, scaled, factor)
        if factor < 1 or _n_scaled(sizes, scaled) < MIN_FACTOR * largest:
            return
        if _can_launch(finder, sizes):
            yield finder.bind(sizes)


def _farthest(finder: PlanFinder, known: Sequence[Sizes], scaled: Sequence[str]) -> tuple[int, Sizes] | None:
    """Return the largest power of two by which these symbols of one of the sizes may be multiplied."""
    others = [symbol.name for symbol in finder.symbols if symbol.name not in scaled]
    for base in sorted(known, key=lambda sizes: _n_scaled(sizes, others)):
        factor = FARTHEST.elements
        while factor > 1:
            if _can_launch(finder, _scaled(base, scaled, factor)):
                return factor, base
            factor //= 2
    return None


def _scaled(sizes: Sizes, scaled: Sequence[str], factor: int) -> Sizes:
    return {name: size * factor if name in scaled else size for name, size in sizes.items()}


def _n_scaled(sizes: Sizes, scaled: Sequence[str]) -> int:
    return math.prod(sizes[name] for name in scaled)


def _can_launch(finder: PlanFinder, sizes: Sizes) -> bool:
    is_bounded = all(symbol.maximum is None or sizes[symbol.name] <= symbol.maximum for symbol in finder.symbols)
    return is_bounded and finder.fits(sizes, FARTHEST) and finder.can_bind(sizes)
