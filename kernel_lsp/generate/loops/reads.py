"""Replace what a loop reads of other tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kernel_lsp.generate.ir.scalar import Scalar, accesses, rewrite
from kernel_lsp.generate.ir.tensor import LoopTensor, StepLoop


def loop_over(loop: StepLoop, rewritten: Callable[[Scalar], Scalar]) -> StepLoop:
    """Return the loop over other tensors beside its own."""
    own = {tensor for entry in loop.tensors for tensor in (entry.now, entry.before)}

    def others(scalar: Scalar) -> Scalar:
        kept = {access.tensor for access in accesses(scalar)} & own
        return rewrite(scalar, lambda access: access if access.tensor in kept else rewritten(access))

    return with_scalars(loop, others)


def with_scalars(loop: StepLoop, change: Callable[[Scalar], Scalar]) -> StepLoop:
    """Return the loop with its scalars changed."""
    return replace(loop, tensors=tuple(_changed(entry, change) for entry in loop.tensors))


def _changed(entry: LoopTensor, change: Callable[[Scalar], Scalar]) -> LoopTensor:
    first = entry.first if entry.first is None else replace(entry.first, body=change(entry.first.body))
    return replace(entry, definition=replace(entry.definition, body=change(entry.definition.body)), first=first)
