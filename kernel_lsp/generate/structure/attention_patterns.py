"""Detect attention in a graph: a softmax of products of queries and keys, times values.

Definitions state the computation, not the operator called, so `scaled_dot_product_attention`, its decompositions and
handwritten attention are equivalent here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import free_names
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index
from kernel_lsp.generate.ir.scalar import (
    Access,
    Argument,
    Constant,
    IndexValue,
    Operation,
    Scalar,
    accesses,
    compare,
    masked,
    rewrite,
    select,
)
from kernel_lsp.generate.ir.sizes import coefficient, to_expression
from kernel_lsp.generate.ir.tensor import Attention, Pointwise, Reduction, Tensor
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.lowering.arithmetic import op

PRODUCT = "product"
"""Name of the product of a query and a key in the score."""
MINUS_INFINITY = float("-inf")
MAX_HEAD = 128
"""Maximum size of a head: a warp keeps 16 queries and their sums in registers."""
HEAD_MULTIPLE = 16
Factors = tuple[Scalar, Scalar, Variable]
OPERANDS = (DType.F32, DType.F16, DType.BF16)


def find_attention(tensor: Tensor) -> Attention | None:
    """Return the attention that a contraction computes; None when it is none, or its heads have no fragments."""
    found = _found(tensor)
    return found if found is not None and has_fragments(*_columns(found)) else None


def open_head_sizes(tensors: Iterable[Tensor], workload: Workload) -> frozenset[str]:
    """Return the names in the sizes of heads and values of attentions: their kernel needs these as constants. None
    where it does not support the captured sizes."""
    names: set[str] = set()
    for tensor in tensors:
        extents = [column.extent for column in _columns(found)] if (found := _found(tensor)) is not None else []
        if all(_has_fragments(workload.size(extent)) for extent in extents):
            names |= {name for extent in extents for name in free_names(to_expression(extent))}
    return frozenset(names)


def _columns(attention: Attention) -> tuple[Variable, Variable]:
    return attention.head, attention.variables[attention.column_axes[0]]


def _found(tensor: Tensor) -> Attention | None:
    """Return the attention that a contraction computes, with heads of any size."""
    definition = tensor.definition
    if not isinstance(definition, Reduction) or definition.contraction is None or len(definition.reduced) != 1:
        return None
    weights = without_casts(inlined(definition.contraction.left))
    softmax = find_softmax(weights, definition.reduced[0])
    return None if softmax is None else _attention(definition, softmax)


def last_key_of(score: Scalar, m: Variable, key: Variable) -> Index | None:
    """Return c where every score of a key beyond ``m + c`` is minus infinity, as with causal masks."""
    for condition in _conditions(score):
        if not isinstance(condition, Operation) or condition.name not in ("le", "ge", "lt", "gt"):
            continue
        left, right = (_position_of(operand) for operand in condition.operands)
        if left is None or right is None:
            continue
        beyond = left - right if condition.name in ("le", "lt") else right - left
        beyond = beyond + 1 if condition.name in ("lt", "gt") else beyond  # beyond <= 0 for visible keys
        if coefficient(beyond, key) == as_index(1) and coefficient(beyond, m) == as_index(-1):
            return as_index(key) - as_index(m) - beyond
    return None


def score_of_seen(score: Scalar, m: Variable, key: Variable) -> Scalar | None:
    """Return the score of a key up to the last one that `last_key_of` finds; None where the score masks others, too."""
    conditions = _conditions(score)
    if len(conditions) > 1 or (conditions and last_key_of(score, m, key) is None):
        return None
    return _without_masks(score)


def condition_of_seen(score: Scalar) -> Scalar | None:
    """Return the first condition without which a score is minus infinity; None without one."""
    return next(iter(_conditions(score)), None)


Hidden = tuple[Scalar, bool]
"""A condition without negations, and the value of it that hides an element."""


def conditions_giving(scalar: Scalar, value: float) -> set[Hidden]:
    """Return the conditions under which the outermost choices in a scalar give this value."""
    found: set[Hidden] = set()
    pending = [scalar]
    while pending:
        node = pending.pop()
        if not isinstance(node, Operation):
            continue
        if node.name != "select":
            pending += node.operands
            continue
        condition, *branches = node.operands
        at = [place for place, part in enumerate(branches) if isinstance(part, Constant) and part.value == value]
        is_negated = False
        while isinstance(condition, Operation) and condition.name == "logical_not":
            condition, is_negated = condition.operands[0], not is_negated
        found |= {(condition, (place == 0) != is_negated) for place in at}
    return found


def _without_masks(score: Scalar) -> Scalar:
    """Return a score with its one condition taken as true."""
    if not isinstance(score, Operation) or not _conditions(score):
        return score
    if score.name == "select":
        return score.operands[1]
    return score.rebuilt(tuple(_without_masks(operand) for operand in score.operands))


@dataclass(frozen=True)
class Softmax:
    """The softmax of `score`. With `is_safe`, fully masked rows give zeros."""

    score: Scalar
    is_safe: bool


def find_softmax(weights: Scalar, key: Variable) -> Softmax | None:
    """Return the softmax over `key` that the weights are."""
    for peak in _reductions(weights, "max", key):
        score = body_at(peak, key)
        exponential = op("exp", op("sub", score, peak))
        for total in _reductions(weights, "sum", key):
            if body_at(total, key) != exponential:
                continue
            log_sum = op("add", peak, op("log", total))
            plain = {op("div", exponential, total), op("exp", op("sub", score, log_sum))}
            if weights in plain:
                return Softmax(score, is_safe=False)
            if _is_safe(weights, score, peak, plain, key):
                return Softmax(score, is_safe=True)
    return None


def _is_safe(weights: Scalar, score: Scalar, peak: Access, plain: set[Scalar], key: Variable) -> bool:
    """Return True if the weights are a softmax of the scores, or zeros where all scores of a row are minus infinity."""
    if not isinstance(weights, Operation) or weights.name != "select":
        return False
    condition, zeros, rest = weights.operands
    if not isinstance(zeros, Constant) or zeros.value != 0 or without_casts(rest) not in plain:
        return False
    lowest = Constant(MINUS_INFINITY, score.dtype)
    if condition == compare("eq", peak, lowest):
        return True
    is_seen = op("logical_not", compare("eq", score, lowest))
    any_seen = [entry for entry in _reductions(condition, "any", key) if body_at(entry, key) == is_seen]
    return bool(any_seen) and condition == op("logical_not", any_seen[0])


def _reductions(scalar: Scalar, kind: str, key: Variable) -> list[Access]:
    """Return the reductions over as many elements as there are keys: a softmax with a sink has one more."""
    return [
        access
        for access in accesses(scalar)
        if isinstance(access.tensor.definition, Reduction)
        and access.tensor.definition.kind == kind
        and access.tensor.definition.contraction is None
        and len(access.tensor.definition.reduced) == 1
        and access.tensor.definition.reduced[0].extent == key.extent
    ]


def body_at(access: Access, key: Variable) -> Scalar:
    """Return the combined body of the reduction at the row that is read, over `key`."""
    definition = access.tensor.definition
    assert isinstance(definition, Reduction)
    replacements = dict(zip(definition.variables, access.index, strict=True))
    return inlined(definition.body.substitute({**replacements, definition.reduced[0]: as_index(key)}))


def _attention(definition: Reduction, softmax: Softmax) -> Attention | None:
    contraction, key = definition.contraction, definition.reduced[0]
    assert contraction is not None
    if len(contraction.row_axes) != 1:
        return None
    found = product_of(softmax.score, definition.variables[contraction.row_axes[0]], key)
    if found is None:
        return None
    product, (query_part, key_part, head) = found
    value = contraction.right
    scale = 1.0
    if plain := _plain_operands(query_part, key_part, value):
        query_part, key_part, value, scale = plain
    if not are_operands(query_part, key_part, value):
        return None
    axes = (contraction.batch_axes, contraction.row_axes, contraction.column_axes)
    parts = (query_part, key_part, value, named_score(softmax.score, product, scale))
    attention = Attention(definition.variables, key, head, *parts, softmax.is_safe, *axes)
    return attention if len(contraction.column_axes) == 1 else None


def product_of(score: Scalar, row: Variable, column: Variable) -> tuple[Access, Factors] | None:
    """Return the one sum of products of a row's factor and a column's that a score reads, and these factors; None where
    there is another number of them. A bias may be made of other products."""
    products = [access for access in accesses(score) if is_product(access.tensor) and access.mask is None]
    found = [(access, factors) for access in products if (factors := factors_of(access, row, column)) is not None]
    return found[0] if len(found) == 1 else None


def factors_of(product: Access, row: Variable, column: Variable) -> Factors | None:
    """Return the factors of a sum of products at its index, the one over `row` first, and the variable of the sum."""
    inner = product.tensor.definition
    assert isinstance(inner, Reduction)
    assert inner.contraction is not None
    replacements = dict(zip(inner.variables, product.index, strict=True))
    left, right = (factor.substitute(replacements) for factor in (inner.contraction.left, inner.contraction.right))
    if column in left.variables:
        left, right = right, left
    is_apart = column not in left.variables and row not in right.variables
    return (left, right, inner.reduced[0]) if is_apart and row in left.variables and column in right.variables else None


def named_score(score: Scalar, product: Access, scale: float) -> Scalar:
    """Return the score with `scale` times the argument ``product`` for the product that it reads."""

    def named(access: Access) -> Scalar:
        if access != product:
            return access
        argument = Argument(PRODUCT, access.dtype)
        return argument if scale == 1.0 else op("mul", argument, Constant(scale, access.dtype))

    return chosen_score(rewrite(score, named))


def _plain_operands(query_part: Scalar, key_part: Scalar, value: Scalar) -> tuple[Scalar, Scalar, Scalar, float] | None:
    """Return the factors without conversions from narrower types and constant scales, and the product of the scales."""
    (query, query_scale), (key, key_scale), (plain_value, value_scale) = (
        unscaled(factor) for factor in (query_part, key_part, value)
    )
    kept = plain_value if value_scale == 1.0 else value
    return (query, key, kept, query_scale * key_scale) if are_operands(query, key, kept) else None


def unscaled(factor: Scalar) -> tuple[Scalar, float]:
    scale = 1.0
    while True:
        inner, own = _peeled(factor)
        if inner is None:
            return factor, scale
        factor, scale = inner, scale * own


def _peeled(factor: Scalar) -> tuple[Scalar | None, float]:
    """Return the operand of a view, a widening conversion or a constant scale; None for anything else."""
    if isinstance(factor, Access) and factor.mask is None and isinstance(factor.tensor.definition, Pointwise):
        definition = factor.tensor.definition
        body = definition.body.substitute(dict(zip(definition.variables, factor.index, strict=True)))
        is_plain = isinstance(body, Access) or _peeled(body)[0] is not None
        return (body if is_plain else None), 1.0
    if isinstance(factor, Operation) and factor.name == "cast":
        inner = factor.operands[0]
        is_widening = inner.dtype.is_floating and inner.dtype.itemsize <= factor.dtype.itemsize
        return (inner if is_widening else None), 1.0
    if isinstance(factor, Operation) and factor.name == "mul":
        for inner, scale in (factor.operands, factor.operands[::-1]):
            if isinstance(scale, Constant):
                return inner, float(scale.value)
    return None, 1.0


def is_product(tensor: Tensor) -> bool:
    definition = tensor.definition
    return isinstance(definition, Reduction) and definition.contraction is not None and len(definition.reduced) == 1


def are_operands(*factors: Scalar) -> bool:
    types = {factor.dtype for factor in factors}
    return len(types) == 1 and types <= set(OPERANDS)


def has_fragments(*columns: Variable) -> bool:
    """Check that the MMA fragments support the sizes of a head and of a value."""
    sizes = [column.extent.constant for column in columns]
    return all(size is not None and _has_fragments(size) for size in sizes)


def _has_fragments(size: int) -> bool:
    return size % HEAD_MULTIPLE == 0 and 0 < size <= MAX_HEAD


def chosen_score(score: Scalar) -> Scalar:
    """Return the score with ``x + (seen ? 0 : -inf)`` as ``seen ? x : -inf``: a hidden NaN stays hidden."""
    if not isinstance(score, Operation) or score.name != "add":
        return score
    for value, mask in (score.operands, score.operands[::-1]):
        if isinstance(mask, Operation) and mask.name == "select" and _is_lowest(mask.operands[2]):
            seen, zero, lowest = mask.operands
            if isinstance(zero, Constant) and zero.value == 0:
                return select(seen, chosen_score(value), lowest)
    return score


def _conditions(score: Scalar) -> list[Scalar]:
    """Return conditions without which the score is minus infinity."""
    if not isinstance(score, Operation):
        return []
    if score.name == "cast":
        return _conditions(score.operands[0])
    if score.name == "add":
        return [condition for operand in score.operands for condition in _conditions(operand)]
    if score.name == "select" and _is_lowest(score.operands[2]):
        return [*_conjuncts(score.operands[0]), *_conditions(score.operands[1])]
    return []


def _conjuncts(condition: Scalar) -> Sequence[Scalar]:
    if isinstance(condition, Operation) and condition.name == "logical_and":
        return [part for operand in condition.operands for part in _conjuncts(operand)]
    return [condition]


def _position_of(scalar: Scalar) -> Index | None:
    if isinstance(scalar, IndexValue):
        return scalar.index
    return as_index(int(scalar.value)) if isinstance(scalar, Constant) and scalar.dtype == DType.I64 else None


def _is_lowest(scalar: Scalar) -> bool:
    return isinstance(scalar, Constant) and scalar.value == MINUS_INFINITY


def without_casts(scalar: Scalar) -> Scalar:
    while isinstance(scalar, Operation) and scalar.name == "cast" and scalar.operands[0].dtype.is_floating:
        scalar = scalar.operands[0]
    return scalar


def inlined(scalar: Scalar) -> Scalar:
    """Return the scalar with every pointwise definition inlined."""
    done: dict[bytes, Scalar] = {}

    def inline(access: Access) -> Scalar:
        definition = access.tensor.definition
        if not isinstance(definition, Pointwise):
            return access
        if access.digest not in done:
            body = definition.body.substitute(dict(zip(definition.variables, access.index, strict=True)))
            written = rewrite(body, inline)
            done[access.digest] = written if access.mask is None else masked(access.mask, written)
        return done[access.digest]

    return rewrite(scalar, inline)
