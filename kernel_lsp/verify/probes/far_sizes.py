"""Choose sizes of many million elements, for a candidate whose code depends on them: beyond large constants in its
text, and for outcomes of launch-uniform predicates that occur at no cheaper size.

The executor runs a sample of the blocks there, the last one among them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence, Set

from kernel_lsp.core.task import Task
from kernel_lsp.verify.model.cases import (
    OperationKind,
    Sizes,
    captured_sizes,
    graph_of,
    is_usable,
    shape_of,
)
from kernel_lsp.verify.model.resolved_kernel import Prepared

LARGEST_FAR = 1 << 25
MAX_ELEMENTS = 80_000_000
"""Maximum elements of all inputs and outputs: 1 to 2 s for PyTorch."""
TRIED = tuple(n + n // 16 for n in (1 << 22, 1 << 23, 1 << 24, LARGEST_FAR))
"""Elements of the largest result that are tried."""
MAX_FOUND = 2

Outcomes = Callable[[Sizes], Set[tuple[object, ...]]]


def far_sizes(
    prepared: Prepared, kind: OperationKind, literals: Set[int], outcomes: Outcomes, known: Sequence[Sizes]
) -> list[Sizes]:
    """Return sizes inside the contract with more elements than the largest of these constants, and sizes with outcomes
    that none of the `known` ones has."""
    found: list[Sizes] = []
    for literal in sorted((n for n in literals if n <= LARGEST_FAR), reverse=True):
        found += _first(with_elements(prepared, kind, beyond(literal))) if not found else []
    seen = set().union(*(outcomes(sizes) for sizes in known))
    for n in TRIED:
        for sizes in with_elements(prepared, kind, n) if len(found) < MAX_FOUND else ():
            new = outcomes(sizes) - seen
            seen |= new
            found += [sizes] if new and sizes not in found else []
    return found[:MAX_FOUND]


def beyond(literal: int) -> int:
    """Return a size that exceeds the number by more than its last elements."""
    return literal + literal // 32 + 2


def with_elements(prepared: Prepared, kind: OperationKind, n_wanted: int) -> Iterator[Sizes]:
    """Yield sizes inside the contract at which the largest result has `n_wanted` elements, through one dim each. Empty
    where the captured sizes have as many."""
    task, captured = prepared.task, captured_sizes(prepared.task)
    n_captured = max(n_results(task, kind, captured), 1)
    for symbol in task.symbols if n_captured < n_wanted else ():
        sizes = {**captured, symbol.name: -(-symbol.captured * n_wanted // n_captured)}
        if is_usable(task, kind, sizes, MAX_ELEMENTS) and prepared.holds(kind, sizes):
            yield sizes


def n_results(task: Task, kind: OperationKind, sizes: Sizes) -> int:
    """Return the elements of the largest output."""
    outputs = (output.type for output in graph_of(task, kind).outputs)
    return max((math.prod(shape_of(type_, sizes)) for type_ in outputs if type_ is not None), default=0)


# --- below


def _first(some: Iterator[Sizes]) -> list[Sizes]:
    return [sizes for sizes, _ in zip(some, range(1), strict=False)]
