"""Small, long, many, far and farthest sizes inside a contract, each kind a few patterns for one finder; and small sizes
at which every launch of a plan has several blocks, by each dim that its grid grows with. Races between blocks are
searched in small cases, where a block of thousands of elements would be alone. Plans are bound for it, nothing runs.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeVar

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import Symbol, Task
from kernel_lsp.errors import PlanError
from kernel_lsp.verify.cpu.run_files import MAX_WATCHED_BYTES
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

MAX_SEVERAL = 2
FEW = Budget(1 << 18, 1 << 22)
"""A block takes at most some ten thousand elements. Intermediates are approximately a product's multiplications: some
50 million instructions."""
LARGEST_SIZE = 1 << 17
SEVERAL_BOUND = Budget(LARGEST_SIZE << 10, or_captured=True)
SEVERAL_ALIGNMENTS = (4, 32, 256)
"""Alignments of sizes, in addition to one and the captured size, where the contract has no others."""
N_SEVERAL = 3
"""Blocks along one dim: a full one in the middle, and a partial one at the end."""
N_ENOUGH = 2

Pattern = TypeVar("Pattern")
Outcomes = Callable[[Sizes], Set[tuple[object, ...]]]
Ladder = Iterator[BoundOperation]
"""One operation at ever smaller sizes."""
Goal = tuple[int, str | None]
"""A launch by its line, and the symbol by which it has several blocks; None where the launch need only be made."""


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


@dataclass
class _Grids:
    """The plan's launches, bound once for each size."""

    finder: PlanFinder
    known: dict[tuple[int, ...], Mapping[int, int]] = field(default_factory=dict)

    def at(self, sizes: Sizes) -> Mapping[int, int]:
        """Return the blocks by the line of the launch; empty outside the contract."""
        key = tuple(sizes.values())
        if key not in self.known:
            self.known[key] = self._bound(sizes)
        return self.known[key]

    def _bound(self, sizes: Sizes) -> Mapping[int, int]:
        try:
            if not self.finder.admits(sizes, SEVERAL_BOUND):
                return {}
            return self.finder.blocks_by_line(sizes)
        except PlanError:
            return {}


def several_blocks_sizes(finder: PlanFinder, watched: Sequence[Sizes], known: Sequence[Sizes]) -> list[Sizes]:
    """Return sizes inside the contract for the launches that have several blocks at none of the `watched` ones, by a
    dim that gives them more. Launches are those of the `known` sizes. Empty where nothing is missing or all would be
    large."""
    grids, watched = _Grids(finder), [sizes for sizes in watched if _is_small(finder, sizes)]
    found: dict[Goal, Sizes] = {}
    for line, base in _bases(grids, known).items():
        alone: list[Sizes] = [] if any(line in grids.at(sizes) for sizes in watched) else [base]
        if alone and _is_cheap(finder, base):
            found[line, None] = base
        for symbol in finder.task.symbols:
            larger = _with_several(grids, line, symbol, base, [*watched, *alone])
            if larger is not None and _is_cheap(finder, larger):
                found[line, symbol.name] = larger
    return _few(finder, grids, found)


def _bases(grids: _Grids, known: Iterable[Sizes]) -> dict[int, Sizes]:
    """Return the smallest sizes at which each launch is made."""
    bases: dict[int, Sizes] = {}
    for sizes in sorted(known, key=lambda sizes: math.prod(sizes.values())):
        for line in grids.at(sizes):
            bases.setdefault(line, sizes)
    return bases


def _with_several(grids: _Grids, line: int, symbol: Symbol, base: Sizes, watched: Sequence[Sizes]) -> Sizes | None:
    """Return the base with the smallest size of the symbol that multiplies the launch's fewest blocks by `N_SEVERAL`.
    None where none does, and where a watched one has as many."""
    for unit in dict.fromkeys((1, *SEVERAL_ALIGNMENTS, symbol.captured)):
        ladder = [{**base, symbol.name: size} for size in _rungs(symbol, unit)]
        made = [(sizes, grids.at(sizes)[line]) for sizes in ladder if line in grids.at(sizes)]
        if not made or made[-1][0][symbol.name] <= LARGEST_SIZE // 2:
            continue
        fewest = min(n for _, n in made)
        enough = next((sizes for sizes, n in made if n >= N_SEVERAL * fewest), None)
        if enough is None or any(_n_by(grids, line, symbol, sizes, made) >= N_ENOUGH for sizes in watched):
            return None
        least = (_least(grids, line, symbol, enough, by, N_SEVERAL * fewest) for by in (unit, *SEVERAL_ALIGNMENTS))
        return min(least, key=lambda sizes: sizes[symbol.name])
    return None


def _n_by(grids: _Grids, line: int, symbol: Symbol, sizes: Sizes, made: Sequence[tuple[Sizes, int]]) -> float:
    """Return the launch's blocks as a multiple of those at the symbol's smallest size."""
    n = grids.at(sizes).get(line, 0)
    smaller = (grids.at({**sizes, symbol.name: other[symbol.name]}).get(line, 0) for other, _ in made)
    fewest = min((m for m in smaller if m), default=n)
    return n / fewest if n else 0.0


def _rungs(symbol: Symbol, alignment: int) -> Iterator[int]:
    size, last = alignment, 0
    while size <= LARGEST_SIZE:
        rung = clamped(symbol, size, alignment)
        if rung != last:
            yield rung
        size, last = 2 * size, rung


def _least(grids: _Grids, line: int, symbol: Symbol, enough: Sizes, alignment: int, n_wanted: int) -> Sizes:
    """Return the smallest size with that many blocks, between half of a size and itself, assuming that blocks grow with
    it."""
    low, high = enough[symbol.name] // 2 // alignment, enough[symbol.name] // alignment
    best = enough
    while high - low > 1:
        middle = (low + high) // 2
        sizes = {**enough, symbol.name: middle * alignment}
        if grids.at(sizes).get(line, 0) >= n_wanted:
            high, best = middle, sizes
        else:
            low = middle
    return best


def _few(finder: PlanFinder, grids: _Grids, found: Mapping[Goal, Sizes]) -> list[Sizes]:
    """Return one size for all launches if one is as cheap as a small case, else one for each."""
    each = distinct(found.values())
    if len(each) > 1:
        together = {name: max(sizes[name] for sizes in each) for name in each[0]}
        lines = {line for line, _ in found}
        if lines <= grids.at(together).keys() and _is_cheap(finder, together):
            return [together]
    return each[:MAX_SEVERAL]


def _is_cheap(finder: PlanFinder, sizes: Sizes) -> bool:
    return finder.fits(sizes, FEW) and _is_small(finder, sizes)


def _is_small(finder: PlanFinder, sizes: Sizes) -> bool:
    """Check whether the case is small enough to be watched for races."""
    try:
        tensors = finder.bind(sizes).tensors
    except PlanError:
        return False
    return sum(tensor.n_bytes for tensor in tensors if tensor.role != "input") <= MAX_WATCHED_BYTES
