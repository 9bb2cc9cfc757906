"""Plan the vendor library call, through ATen, for a sum of products, and the memory layout that it needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose, nan

from kernel_lsp.generate.attention import last_key_of, score_of_seen
from kernel_lsp.generate.ir.index import Index, Variable, as_index, product
from kernel_lsp.generate.ir.row_major import ravel, reshape, unravel_safe
from kernel_lsp.generate.ir.scalar import Access, Argument, Constant, Operation, Scalar, cast
from kernel_lsp.generate.ir.tensor import Attention, LibraryCall, LibraryResult, Pointwise, Reduction, Tensor
from kernel_lsp.generate.lowering.builder import positions

ATTENTION_RANK = 4
"""Dims of queries, keys and values for which ATen has fused kernels."""
SCALE_TOLERANCE = 1e-5
"""Maximum relative difference between a score's scale and ATen's default: graphs state it as a product of two."""


@dataclass(frozen=True)
class LibraryPlan:
    """The call's result as a tensor of its own, and the contraction expressed by it."""

    result: Tensor
    view: Pointwise


def library_plan(tensor: Tensor, definition: Reduction) -> LibraryPlan | None:
    """Return the library plan that computes `tensor`; None when no function does."""
    contraction = definition.contraction
    if contraction is None or contraction.library is None:
        return None
    call = _direct(contraction.library)
    operands = [argument for argument in call.arguments if isinstance(argument, Tensor)]
    if len({operand.dtype for operand in operands}) != 1 or not operands[0].dtype.is_floating:
        return None
    name = f"{tensor.name}_by_library"
    result = Tensor(name, tensor.serial - 1, operands[0].dtype, call.shape, LibraryResult(call), tensor.source)
    index = positions(definition.variables)
    body: Scalar = Access(result, reshape(index, tensor.shape, call.shape))
    return LibraryPlan(result, Pointwise(definition.variables, cast(body, tensor.dtype)))


def attention_plan(tensor: Tensor, attention: Attention) -> LibraryPlan | None:
    """Return the library plan of an attention; None where ATen's function needs arguments by keyword, as for another
    scale or grouped queries, or a mask that is not causal."""
    m, n = (attention.variables[axes[0]] for axes in (attention.row_axes, attention.column_axes))
    batch = [attention.variables[axis] for axis in attention.batch_axes]
    flat = ravel(positions(batch), [variable.extent for variable in batch])
    parts = ((attention.query_part, m, attention.head), (attention.key_part, attention.key, attention.head))
    operands = [_operand_of(part, flat, *rows) for part, *rows in (*parts, (attention.value, attention.key, n))]
    seen, last = score_of_seen(attention.score, m, attention.key), last_key_of(attention.score, m, attention.key)
    is_causal = seen != attention.score
    if None in operands or seen is None or (is_causal and last != as_index(0)):
        return None
    size = attention.head.extent.constant
    if size is None or not isclose(_scale_of(seen), size**-0.5, rel_tol=SCALE_TOLERANCE):
        return None
    query, key, value = (operand for operand in operands if operand is not None)
    if len({operand.shape[:-2] for operand in (query, key, value)}) != 1:
        return None
    shape = (*query.shape[:-1], value.shape[-1])
    call = LibraryCall("aten::scaled_dot_product_attention", (query, key, value, None, 0, is_causal), shape)
    name = f"{tensor.name}_by_library"
    result = Tensor(name, tensor.serial - 1, query.dtype, shape, LibraryResult(call), tensor.source)
    body: Scalar = Access(result, reshape(positions(attention.variables), tensor.shape, shape))
    return LibraryPlan(result, Pointwise(attention.variables, cast(body, tensor.dtype)))


def _operand_of(part: Scalar, batch: Index, row: Variable, column: Variable) -> Tensor | None:
    """Return the tensor of which a factor is the element (batch, row, column); None where it is computed."""
    if not isinstance(part, Access) or part.mask is not None or len(part.tensor.shape) != ATTENTION_RANK:
        return None
    index = (*unravel_safe(batch, part.tensor.shape[:-2]), as_index(row), as_index(column))
    return part.tensor if part.index == index else None


def _scale_of(score: Scalar) -> float:
    """Return the factor of the product in a score without a mask; NaN where the score is anything else."""
    scale = 1.0
    while not isinstance(score, Argument):
        if not isinstance(score, Operation) or score.name not in ("mul", "cast"):
            return nan
        factors = [operand for operand in score.operands if isinstance(operand, Constant)]
        scale *= float(factors[0].value) if factors else 1.0
        rest = [operand for operand in score.operands if not isinstance(operand, Constant)]
        if len(rest) != 1:
            return nan
        score = rest[0]
    return scale


# --- matrix products of views, without copies where ATen accepts the viewed tensors


def _direct(call: LibraryCall) -> LibraryCall:
    """Return the same product of the tensors that the operands are views of, when a function accepts those."""
    if call.function not in ("aten::mm", "aten::bmm"):
        return call
    left, right = call.arguments
    assert isinstance(left, Tensor)
    assert isinstance(right, Tensor)
    base = _same_memory(left)
    if base is None:
        return call
    if call.function == "aten::mm" and base.shape and base.shape[-1] == left.shape[-1]:
        weight = _transposed_memory(right)
        if weight is not None:
            return LibraryCall("aten::linear", (base, weight), (*base.shape[:-1], right.shape[-1]))
        matrix = _same_memory(right)
        if matrix is not None and matrix.shape == right.shape:
            return LibraryCall("aten::matmul", (base, matrix), (*base.shape[:-1], right.shape[-1]))
    other = _same_memory(right)
    if call.function == "aten::bmm" and other is not None and _same_batch(base, other, left, right):
        return LibraryCall("aten::matmul", (base, other), (*base.shape[:-1], right.shape[-1]))
    return call


def _same_batch(left: Tensor, right: Tensor, left_view: Tensor, right_view: Tensor) -> bool:
    """Return True if both tensors are batches of the same matrices as their views."""
    is_left = len(left.shape) > 2 and left.shape[-2:] == left_view.shape[-2:]
    is_right = len(right.shape) == len(left.shape) and right.shape[-2:] == right_view.shape[-2:]
    return is_left and is_right and left.shape[:-2] == right.shape[:-2]


def _same_memory(tensor: Tensor) -> Tensor | None:
    """Return the tensor with the same memory layout as `tensor`: itself, or the tensor that it reshapes."""
    base, flat, own = _viewed(tensor)
    return base if flat == own else None


def _transposed_memory(matrix: Tensor) -> Tensor | None:
    """Return the (N, K) tensor whose transpose a (K, N) matrix is."""
    base, _, _ = _viewed(matrix)
    if len(base.shape) != 2 or base.shape != tuple(reversed(matrix.shape)) or base is matrix:
        return None
    variables, body = _view_body(matrix)
    return base if body == tuple(reversed(variables)) else None


def _viewed(tensor: Tensor) -> tuple[Tensor, Index, Index]:
    """Return the base of a chain of views, the flat position in the base, and the flat position in the view."""
    variables, index = _view_body(tensor)
    base = _base(tensor)
    return base, ravel(index, base.shape), ravel(variables, tensor.shape)


def _view_body(tensor: Tensor) -> tuple[tuple[Index, ...], tuple[Index, ...]]:
    """Return the view's own index, and the index of the base that it reads there."""
    definition = tensor.definition
    if not isinstance(definition, Pointwise):
        index = tuple(as_index(0) for _ in tensor.shape)
        return index, index
    own = positions(definition.variables)
    scalar: Scalar = definition.body
    while isinstance(scalar, Access) and _is_view(scalar.tensor):
        inner = scalar.tensor.definition
        assert isinstance(inner, Pointwise)
        scalar = inner.body.substitute(dict(zip(inner.variables, scalar.index, strict=True)))
    return own, scalar.index if isinstance(scalar, Access) and _is_view(tensor) else own


def _base(tensor: Tensor) -> Tensor:
    while _is_view(tensor):
        assert isinstance(tensor.definition, Pointwise)
        assert isinstance(tensor.definition.body, Access)
        tensor = tensor.definition.body.tensor
    return tensor


def _is_view(tensor: Tensor) -> bool:
    definition = tensor.definition
    return isinstance(definition, Pointwise) and isinstance(definition.body, Access) and definition.body.mask is None


def n_products(definition: Reduction, shape: Sequence[Index]) -> Index:
    """Return the number of multiplications of a contraction."""
    return product(shape) * product(variable.extent for variable in definition.reduced)
