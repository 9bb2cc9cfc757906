"""Sums of differences of neighbours over all positions of their tensor, under a mask where one has no neighbour.

``(x[..., 1:] - x[..., :-1]).abs().sum()`` has rows of one element less than x has, which no packs divide, and another
space than the sum along another dim. Over all positions of x both are one pass over it.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index, expanded
from kernel_lsp.generate.ir.scalar import TRUE, Access, Scalar, accesses, both, in_range, rewrite, select
from kernel_lsp.generate.ir.sizes import coefficient
from kernel_lsp.generate.ir.tensor import Buffer, Pointwise, Tensor
from kernel_lsp.generate.lowering.arithmetic import number
from kernel_lsp.generate.lowering.builder import Body, Builder, Shape, positions
from kernel_lsp.generate.structure.sum_rewrites import with_pointwise_inlined

MAX_LEFT_OUT = 8
"""Maximum positions of a dim without a neighbour."""
MAX_INLINED = 16
"""Maximum pointwise tensors between a sum and what it reads."""


def over_whole_dims(builder: Builder, source: Tensor, axes: Sequence[int], body: Body) -> tuple[Shape, Body] | None:
    """Return the shape of what a sum of differences of neighbours reads, and the body of a sum over that; None for
    other sums, whose `body` reads `source`."""
    domain = builder.variables(source.shape, prefix="r")
    reads = _reads(Access(source, positions(domain)))
    if reads is None or len({access.digest for access in reads}) < 2 or len({access.tensor for access in reads}) != 1:
        return None
    whole = list(source.shape)
    for axis in axes:
        size = _whole_size(domain[axis], reads)
        if size is not None:
            whole[axis] = size
    if whole == list(source.shape):
        return None

    def masked_body(index: tuple[Index, ...]) -> Scalar:
        inside: Scalar = TRUE
        for position, size, own in zip(index, whole, source.shape, strict=True):
            if size != own:
                inside = both(inside, in_range(position, own))
        value = rewrite(with_pointwise_inlined(body(index)), lambda access: _with_neighbour(access, inside))
        return select(inside, value, number(0, value))

    return tuple(whole), masked_body


def _with_neighbour(access: Access, inside: Scalar) -> Scalar:
    """Return the read under the condition that its position has a neighbour, unless it is at the position itself."""
    is_own = all(index == ZERO or isinstance(index.atom, Variable) for index in access.index)
    return access if is_own else Access(access.tensor, access.index, inside)


def _whole_size(variable: Variable, reads: Sequence[Access]) -> Index | None:
    """Return the size of the dim that the reads walk along by a variable, at several distances from each other; None
    where it has no more positions than the variable, or far more."""
    found: set[tuple[Index, int]] = set()
    for access in reads:
        along = [(dim, index) for dim, index in enumerate(access.index) if variable in index.variables]
        if len(along) != 1 or coefficient(along[0][1], variable) != ONE:
            return None
        dim, index = along[0]
        offset = (index - as_index(variable)).constant
        if offset is None:
            return None
        found.add((access.tensor.shape[dim], offset))
    (size, _), *others = found
    n_left_out = (expanded(size) - expanded(variable.extent)).constant
    is_one = all(other == size for other, _ in others)
    return size if is_one and len(found) > 1 and n_left_out and 0 < n_left_out <= MAX_LEFT_OUT else None


def _reads(access: Access) -> list[Access] | None:
    """Return what pointwise definitions read of tensors in memory; None where anything else is between."""
    found: list[Access] = []
    pending, n_inlined = [access], 0
    while pending:
        each = pending.pop()
        definition = each.tensor.definition
        if isinstance(definition, Buffer):
            found.append(each)
            continue
        n_inlined += 1
        if not isinstance(definition, Pointwise) or each.mask is not None or n_inlined > MAX_INLINED:
            return None
        body = definition.body.substitute(dict(zip(definition.variables, each.index, strict=True)))
        pending += accesses(body)
    return found
