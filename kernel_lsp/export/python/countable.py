"""Limit the size of tensors that an operator passes to its kernels: no check runs at sizes beyond 32-bit indices."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import reduce

from kernel_lsp.core.expression import Binary, Constant, Expression, Name, free_names
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


def without_implied(conditions: Sequence[Expression], dims: Collection[str]) -> tuple[Expression, ...]:
    """Return the conditions without bounds on products that tighter bounds on the same dims imply, as ``B * 64 <= N``
    beside ``B * 256 <= N``."""
    bounds = {condition: _bound(condition, dims) for condition in dict.fromkeys(conditions)}
    tightest: dict[tuple[str, ...], float] = {}
    for bound in bounds.values():
        if bound is not None:
            tightest[bound[0]] = min(bound[1], tightest.get(bound[0], bound[1]))
    kept = [condition for condition, bound in bounds.items() if bound is None or bound[1] == tightest[bound[0]]]
    return tuple({bounds[each] or each: each for each in reversed(kept)}.values())[::-1]


def _bound(condition: Expression, dims: Collection[str]) -> tuple[tuple[str, ...], float] | None:
    """Return the dims of a product and its bound over its constant factor; None for other conditions."""
    if not isinstance(condition, Binary) or condition.operator != "<=" or not isinstance(condition.right, Constant):
        return None
    factors = _factors(condition.left)
    names = [factor.id for factor in factors if isinstance(factor, Name) and factor.id in dims]
    numbers = [factor.value for factor in factors if isinstance(factor, Constant) and factor.value > 0]
    if len(names) + len(numbers) < len(factors):
        return None
    return tuple(sorted(names)), condition.right.value / math.prod(numbers)


def _factors(expression: Expression) -> list[Expression]:
    if isinstance(expression, Binary) and expression.operator == "*":
        return [*_factors(expression.left), *_factors(expression.right)]
    return [expression]


def _tensors(operation: Operation) -> Iterator[TensorParameter]:
    yield from (parameter for parameter in operation.parameters if isinstance(parameter, TensorParameter))
    yield from operation.results
    yield from operation.scratch
