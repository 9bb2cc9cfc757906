"""Choose sizes with long rows, and with many rows, for errors that small sizes do not expose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from kernel_lsp.core.expression import ExpressionError
from kernel_lsp.core.task import Graph, Symbol, Task
from kernel_lsp.verify.model.cases import OperationKind, Sizes, graph_of, is_usable, n_elements, shape_of
from kernel_lsp.verify.probes.small_sizes import ALL_FREE, Freedom, aligned_sizes

WIDE_OF_ONE = (((70_001,),), ((2_048,),))
WIDE_OF_TWO = (
    ((1, 70_001), (1, 20_011), (37, 4_099), (9, 2_053)),
    ((16_411, 19), (16_411, 7), (4_099, 7)),
    ((5, 2_048), (5, 1_024)),
)
WIDE_OF_MORE = (
    ((37, 4_099, 17, 3), (9, 2_053, 7, 2)),
    ((16_411, 7, 3, 2), (4_099, 7, 3, 2)),
    ((2, 2_048, 3, 2),),
)
"""Groups of sizes for tasks with one symbol, two, and more; of each group the first inside the contract is taken. A row
of 20,000 exceeds registers and default shared memory, 300,000 elements exceed most fixed grids, and past 65,536 a
16-bit index wraps. Multiples of a thousand would leave no remainder for a last tile. With more symbols one is often a
sequence length, with whose square the work grows. Numbers of rows are below 65,536, a grid's limit along y."""
NEARLY_FULL = (1_023, 511, 255)
"""Sizes of each symbol, with twos or ones for the others: the last tile of any power of two lacks one element."""
WIDE_ALONE = (4_099, 2_053, 1_031, 521)
"""Sizes of one of several symbols, with twos or ones for the others, or of those with equal captured sizes together
(the lengths of query and key). Where heads or channels are no symbols, the others are not small enough, and any symbol
may be a sequence length."""
MAX_VAST_HERE = 1 << 21
"""Maximum elements of any tensor of a very large case on the executor: ten instructions for each take about 1 s."""
VAST_OF_ONE = ((1_100_003,),)
VAST_OF_TWO = ((70_001, 3), (65_521, 3))
VAST_OF_MORE = ((35_003, 2, 3, 1), (35_003, 2, 1, 3), (32_749, 2, 3, 1), (32_749, 2, 1, 3))
"""More rows than 16 bits count, or more than a million elements, which two levels of 1,024 threads cover. A plan with
rows along the grid's second dim has at most 65,535."""
MAX_VAST_ELEMENTS = 1 << 24
MAX_WIDE_ELEMENTS = 1 << 26
"""Maximum elements of any intermediate: an outer product of a long row exceeds PyTorch's memory."""


def wide_sizes(
    task: Task, operation: OperationKind, holds: Callable[[Sizes], bool], freedom: Freedom = ALL_FREE
) -> list[Sizes]:
    """Return sizes inside the contract with long rows, and with many rows. Empty for a task without symbols, and where
    all of them have too many elements."""

    def first_of(patterns: Sequence[tuple[int, ...]]) -> Sizes | None:
        tried = (sizes for pattern in patterns for sizes in aligned_sizes(task, pattern, freedom))
        usable = (s for s in tried if is_usable(task, operation, s, or_as_captured=False) and holds(s))
        return next((s for s in usable if n_largest(graph_of(task, operation), s) <= MAX_WIDE_ELEMENTS), None)

    found: list[Sizes] = []
    for sizes in map(first_of, ((), WIDE_OF_ONE, WIDE_OF_TWO, WIDE_OF_MORE)[min(len(task.symbols), 3)]):
        if sizes is not None and sizes not in found:
            found.append(sizes)
    for sizes in map(first_of, _each_long(task.symbols)):
        if sizes is not None and not _has_as_long(found, sizes):
            found.append(sizes)
    for position in (n for n, symbol in enumerate(task.symbols) if freedom.leads(symbol)):
        sizes = first_of(_with_long(len(task.symbols), (position,), NEARLY_FULL))
        if sizes is not None and sizes not in found:
            found.append(sizes)
    return found


def vast_sizes(
    task: Task,
    operation: OperationKind,
    can_run: Callable[[Sizes], bool],
    freedom: Freedom = ALL_FREE,
    max_elements: int = MAX_WIDE_ELEMENTS,
) -> list[Sizes]:
    """Return one size with very many rows, or very many elements of a single row, within `max_elements` for any tensor.
    Empty where none can run."""
    for pattern in ((), VAST_OF_ONE, VAST_OF_TWO, VAST_OF_MORE)[min(len(task.symbols), 3)]:
        for sizes in aligned_sizes(task, pattern, freedom):
            if (
                is_usable(task, operation, sizes, min(MAX_VAST_ELEMENTS, 4 * max_elements), or_as_captured=False)
                and n_largest(graph_of(task, operation), sizes) <= max_elements
                and can_run(sizes)
            ):
                return [sizes]
    return []


def n_largest(graph: Graph, sizes: Sizes) -> int:
    """Return the elements of the largest tensor that the graph computes."""
    largest = 0
    for type_ in (type_ for node in graph.nodes for type_ in node.types if type_ is not None):
        with suppress(ExpressionError):  # e.g. a size that depends on values
            largest = max(largest, n_elements(shape_of(type_, sizes)))
    return largest


# --- below: patterns


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


def _with_long(n_symbols: int, positions: Sequence[int], lengths: Sequence[int] = WIDE_ALONE) -> list[tuple[int, ...]]:
    """Return patterns with these symbols long and the others small, as far as the dims that are no symbols allow."""
    return [tuple(size if n in positions else other for n in range(n_symbols)) for other in (2, 1) for size in lengths]
