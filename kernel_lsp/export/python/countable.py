"""Limit the size of tensors that an operator passes to its kernels: no check runs at sizes beyond 32-bit indices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import reduce

from kernel_lsp.core.expression import Binary, Constant, Expression, free_names
from kernel_lsp.core.plan import Operation, TensorParameter

MAX_ELEMENTS = (1 << 31) - (1 << 24)
"""Maximum elements per tensor. Most kernels count elements in 32 bits, and a loop over them exceeds the last index by
up to the number of threads of its grid."""


def countable(operation: Operation) -> tuple[Expression, ...]:
    """Return the conditions that limit each tensor of non-fixed size to `MAX_ELEMENTS`. Dims are at least 1, so a
    tensor whose dims are all among those of another needs no condition of its own."""
    shapes = list(dict.fromkeys(tensor.dims for tensor in _tensors(operation)))
    counts = [Counter(map(str, dims)) for dims in shapes]
    return tuple(
        Binary("<=", reduce(lambda left, right: Binary("*", left, right), dims), Constant(MAX_ELEMENTS))
        for dims, own in zip(shapes, counts, strict=True)
        if any(map(free_names, dims)) and not any(own < other for other in counts)
    )


def _tensors(operation: Operation) -> Iterator[TensorParameter]:
    yield from (parameter for parameter in operation.parameters if isinstance(parameter, TensorParameter))
    yield from operation.results
    yield from operation.scratch
