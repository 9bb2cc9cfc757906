"""Prefetch reads, so that a kernel waits for memory once instead of once per stage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernel_lsp.generate.codegen.operators import ADD
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.ir.index import Variable
from kernel_lsp.generate.ir.scalar import Access, Scalar
from kernel_lsp.generate.ir.scalar_walk import accesses, indirect_scalars


def reads_ahead(scalars: Sequence[Scalar], known: Iterable[Variable]) -> list[Access]:
    """Return the reads whose address depends on `known` alone, in a stable order. Reads under a mask are left out but
    for single elements, and so are reads at an index that is itself read."""
    within = frozenset(known)
    found = [
        access
        for access in accesses(*scalars)
        if access.variables <= within
        and (access.mask is None or not access.variables)
        and not any(True for index in access.index for _ in indirect_scalars(index))
    ]
    return sorted(found, key=lambda access: (access.tensor.serial, access.digest))


def prefetch(scope: Scope, reads: Iterable[Access]) -> None:
    """Prefetch elements of tensors in memory."""
    for access in reads:
        scope.kernel.use("prefetch")
        pointer, at = scope.kernel.pointer(access.tensor), scope.offset(access.tensor, access.index)
        scope.line(f"prefetch({pointer});" if at.text == "0" else f"prefetch({pointer} + {at.within(ADD)});")
