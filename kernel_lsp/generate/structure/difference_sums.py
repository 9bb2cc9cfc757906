"""Find sums over the differences of rows and columns, as of distances between all pairs of points: tiles in shared
memory compute them as they do products."""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.scalar import Operation, Scalar
from kernel_lsp.generate.ir.tensor import Contraction, Reduction
from kernel_lsp.generate.structure.sum_rewrites import is_plain_sum, with_pointwise_inlined


def difference_sum(definition: Reduction) -> Reduction | None:
    """Return the sum of squares or magnitudes of differences with its two factors; None for any other sum."""
    found = _difference(with_pointwise_inlined(definition.body)) if is_plain_sum(definition) else None
    if found is None:
        return None
    term, left, right = found
    reduced = set(definition.reduced)
    if {left.dtype, right.dtype} != {DType.F32} or not reduced <= left.variables & right.variables:
        return None
    axes: dict[tuple[bool, bool], list[int]] = {}
    for axis, variable in enumerate(definition.variables):
        axes.setdefault((variable in left.variables, variable in right.variables), []).append(axis)
    batch, rows, columns = (tuple(axes.get(key, ())) for key in ((True, True), (True, False), (False, True)))
    if not rows or not columns or (False, False) in axes:
        return None
    return replace(definition, contraction=Contraction(left, right, batch, rows, columns, term=term))


def _difference(body: Scalar) -> tuple[str, Scalar, Scalar] | None:
    """Return what the body is of a difference, and the difference's operands."""
    term = "magnitude"
    if isinstance(body, Operation) and body.name == "mul" and body.operands[0].digest == body.operands[1].digest:
        term, body = "square", body.operands[0]
    elif not isinstance(body, Operation) or body.name != "abs":
        return None
    inner = body.operands[0] if isinstance(body, Operation) and body.name == "abs" else body
    if not isinstance(inner, Operation) or inner.name != "sub":
        return None
    left, right = inner.operands
    return term, left, right
