"""Sizes with long rows, and with many: what small sizes do not show of a kernel."""

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
"""For tasks with one symbol, two, and more: of each group the first inside the contract. A row of 20,000 is longer than
what threads hold in registers and in the shared memory that nobody asks for, 300,000 elements are more than most fixed
grids take, and past 65,536 a 16-bit index wraps. A whole number of thousands has no rest for a last piece. Where there
are more symbols one of them is often the length of a sequence, with whose square the work grows. Numbers of rows are
below 65,536, which is a grid's limit along y."""
NEARLY_FULL = (1_023, 511, 255)
"""Of each symbol, beside twos or ones: the last tile, whatever power of two it has, lacks one element."""
WIDE_ALONE = (4_099, 2_053, 1_031, 521)
"""Of each of several symbols, beside twos or ones, and of those together that were captured alike (a query's length and
a key's): where heads or channels are no symbols none of the others is small enough, and any may be a sequence's."""
MAX_VAST_HERE = 1 << 21
"""Elements of any tensor of a vast case that the executor runs: some ten instructions for each are a second."""
VAST_OF_ONE = ((1_100_003,),)
VAST_OF_TWO = ((70_001, 3), (65_521, 3))
VAST_OF_MORE = ((35_003, 2, 3, 1), (35_003, 2, 1, 3), (32_749, 2, 3, 1), (32_749, 2, 1, 3))
"""More rows than 16 bits count, or more than a million elements, which two levels of 1,024 threads take. A plan with
rows along the grid's second dim has no more than 65,535."""
MAX_VAST_ELEMENTS = 1 << 24
MAX_WIDE_ELEMENTS = 1 << 26
"""Of any tensor in between: what an outer product of a long row would be is more than PyTorch has memory for."""


def wide_sizes(
    task: Task, operation: OperationKind, holds: Callable[[Sizes], bool], freedom: Freedom = ALL_FREE
) -> list[Sizes]:
    """Sizes inside the contract with long rows, and with many. Empty for a task without symbols, and where all of them
    have too many elements."""

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
    """Sizes with many rows, or elements of a single one, and no more elements in any tensor: one, or none where none
    can be run."""
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
    """Elements of the largest tensor that the graph makes."""
    largest = 0
    for type_ in (type_ for node in graph.nodes for type_ in node.types if type_ is not None):
        with suppress(ExpressionError):  # e.g. a size that depends on values
            largest = max(largest, n_elements(shape_of(type_, sizes)))
    return largest


# --- below: patterns


def _has_as_long(found: Sequence[Sizes], sizes: Sizes) -> bool:
    """Whether one of those that were found is as long in the symbol that is longest here."""
    longest = max(sizes, key=lambda name: sizes[name])
    return any(other[longest] >= sizes[longest] for other in found)


def _each_long(symbols: Sequence[Symbol]) -> list[list[tuple[int, ...]]]:
    """Of several symbols each alone, and those together that were captured alike: patterns to try for each."""
    if len(symbols) < 2:
        return []
    alike = [tuple(n for n, other in enumerate(symbols) if other.captured == each.captured) for each in symbols]
    together = [each for each in dict.fromkeys(alike) if 1 < len(each) < len(symbols)]
    return [_with_long(len(symbols), long) for long in [*((n,) for n in range(len(symbols))), *together]]


def _with_long(n_symbols: int, positions: Sequence[int], lengths: Sequence[int] = WIDE_ALONE) -> list[tuple[int, ...]]:
    """These symbols long and the others small, as far as the dims that are no symbols allow."""
    return [tuple(size if n in positions else other for n in range(n_symbols)) for other in (2, 1) for size in lengths]
