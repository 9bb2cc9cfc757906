"""Choose small sizes at which every launch of a plan has several blocks, by each dim that its grid grows with. Races
between blocks are searched in small cases, where a block of thousands of elements would be alone.

Plans are bound for it, nothing runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kernel_lsp.core.task import Symbol
from kernel_lsp.errors import PlanError
from kernel_lsp.verify.cpu.run_files import MAX_WATCHED_BYTES
from kernel_lsp.verify.model.cases import Sizes, clamped
from kernel_lsp.verify.probes.finder import Budget, PlanFinder, distinct

MAX_CASES = 2
FEW = Budget(1 << 18, 1 << 22)
"""A block takes at most some ten thousand elements. Intermediates are approximately a product's multiplications: some
50 million instructions."""
LARGEST_SIZE = 1 << 17
BOUND = Budget(LARGEST_SIZE << 10, or_captured=True)
ALIGNMENTS = (4, 32, 256)
"""Alignments of sizes, in addition to one and the captured size, where the contract has no others."""
N_SEVERAL = 3
"""Blocks along one dim: a full one in the middle, and a partial one at the end."""
N_ENOUGH = 2

Goal = tuple[int, str | None]
"""A launch by its line, and the symbol by which it has several blocks; None where the launch need only be made."""


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
            if not self.finder.admits(sizes, BOUND):
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
    for unit in dict.fromkeys((1, *ALIGNMENTS, symbol.captured)):
        ladder = [{**base, symbol.name: size} for size in _rungs(symbol, unit)]
        made = [(sizes, grids.at(sizes)[line]) for sizes in ladder if line in grids.at(sizes)]
        if not made or made[-1][0][symbol.name] <= LARGEST_SIZE // 2:
            continue
        fewest = min(n for _, n in made)
        enough = next((sizes for sizes, n in made if n >= N_SEVERAL * fewest), None)
        if enough is None or any(_n_by(grids, line, symbol, sizes, made) >= N_ENOUGH for sizes in watched):
            return None
        least = (_least(grids, line, symbol, enough, by, N_SEVERAL * fewest) for by in (unit, *ALIGNMENTS))
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
    return each[:MAX_CASES]


def _is_cheap(finder: PlanFinder, sizes: Sizes) -> bool:
    return finder.fits(sizes, FEW) and _is_small(finder, sizes)


def _is_small(finder: PlanFinder, sizes: Sizes) -> bool:
    """Check whether the case is small enough to be watched for races."""
    try:
        tensors = finder.bind(sizes).tensors
    except PlanError:
        return False
    return sum(tensor.n_bytes for tensor in tensors if tensor.role != "input") <= MAX_WATCHED_BYTES
