"""Detect the gradients of an attention in a graph: products of its probabilities, or of the gradients of its scores.

The gradients of one attention share the statistics of its queries, so that no score is stored: one kernel finds them,
or the forward has kept the logarithms, and its result times the gradient is the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import Access, Constant, Operation, Scalar, accesses, cast
from kernel_lsp.generate.ir.tensor import AttentionGradient, Definition, Reduction, Tensor
from kernel_lsp.generate.lowering.arithmetic import op
from kernel_lsp.generate.lowering.builder import positions
from kernel_lsp.generate.structure.attention_patterns import (
    MINUS_INFINITY,
    Hidden,
    are_operands,
    body_at,
    conditions_giving,
    factors_of,
    find_softmax,
    has_fragments,
    inlined,
    is_product,
    named_score,
    product_of,
    unscaled,
    without_casts,
)

STATISTICS = 2
"""Values per query: the logarithm of its sum of exponentials, and the row sum of its gradient."""


@dataclass(frozen=True)
class KeptAttention:
    """Hold what a forward keeps of its one attention: the result, and the logarithm of the sum of exponentials of each
    of the `queries`. `grad` is the result's gradient. A library may give both and the gradients where `has_library`."""

    queries: Tensor
    log_sums: Tensor
    out: Tensor
    grad: Tensor
    has_library: bool = False


@dataclass(frozen=True)
class GradientFamily:
    """The gradients of one attention. A kernel finds the `statistics` that they read; where these are kept, only the
    row sums, by the definition `row_sums`."""

    statistics: Tensor | None
    row_sums: tuple[tuple[Tensor, Reduction], ...]
    gradients: tuple[tuple[Tensor, AttentionGradient], ...]

    @property
    def definitions(self) -> dict[Tensor, Definition]:
        """Return what the kernels of this family compute."""
        return {**dict(self.row_sums), **dict(self.gradients)}


def find_gradients(tensors: Sequence[Tensor], kept: KeptAttention | None = None) -> list[GradientFamily]:
    """Return the families among these tensors, of the attention that was `kept`, where one was."""
    sides = [side for tensor in tensors for side in _sides(tensor)]
    found = [(side, scores) for side in sides if (scores := _find_grad_scores(side)) is not None]
    families: dict[Tensor, list[tuple[_Side, _GradScores]]] = {}
    for side, scores in found:
        families.setdefault(scores.row_sum.tensor, []).append((side, scores))
    complete = [_family(row_sum, members, sides, kept) for row_sum, members in families.items()]
    return [family for family in complete if family is not None]


@dataclass(frozen=True)
class _Side:
    """A sum of products of weights, over queries and keys, and the rows that they weigh. `row` and `column` are axes of
    the tensor; `other` is the variable of the sum that weights and rows share."""

    tensor: Tensor
    weights: Scalar
    rows: Scalar
    variables: tuple[Variable, ...]
    reduced: tuple[Variable, ...]
    batch_axes: tuple[int, ...]
    row: int
    column: int

    @property
    def shared(self) -> tuple[Variable, ...]:
        return self.reduced[:-1]


@dataclass(frozen=True)
class _GradScores:
    """Gradients of scores, `factor` * P * (dP - row sum), of a row variable `m` and a column variable `key`. They are 0
    where the user's mask `hides` a score."""

    m: Variable
    key: Variable
    probabilities: Scalar
    grad_probabilities: Access
    row_sum: Access
    factor: float
    hides: bool = False


def _sides(tensor: Tensor) -> list[_Side]:
    definition = tensor.definition
    if not isinstance(definition, Reduction) or definition.contraction is None or len(definition.reduced) > 2:
        return []
    contraction = definition.contraction
    if len(contraction.row_axes) != 1 or len(contraction.column_axes) != 1:
        return []
    left, right = contraction.left, contraction.right
    row, column = contraction.row_axes[0], contraction.column_axes[0]
    orders = ((left, right, row, column), (right, left, column, row))
    return [
        _Side(
            tensor,
            without_casts(inlined(weights)),
            rows,
            definition.variables,
            definition.reduced,
            contraction.batch_axes,
            *axes,
        )
        for weights, rows, *axes in orders
        if is_weighing(weights)
    ]


def is_weighing(scalar: Scalar) -> bool:
    """Return True if a factor reads anything but arguments of the operation: only then can it be a softmax."""
    return any(isinstance(access.tensor.definition, Reduction) for access in accesses(inlined(scalar)))


def _find_grad_scores(side: _Side) -> _GradScores | None:
    """Return the gradients of scores that the weights are, over either the side's rows or its sum as queries."""
    own, other = side.variables[side.row], side.reduced[-1]
    weights, factor, hidden = _without_factor(side.weights)
    for m, key in ((own, other), (other, own)):
        for probabilities, grad, row_sum in _grad_parts(weights):
            body = body_at(row_sum, key) if _is_row_sum(row_sum) else None
            products = (op("mul", probabilities, grad), op("mul", grad, probabilities))
            plain = without_casts(grad)
            if not isinstance(plain, Access) or not is_product(plain.tensor) or body not in products:
                continue
            softmax = find_softmax(without_casts(probabilities), key)
            if softmax is None or len(hidden) > 1:
                continue
            if not hidden or hidden == conditions_giving(softmax.score, MINUS_INFINITY):
                return _GradScores(m, key, without_casts(probabilities), plain, row_sum, factor, bool(hidden))
    return None


def _grad_parts(weights: Scalar) -> list[tuple[Scalar, Scalar, Access]]:
    """Return candidates for P, dP and the row sum, where the weights are P * (dP - sum) or P * dP - P * sum."""
    found: list[tuple[Scalar, Scalar, Access]] = []
    if not isinstance(weights, Operation):
        return found
    if weights.name == "mul":
        for probabilities, difference in (weights.operands, weights.operands[::-1]):
            if isinstance(difference, Operation) and difference.name == "sub":
                grad, row_sum = difference.operands
                found += [(probabilities, grad, row_sum)] if isinstance(row_sum, Access) else []
    if weights.name == "sub" and all(isinstance(part, Operation) and part.name == "mul" for part in weights.operands):
        first, second = (part.operands for part in weights.operands if isinstance(part, Operation))
        for probabilities, grad in (first, first[::-1]):
            for same, row_sum in (second, second[::-1]):
                found += (
                    [(probabilities, grad, row_sum)] if same == probabilities and isinstance(row_sum, Access) else []
                )
    return found


def _is_row_sum(access: Access) -> bool:
    definition = access.tensor.definition
    is_sum = isinstance(definition, Reduction) and definition.kind == "sum" and definition.contraction is None
    return is_sum and isinstance(definition, Reduction) and len(definition.reduced) == 1


def _without_factor(scalar: Scalar) -> tuple[Scalar, float, set[Hidden]]:
    """Return a scalar without constant factors and masks that make it 0, these factors, and the masks' conditions."""
    factor = 1.0
    hidden: set[Hidden] = set()
    while isinstance(scalar := without_casts(scalar), Operation) and scalar.name in ("mul", "div", "select"):
        if scalar.name == "select":
            kept = [part for part in scalar.operands[1:] if not (isinstance(part, Constant) and part.value == 0)]
            if len(kept) != 1:
                break
            hidden |= conditions_giving(scalar, 0.0)
            scalar = kept[0]
            continue
        orders = (scalar.operands, scalar.operands[::-1]) if scalar.name == "mul" else (scalar.operands,)
        scales = [(a, float(b.value)) for a, b in orders if isinstance(b, Constant) and b.value != 0]
        if not scales:
            break
        inner, scale = scales[0]
        factor *= scale if scalar.name == "mul" else 1 / scale
        scalar = inner
    return scalar, factor, hidden


def _family(
    row_sum: Tensor,
    members: Sequence[tuple[_Side, _GradScores]],
    sides: Sequence[_Side],
    kept: KeptAttention | None,
) -> GradientFamily | None:
    """Return the gradients of queries, keys and values that share a row sum."""
    found = _statistics(row_sum)
    if found is None:
        return None
    definition = None if kept is None else _kept_row_sums(row_sum, found, kept)
    statistics = found if kept is None or definition is None else kept
    gradients: list[tuple[Tensor, AttentionGradient]] = []
    for side, scores in members:
        gradient = _gradient(side, scores, statistics)
        if gradient is None:
            return None
        gradients.append((side.tensor, gradient))
        if gradient.kind == "key":
            gradients += _value_gradients(side, scores, gradient, sides)
    if isinstance(statistics, Tensor):
        return GradientFamily(statistics, (), tuple(gradients))
    assert definition is not None
    return GradientFamily(None, ((row_sum, definition),), tuple(gradients))


def _read_statistics(
    gradient: AttentionGradient, scores: _GradScores, statistics: Tensor | KeptAttention
) -> tuple[Access, Access]:
    """Return where a gradient reads the logarithm of a query's sum of exponentials, and its row sum."""
    row_sum = scores.row_sum
    if isinstance(statistics, Tensor):
        first, second = (Access(statistics, (*row_sum.index, as_index(place))) for place in range(STATISTICS))
        return first, second
    assert isinstance(gradient.query_part, Access)
    return Access(statistics.log_sums, gradient.query_part.index[:-1]), row_sum


def _kept_row_sums(row_sum: Tensor, statistics: Tensor, kept: KeptAttention) -> Reduction | None:
    """Return the row sums of probabilities times their gradients as those of the result times its gradient; None where
    the latter are other elements, or those of other queries were kept."""
    found, definition = statistics.definition, row_sum.definition
    assert isinstance(found, AttentionGradient)
    assert isinstance(definition, Reduction)
    grad, query = found.grad, found.query_part
    if not isinstance(query, Access) or query.tensor is not kept.queries:
        return None
    is_plain = isinstance(grad, Access) and grad.mask is None and found.grad_scale == 1.0
    if not is_plain or not isinstance(grad, Access) or grad.tensor is not kept.grad or row_sum.dtype != DType.F32:
        return None
    factors = (cast(grad, DType.F32), cast(Access(kept.out, grad.index), DType.F32))
    variables = definition.variables
    return Reduction("sum", variables, (found.width,), (*variables, found.width), op("mul", *factors))


def _statistics(row_sum: Tensor) -> Tensor | None:
    """Return the tensor of the statistics of the rows that a row sum has."""
    definition = row_sum.definition
    assert isinstance(definition, Reduction)
    key = definition.reduced[0]
    body = inlined(definition.body)
    assert isinstance(body, Operation)
    component = Variable("component", -2 * row_sum.serial - 2, as_index(STATISTICS))
    for axis in reversed(range(len(definition.variables))):
        m = definition.variables[axis]
        for probabilities, grad in (body.operands, body.operands[::-1]):
            plain = without_casts(grad)
            if not isinstance(plain, Access) or not is_product(plain.tensor):
                continue
            access = Access(row_sum, positions(definition.variables))
            scores = _GradScores(m, key, without_casts(probabilities), plain, access, 1.0)
            batch = tuple(other for other in range(len(definition.variables)) if other != axis)
            variables = (*definition.variables, component)
            found = _parts(scores, "statistics", variables, (), (batch, (axis,), (len(batch) + 1,)))
            if found is not None:
                shape = (*row_sum.shape, as_index(STATISTICS))
                return Tensor("statistics", row_sum.serial - 1, DType.F32, shape, found, row_sum.source)
    return None


def _gradient(side: _Side, scores: _GradScores, statistics: Tensor | KeptAttention) -> AttentionGradient | None:
    """Return the gradient of queries or keys that a side is; None where it weighs other rows."""
    is_query = scores.m is side.variables[side.row]
    if is_query and side.shared:
        return None
    axes = (side.batch_axes, (side.row,), (side.column,))
    found = _parts(scores, "query" if is_query else "key", side.variables, side.shared, axes)
    if found is None:
        return None
    rows, scale = unscaled(side.rows)
    own = found.key_part if is_query else found.query_part
    if own.substitute({found.head: as_index(side.variables[side.column])}) != rows:
        return None
    read = _read_statistics(found, scores, statistics)
    return replace(found, factor=scores.factor * scale, statistics=read, hides=scores.hides)


Axes = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def _parts(
    scores: _GradScores, kind: str, variables: tuple[Variable, ...], shared: tuple[Variable, ...], axes: Axes
) -> AttentionGradient | None:
    """Return a gradient of the factors that its probabilities, and their gradient, are made of."""
    softmax = find_softmax(scores.probabilities, scores.key)
    found = None if softmax is None else product_of(softmax.score, scores.m, scores.key)
    backward = factors_of(scores.grad_probabilities, scores.m, scores.key)
    if softmax is None or found is None or backward is None:
        return None
    product, forward = found
    (query, query_scale), (key, key_scale) = (unscaled(factor) for factor in forward[:2])
    (grad, grad_scale), (value, value_scale) = (unscaled(factor) for factor in backward[:2])
    if not are_operands(query, key, grad, value) or not has_fragments(forward[2], backward[2]):
        return None
    score = named_score(softmax.score, product, query_scale * key_scale)
    parts = (query, key, value, grad, score, scores.factor, grad_scale * value_scale, softmax.is_safe)
    return AttentionGradient(kind, variables, scores.m, scores.key, forward[2], backward[2], shared, *parts, *axes)


def _value_gradients(
    side: _Side, scores: _GradScores, gradient: AttentionGradient, sides: Sequence[_Side]
) -> list[tuple[Tensor, AttentionGradient]]:
    """Return the sums of the same probabilities times the gradient of the result."""
    found = []
    for other in sides:
        renamed = _renaming(side, other)
        if other.tensor is side.tensor or renamed is None or other.weights != scores.probabilities.substitute(renamed):
            continue
        rows, scale = unscaled(other.rows)
        width = {gradient.width: as_index(other.variables[other.column])}
        if rows == gradient.grad.substitute(renamed).substitute(width):
            found.append((other.tensor, _renamed(gradient, other, renamed, scale)))
    return found


def _renaming(side: _Side, other: _Side) -> Mapping[Variable, Index] | None:
    """Return the variables of `other` by those of `side`; None where their sizes differ."""
    ours = [*(side.variables[axis] for axis in side.batch_axes), side.variables[side.row], *side.reduced]
    theirs = [*(other.variables[axis] for axis in other.batch_axes), other.variables[other.row], *other.reduced]
    if [variable.extent for variable in ours] != [variable.extent for variable in theirs]:
        return None
    return {old: as_index(new) for old, new in zip(ours, theirs, strict=True)}


def _renamed(
    gradient: AttentionGradient, other: _Side, renamed: Mapping[Variable, Index], scale: float
) -> AttentionGradient:
    """Return the gradient of values that reads what a gradient of keys reads."""
    texts = (gradient.query_part, gradient.key_part, gradient.value, gradient.grad, gradient.score)
    query, key, value, grad, score = (scalar.substitute(renamed) for scalar in texts)
    assert gradient.statistics is not None
    log_sum, row_sum = (read.substitute(renamed) for read in gradient.statistics)
    assert isinstance(log_sum, Access)
    assert isinstance(row_sum, Access)
    return replace(
        gradient,
        kind="value",
        variables=other.variables,
        m=other.reduced[-1],
        key=other.variables[other.row],
        shared=other.shared,
        query_part=query,
        key_part=key,
        value=value,
        grad=grad,
        score=score,
        factor=scale,
        batch_axes=other.batch_axes,
        row_axes=(other.row,),
        column_axes=(other.column,),
        statistics=(log_sum, row_sum),
    )
