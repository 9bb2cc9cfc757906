"""Sizes that are too far away to compute anything there: as much as a contract allows of one dim, or of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.verify.model.cases import OperationKind, Sizes, captured_sizes, is_usable
from kernel_lsp.verify.model.resolved_kernel import Prepared

Ladder = Iterator[BoundOperation]
"""The same operation, nearer with each step."""
MAX_ELEMENTS = 1 << 30
"""Of all inputs and outputs: four gigabytes of floats, of which only what the blocks touch is ever in memory."""
STEPS = (1, 16, 16, 16)
"""Parts of the farthest size, one of the other: nearer ones for kernels of whose blocks each does a lot there."""
MIN_FACTOR = 4
"""Of the largest of the known sizes: nearer than that everything is computed."""


def farthest_operations(prepared: Prepared, kind: OperationKind, known: Sequence[Sizes]) -> Iterator[Ladder]:
    """For each symbol, and for all of them together, the operation as far away as the contract allows, and nearer. The
    other symbols are as small as they are at one of the `known` sizes."""
    names = [symbol.name for symbol in prepared.task.symbols]
    for scaled in ([name] for name in names) if len(names) < 2 else (*([name] for name in names), names):
        yield _ladder(prepared, kind, known, scaled)


# --- below


def _ladder(prepared: Prepared, kind: OperationKind, known: Sequence[Sizes], scaled: Sequence[str]) -> Ladder:
    farthest = _farthest(prepared, kind, known, scaled)
    if farthest is None:
        return
    largest = max(_n_scaled(sizes, scaled) for sizes in known)
    factor, base = farthest
    for step in STEPS:
        factor //= step
        sizes = _scaled(base, scaled, factor)
        if factor < 1 or _n_scaled(sizes, scaled) < MIN_FACTOR * largest:
            return
        if _is_possible(prepared, kind, sizes):
            yield prepared.bind(kind, sizes)


def _farthest(
    prepared: Prepared, kind: OperationKind, known: Sequence[Sizes], scaled: Sequence[str]
) -> tuple[int, Sizes] | None:
    """The largest power of two by which these symbols of one of the sizes may be multiplied."""
    others = [name for name in captured_sizes(prepared.task) if name not in scaled]
    for base in sorted(known, key=lambda sizes: _n_scaled(sizes, others)):
        factor = MAX_ELEMENTS
        while factor > 1:
            if _is_possible(prepared, kind, _scaled(base, scaled, factor)):
                return factor, base
            factor //= 2
    return None


def _scaled(sizes: Sizes, scaled: Sequence[str], factor: int) -> Sizes:
    return {name: size * factor if name in scaled else size for name, size in sizes.items()}


def _n_scaled(sizes: Sizes, scaled: Sequence[str]) -> int:
    n = 1
    for name in scaled:
        n *= sizes[name]
    return n


def _is_possible(prepared: Prepared, kind: OperationKind, sizes: Sizes) -> bool:
    if any(symbol.maximum is not None and sizes[symbol.name] > symbol.maximum for symbol in prepared.task.symbols):
        return False
    if not is_usable(prepared.task, kind, sizes, MAX_ELEMENTS, or_as_captured=False):
        return False
    return prepared.can_bind(kind, sizes)
