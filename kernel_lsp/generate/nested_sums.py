"""Sums of weighted sums as one sum over both: `sum_c w[c] * sum_k x[c, k]` is `sum_ck w[c] * x[c, k]`.

The gradient of a group norm adds up the sums of its channels; over all elements of the group at once, its sums belong
to the kernel that reads the group anyway.
"""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.generate.ir.scalar import Access, Operation, Scalar, operation
from kernel_lsp.generate.ir.scalar_walk import accesses, rewrite
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
