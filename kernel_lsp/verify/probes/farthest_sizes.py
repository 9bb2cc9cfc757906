"""Choose sizes that are too large to compute: the contract's maximum of one dim, or of all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.verify.model.cases import OperationKind, Sizes, captured_sizes, is_usable
from kernel_lsp.verify.model.resolved_kernel import Prepared

Ladder = Iterator[BoundOperation]
"""One operation at ever smaller sizes."""
MAX_ELEMENTS = 1 << 30
"""Maximum elements of all inputs and outputs: 4 GiB of floats, of which only touched pages occupy memory."""
STEPS = (1, 16, 16, 16)
"""Divisors from each size to the next smaller one: smaller sizes serve kernels whose blocks do a lot at large ones."""
MIN_FACTOR = 4
"""Minimum factor to the largest of the known sizes: below it everything is computed."""


def farthest_operations(prepared: Prepared, kind: OperationKind, known: Sequence[Sizes]) -> Iterator[Ladder]:
    """Yield, for each symbol and for all of them together, the operation at the contract's maximum and at smaller
    sizes. The other symbols are as small as at one of the `known` sizes."""
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
    """Return the largest power of two by which these symbols of one of the sizes may be multiplied."""
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
