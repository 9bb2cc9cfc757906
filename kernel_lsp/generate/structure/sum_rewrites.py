"""Rewrite sums: variances as pairs of sums, in which the mean is a number, and sums of weighted sums as one sum over
both.

The gradient of a group norm adds up the sums of its channels; over all elements of the group at once, its sums belong
to the kernel that reads the group anyway.

A part of a row can use its own mean. Chan's formula then corrects its squares to the mean of the row, so that one pass
over memory computes both sums of every part.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernel_lsp.generate.fusion.row_patterns import is_count
from kernel_lsp.generate.ir.index import as_index, product
from kernel_lsp.generate.ir.scalar import Access, Operation, Scalar, accesses, operands_of, operation, rewrite
from kernel_lsp.generate.ir.tensor import Pointwise, Reduction, Tensor


def flat_sum(definition: Reduction) -> Reduction | None:
    """Return the sum over all terms of the sums that it adds up, each weighted; None where it is no such sum."""
    if not is_plain_sum(definition) or not _adds_up_one_sum(definition.body):
        return None
    body = with_pointwise_inlined(definition.body)
    inner = {access.digest: access for access in accesses(body) if isinstance(access.tensor.definition, Reduction)}
    if len(inner) != 1:
        return None
    (access,) = inner.values()
    found = access.tensor.definition
    assert isinstance(found, Reduction)
    if not is_plain_sum(found) or access.mask is not None or found.domain[-len(found.reduced) :] != found.reduced:
        return None
    terms = found.body.substitute(dict(zip(found.variables, access.index, strict=True)))
    weighted = _with_terms(body, access, terms)
    if weighted is None:
        return None
    reduced, domain = (*definition.reduced, *found.reduced), (*definition.domain, *found.reduced)
    return replace(definition, reduced=reduced, domain=domain, body=weighted)


def is_plain_sum(definition: Reduction) -> bool:
    """Return True for a sum that is neither a contraction nor split."""
    return definition.kind == "sum" and definition.contraction is None and definition.parts is None


def _adds_up_one_sum(scalar: Scalar) -> bool:
    """Check whether pointwise definitions lead to one reduction alone. Looks at each tensor once: inlining the residual
    chain of a deep network takes minutes."""
    seen: set[Tensor] = set()
    sums: set[Tensor] = set()
    pending = list(accesses(scalar))
    while pending and len(sums) < 2:
        access = pending.pop()
        found = access.tensor.definition
        if isinstance(found, Reduction):
            sums.add(access.tensor)
        elif isinstance(found, Pointwise) and access.mask is None and access.tensor not in seen:
            seen.add(access.tensor)
            pending += accesses(found.body)
    return len(sums) == 1


def with_pointwise_inlined(scalar: Scalar) -> Scalar:
    """Return the scalar with pointwise definitions inlined."""
    done: dict[bytes, Scalar] = {}

    def inlined(access: Access) -> Scalar:
        found = access.tensor.definition
        if not isinstance(found, Pointwise) or access.mask is not None:
            return access
        if access.digest not in done:
            body = found.body.substitute(dict(zip(found.variables, access.index, strict=True)))
            done[access.digest] = rewrite(body, inlined)
        return done[access.digest]

    return rewrite(scalar, inlined)


def _with_terms(scalar: Scalar, access: Access, terms: Scalar) -> Scalar | None:
    """Return the product with `terms` in place of the sum; None unless the sum is a factor once."""
    if scalar == access:
        return terms
    if not isinstance(scalar, Operation) or scalar.name != "mul":
        return None
    holds = [access.digest in {each.digest for each in accesses(operand)} for operand in scalar.operands]
    if holds.count(True) != 1:
        return None
    place = holds.index(True)
    factor = _with_terms(scalar.operands[place], access, terms)
    return None if factor is None else operation("mul", scalar.dtype, scalar.operands[1 - place], factor)


@dataclass(frozen=True)
class Moments:
    """`first` is the tensor of the first sum, `total` the second's read of it. `value` and `offset`, None for 0, are
    those of an element; `count` is the number of elements."""

    first: Tensor
    total: Access
    value: Scalar
    offset: Scalar | None
    count: Scalar


def find_moments(tensor: Tensor) -> Moments | None:
    """Return what a sum of squared distances consists of; None where it is no such sum. Only the mean is inlined: what
    the elements are may be the end of a deep network."""
    second = tensor.definition
    if not isinstance(second, Reduction) or not is_plain_sum(second):
        return None
    factors = operands_of(second.body, "mul")
    difference = operands_of(factors[0], "sub") if factors and factors[0] == factors[1] else ()
    if not difference:
        return None
    value, mean = difference[0], _resolved(difference[1])
    offset, quotient = operands_of(mean, "add") or (None, mean)
    fraction = operands_of(quotient, "div")
    total = _resolved(fraction[0]) if fraction else None
    first = total.tensor.definition if isinstance(total, Access) and total.mask is None else None
    if total is None or not isinstance(first, Reduction) or not is_plain_sum(first) or not _walks_alike(first, second):
        return None
    body = first.body.substitute(dict(zip(first.domain, map(as_index, second.domain), strict=True)))
    expected = value if offset is None else operation("sub", value.dtype, value, offset)
    count = product(variable.extent for variable in second.reduced)
    if body != expected or not is_count(fraction[1], count):
        return None
    assert isinstance(total, Access)
    return Moments(total.tensor, total, value, offset, fraction[1])


def _resolved(scalar: Scalar) -> Scalar:
    """Return the scalar that a read of pointwise results stands for."""
    while isinstance(scalar, Access) and scalar.mask is None and isinstance(scalar.tensor.definition, Pointwise):
        found = scalar.tensor.definition
        scalar = found.body.substitute(dict(zip(found.variables, scalar.index, strict=True)))
    return scalar


def _walks_alike(first: Reduction, second: Reduction) -> bool:
    def walk(definition: Reduction) -> list[tuple[object, bool]]:
        return [(variable.extent, variable in definition.reduced) for variable in definition.domain]

    return walk(first) == walk(second)
