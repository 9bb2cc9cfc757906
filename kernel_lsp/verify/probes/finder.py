"""Find sizes inside a contract and a budget. Every probe of sizes searches by it.

finder.find(finder.aligned((1, 70_001)), WIDE)   # the first that the contract and the budget admit
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from kernel_lsp.core.plan import BoundOperation, Operation
from kernel_lsp.core.task import Graph, Symbol, Task
from kernel_lsp.verify.model.cases import (
    ALIGNMENTS,
    OperationKind,
    Sizes,
    captured_sizes,
    clamped,
    graph_of,
    is_usable,
    n_largest,
)
from kernel_lsp.verify.model.resolved_kernel import Prepared

OTHER_SIZES = (7, 1, 12, 32, 64, 256)
"""Sizes tried to see whether a symbol may differ from the captured size."""
MAX_TIED = 4
"""Maximum symbols of one common size, e.g. the lengths of queries, keys and values."""


@dataclass(frozen=True)
class Budget:
    """Maximum elements of all inputs and outputs together, and of any intermediate. `or_captured`: as many as at the
    captured sizes, where those have more, since weights do not shrink."""

    elements: int
    intermediate: int | None = None
    or_captured: bool = False


MAX_WIDE_ELEMENTS = 1 << 26
"""Maximum elements of any intermediate: an outer product of a long row exceeds PyTorch's memory."""
REDUCED = Budget(1 << 20, or_captured=True)
CHEAP = Budget(1 << 18)
ROWS = Budget(1 << 16)
"""Few rows of the captured length, and many short ones."""
HIDDEN = Budget(1 << 22)
POSSIBLE = Budget(1 << 22, or_captured=True)
COMPUTABLE = Budget(1 << 22, MAX_WIDE_ELEMENTS, or_captured=True)
"""Excludes all pairs of a long sequence's elements, too."""
WIDE = Budget(1 << 20, MAX_WIDE_ELEMENTS)
FAR = Budget(80_000_000, or_captured=True)
"""1 to 2 s for PyTorch."""
FARTHEST = Budget(1 << 30)
"""4 GiB of floats. Nothing is computed, so only touched pages occupy memory."""


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


@dataclass(frozen=True)
class Finder:
    """Finds sizes for one direction of a task. `holds` is the contract."""

    task: Task
    direction: OperationKind
    holds: Callable[[Sizes], bool]

    @property
    def symbols(self) -> Sequence[Symbol]:
        return self.task.symbols

    @property
    def graph(self) -> Graph:
        return graph_of(self.task, self.direction)

    @cached_property
    def captured(self) -> Sizes:
        return captured_sizes(self.task)

    def admits(self, sizes: Sizes, budget: Budget) -> bool:
        """Check that the sizes are inside the contract, and their tensors inside the budget."""
        return self.fits(sizes, budget) and self.holds(sizes)

    def fits(self, sizes: Sizes, budget: Budget) -> bool:
        """Check that the tensors at these sizes are inside the budget."""
        if not is_usable(self.task, self.direction, sizes, budget.elements, budget.or_captured):
            return False
        return budget.intermediate is None or n_largest(self.graph, sizes) <= budget.intermediate

    def find(self, tried: Iterable[Sizes], budget: Budget) -> Sizes | None:
        """Return the first of the sizes that is admitted."""
        return next((sizes for sizes in tried if self.admits(sizes, budget)), None)

    def small(self, size: int, alignment: int = 1) -> Sizes:
        """Return one size for every symbol, as far as their bounds allow."""
        return {symbol.name: clamped(symbol, size, alignment) for symbol in self.symbols}

    def with_sizes(self, base: Sizes, symbols: Iterable[Symbol], size: int, alignment: int = 1) -> Sizes:
        """Return the base with one size for each of these symbols."""
        return {**base, **{symbol.name: clamped(symbol, size, alignment) for symbol in symbols}}

    def aligned_with(self, symbols: Sequence[Symbol], size: int, others: int) -> Iterator[Sizes]:
        """Yield these symbols large and the others small, each aligned."""
        for alignment in ALIGNMENTS:
            yield self.with_sizes(self.small(others, alignment), symbols, size, alignment)

    def aligned(self, pattern: Sequence[int]) -> Iterator[Sizes]:
        """Yield the pattern's sizes for the symbols, in their order, each aligned and inside its bounds. First as the
        contract's freedom allows, then for all symbols, which may be coupled in some other way."""
        for known in (self.freedom, ALL_FREE) if self.freedom != ALL_FREE else (ALL_FREE,):
            for alignment in ALIGNMENTS:
                sizes = {
                    symbol.name: clamped(symbol, pattern[position % len(pattern)], alignment)
                    for position, symbol in enumerate(self.symbols)
                }
                yield {name: known.held.get(name, sizes[known.tied.get(name, name)]) for name in sizes}

    @cached_property
    def freedom(self) -> Freedom:
        """Return the freedom that the contract leaves, as far as a few other sizes show."""
        bound = [symbol for symbol in self.symbols if not self._may_change(symbol)]
        tied: dict[str, str] = {}
        for n in range(2, min(len(bound), MAX_TIED) + 1):
            for group in itertools.combinations(bound, n):
                is_new = not any(symbol.name in tied for symbol in group)
                if is_new and len({symbol.captured for symbol in group}) == 1 and self._may_change(*group):
                    tied |= {symbol.name: group[0].name for symbol in group}
        return Freedom({symbol.name: symbol.captured for symbol in bound if symbol.name not in tied}, tied)

    def _may_change(self, *symbols: Symbol) -> bool:
        own = symbols[0].captured
        others = (size for size in dict.fromkeys((*OTHER_SIZES, 2 * own, own // 2)) if size != own)
        changed = (self.with_sizes(self.captured, symbols, size) for size in others)
        return self.find((sizes for sizes in changed if sizes != self.captured), REDUCED) is not None


@dataclass(frozen=True)
class PlanFinder(Finder):
    """Finds sizes inside the contract of one direction of a plan, and returns what the plan does at them."""

    prepared: Prepared

    @property
    def operation(self) -> Operation:
        return self.prepared.operation(self.direction)

    def is_possible(self, sizes: Sizes) -> bool:
        """Check that a case of these sizes may run anywhere."""
        return self.admits(sizes, POSSIBLE)

    def bind(self, sizes: Sizes) -> BoundOperation:
        return self.prepared.bind(self.direction, sizes)

    def can_bind(self, sizes: Sizes) -> bool:
        return self.prepared.can_bind(self.direction, sizes)

    def decisions(self, sizes: Sizes) -> tuple[str, ...]:
        return self.prepared.decisions(self.direction, sizes)

    def blocks_by_line(self, sizes: Sizes) -> dict[int, int]:
        return self.prepared.blocks_by_line(self.direction, sizes)


def finder_of(prepared: Prepared, direction: OperationKind) -> PlanFinder:
    """Return the finder inside a plan's contract."""
    return PlanFinder(prepared.task, direction, lambda sizes: prepared.holds(direction, sizes), prepared)


def with_new_outcomes(
    tried: Iterable[Sizes],
    outcomes_at: Callable[[Sizes], Set[tuple[object, ...]]],
    known: Sequence[Sizes],
    n_wanted: int,
) -> list[Sizes]:
    """Return the first of the sizes with an outcome that neither the `known` ones have nor those before."""
    seen, found = set[tuple[object, ...]]().union(*map(outcomes_at, known)), list[Sizes]()
    for sizes in tried if n_wanted > 0 else ():
        new = outcomes_at(sizes) - seen
        seen |= new
        found += [sizes] if new else []
        if len(found) == n_wanted:
            break
    return found


def distinct(some: Iterable[Sizes], known: Iterable[Sizes] = ()) -> list[Sizes]:
    """Return the sizes once each, without the `known` ones."""
    found: list[Sizes] = []
    excluded = list(known)
    for sizes in some:
        if sizes not in found and sizes not in excluded:
            found.append(sizes)
    return found
