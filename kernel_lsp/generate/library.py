"""Plan the vendor library call, through ATen, for a sum of products: its factors, their memory order, and the memory
layout that the call needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose, isnan, nan
from typing import TypeGuard

from kernel_lsp.core import expression
from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import LibraryArgument, LibraryStep
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, product
from kernel_lsp.generate.ir.scalar import Access, Argument, Constant, Operation, Scalar, accesses, cast, unconverted
from kernel_lsp.generate.ir.sizes import ravel, reshape, unravel_safe
from kernel_lsp.generate.ir.tensor import (
    Attention,
    AttentionGradient,
    Buffer,
    LibraryCall,
    LibraryResult,
    LogSums,
    Pointwise,
    Reduction,
    Tensor,
    is_view,
)
from kernel_lsp.generate.lowering.builder import positions
from kernel_lsp.generate.structure.attention_patterns import last_key_of, score_of_seen

LIBRARY_FROM_PRODUCTS_OF_16_BITS = 1 << 27
"""Minimum products of f16 and bf16 for a vendor library by default: it uses more of their rate than `mma.sync` does."""
LIBRARY_FROM_PRODUCTS_OF_LONG_SUMS, MIN_LONG_TERMS = 1 << 26, 1024
"""The same for sums of many terms: of a low-rank update, 4096 rows of 1024 to 16 and back in bf16, the forward took
37.5 us on an H200 by threads that share sums, 30.5 by the library, and the gradients 203 and 70."""
ATTENTION_RANK = 4
"""Dims of queries, keys and values for which ATen has fused kernels."""
SCALE_TOLERANCE = 1e-5
"""Maximum relative difference between the scales of a score and of its gradients: graphs state them as products."""
GRADIENTS = ("query", "key", "value")
"""Kinds of gradients, in the order of the results of ``sdpa::backward``."""


@dataclass(frozen=True)
class LibraryPlan:
    """The call's result as a tensor of its own, and the contraction expressed by it."""

    result: Tensor
    view: Pointwise


def least_products_of_16_bits(n_terms: int) -> int:
    """Return the minimum products in 16 bits for a vendor library by default."""
    return LIBRARY_FROM_PRODUCTS_OF_LONG_SUMS if n_terms >= MIN_LONG_TERMS else LIBRARY_FROM_PRODUCTS_OF_16_BITS


def library_plan(tensor: Tensor, definition: Reduction) -> LibraryPlan | None:
    """Return the library plan that computes `tensor`; None when no function does."""
    contraction = definition.contraction
    if contraction is None or contraction.library is None:
        return None
    call = _direct(contraction.library)
    operands = [argument for argument in call.arguments if isinstance(argument, Tensor)]
    if len({operand.dtype for operand in operands}) != 1 or not operands[0].dtype.is_floating:
        return None
    result = _result_of(tensor, LibraryResult(call), operands[0].dtype, call.shape)
    index = reshape(positions(definition.variables), tensor.shape, call.shape)
    return _viewed_as(tensor, definition.variables, result, index)


def biased_plan(tensor: Tensor, product: Tensor, definition: Reduction) -> LibraryPlan | None:
    """Return the library plan of a product in 16 bits and a bias of its columns, whose sum is rounded once, as
    PyTorch's is; None for any other tensor."""
    plan, sum_ = library_plan(product, definition), tensor.definition
    if plan is None or not isinstance(sum_, Pointwise) or tensor.dtype not in (DType.F16, DType.BF16):
        return None
    assert isinstance(plan.result.definition, LibraryResult)
    call, body = plan.result.definition.call, unconverted(sum_.body)
    if call.function != "aten::linear" or not isinstance(body, Operation) or body.name != "add":
        return None
    terms = {part.tensor: part for part in map(unconverted, body.operands) if isinstance(part, Access)}
    of_product, bias = terms.pop(product, None), next(iter(terms.values()), None)
    if of_product is None or bias is None or of_product.index != positions(sum_.variables):
        return None
    is_bias = isinstance(bias.tensor.definition, Buffer) and bias.index == (as_index(sum_.variables[-1]),)
    if not is_bias or bias.mask is not None or bias.dtype != tensor.dtype or plan.result.dtype != tensor.dtype:
        return None
    called = replace(call, arguments=(*call.arguments, bias.tensor))
    result = _result_of(tensor, LibraryResult(called), tensor.dtype, call.shape)
    return _viewed_as(tensor, sum_.variables, result, reshape(positions(sum_.variables), tensor.shape, call.shape))


def attention_plan(tensor: Tensor, attention: Attention) -> LibraryPlan | None:
    """Return the library plan of an attention; None where its mask is not causal, or where an operand is computed or
    lies in memory in another order of dims."""
    m, n = (attention.variables[axes[0]] for axes in (attention.row_axes, attention.column_axes))
    operands, settings = fused_operands(attention, m, n), fused_settings(attention, m)
    if operands is None or settings is None:
        return None
    query, key, value = operands
    shape = (*query.tensor.shape[:-1], value.tensor.shape[-1])
    call = LibraryCall("sdpa::forward", (query.tensor, key.tensor, value.tensor, *settings), shape)
    result = _result_of(tensor, LibraryResult(call), query.dtype, shape)
    return _viewed_as(tensor, attention.variables, result, (*query.index[:-1], as_index(n)))


def kept_attention_plans(tensor: Tensor, attention: Attention, log_sums: Tensor) -> list[tuple[Tensor, LibraryPlan]]:
    """Return the plans of an attention and of the logarithms of its sums, which one call gives; none where the
    attention has no library plan."""
    plan, definition = attention_plan(tensor, attention), log_sums.definition
    if plan is None:
        return []
    assert isinstance(definition, LogSums)
    assert isinstance(plan.result.definition, LibraryResult)
    made = plan.result.definition.call
    call = replace(made, function="sdpa::forward_kept")
    result = _result_of(tensor, LibraryResult(call), plan.result.dtype, made.shape)
    of_sums = _result_of(log_sums, LibraryResult(call, 1), DType.F32, log_sums.shape)
    index = plan.view.body.operands[0] if isinstance(plan.view.body, Operation) else plan.view.body
    assert isinstance(index, Access)
    return [
        (tensor, _viewed_as(tensor, attention.variables, result, index.index)),
        (log_sums, _viewed_as(log_sums, definition.variables, of_sums, positions(definition.variables))),
    ]


def gradient_plans(
    family: Sequence[tuple[Tensor, AttentionGradient]], kept: tuple[Tensor, Tensor] | None = None
) -> list[tuple[Tensor, LibraryPlan]]:
    """Return the plans of the gradients of an attention, one call of three results; none where there are others, or
    where the attention itself has no library plan. `kept` are its result and the logarithms of its sums."""
    by_kind = {gradient.kind: (tensor, gradient) for tensor, gradient in family}
    if len(by_kind) != len(family) or by_kind.keys() != set(GRADIENTS):
        return []
    first = by_kind["query"][1]
    operands, settings = fused_operands(first, first.m, first.width), fused_settings(first, first.m)
    if operands is None or settings is None or not isinstance(first.grad, Access):
        return []
    query, key, value = operands
    is_plain = first.grad.index == (*query.index[:-1], as_index(first.width)) and first.grad.mask is None
    if not is_plain or first.grad_scale != 1.0 or first.head.extent != first.width.extent:
        return []
    tensors = (query.tensor, key.tensor, value.tensor, first.grad.tensor)
    call = LibraryCall("sdpa::backward", (*tensors, *settings), query.tensor.shape)
    if kept is not None:
        call = LibraryCall("sdpa::backward_kept", (*tensors, *kept, *settings), query.tensor.shape)
    factors = dict(zip(GRADIENTS, (settings[1], settings[1], 1.0), strict=True))
    plans = []
    for place, (kind, operand) in enumerate(zip(GRADIENTS, operands, strict=True)):
        tensor, gradient = by_kind[kind]
        at = _element_of(gradient)
        if at is None or at.tensor is not operand.tensor or not _is_near(gradient.factor, factors[kind]):
            return []
        result = _result_of(tensor, LibraryResult(call, place), at.dtype, at.tensor.shape)
        plans.append((tensor, _viewed_as(tensor, gradient.variables, result, at.index)))
    return plans


def library_step(call: LibraryCall, results: Sequence[Tensor], names: Mapping[Tensor, str]) -> LibraryStep:
    """Return the step of a launch plan that makes a call and keeps its results under the tensors' names."""

    def written(argument: Tensor | float | bool | tuple[int, ...] | None) -> LibraryArgument:
        match argument:
            case Tensor():
                return names[argument]
            case tuple():
                return tuple(expression.Constant(value) for value in argument)
            case None:
                return None
        return expression.Constant(argument)

    return LibraryStep(call.function, tuple(map(written, call.arguments)), tuple(names[tensor] for tensor in results))


def _result_of(tensor: Tensor, definition: LibraryResult, dtype: DType, shape: Sequence[Index]) -> Tensor:
    """Return a call's result as a tensor, named after the one that it computes."""
    return Tensor(f"{tensor.name}_by_library", tensor.serial - 1, dtype, tuple(shape), definition, tensor.source)


def _viewed_as(
    tensor: Tensor, variables: tuple[Variable, ...], result: Tensor, index: tuple[Index, ...]
) -> LibraryPlan:
    """Return the plan of a tensor whose element `variables` is the result's at `index`."""
    return LibraryPlan(result, Pointwise(variables, cast(Access(result, index), tensor.dtype)))


def fused_operands(
    attention: Attention | AttentionGradient, m: Variable, n: Variable
) -> tuple[Access, Access, Access] | None:
    """Return the elements of queries, keys and values of (batch, heads, rows, columns) that are multiplied; None where
    they are computed, lie in memory otherwise, or where heads are grouped in another way than ATen's."""
    query, key, value = attention.query_part, attention.key_part, attention.value
    batch = [attention.variables[axis] for axis in attention.batch_axes]
    if not (_is_element(query) and _is_element(key) and _is_element(value)):
        return None
    if query.index != (*_batch_index(query, batch), as_index(m), as_index(attention.head)):
        return None
    inner = ((key, attention.head), (value, n))
    are_grouped = all(
        part.index == (*_grouped(query, part), as_index(attention.key), as_index(column)) for part, column in inner
    )
    return (query, key, value) if are_grouped and key.tensor.shape[1] == value.tensor.shape[1] else None


def _element_of(gradient: AttentionGradient) -> Access | None:
    """Return the operand's element whose gradient a gradient's element is; None where it sums over others."""
    part = {"query": gradient.query_part, "key": gradient.key_part, "value": gradient.value}[gradient.kind]
    inner = gradient.width if gradient.kind == "value" else gradient.head
    row, column = (gradient.variables[axes[0]] for axes in (gradient.row_axes, gradient.column_axes))
    batch = [gradient.variables[axis] for axis in gradient.batch_axes]
    if not _is_element(part) or part.index != (*_batch_index(part, batch), as_index(row), as_index(inner)):
        return None
    return Access(part.tensor, (*part.index[:-1], as_index(column)))


def _is_element(part: Scalar) -> TypeGuard[Access]:
    """Return True for an element of a tensor of the dims that ATen's fused attention has."""
    return isinstance(part, Access) and part.mask is None and len(part.tensor.shape) == ATTENTION_RANK


def _batch_index(part: Access, batch: Sequence[Variable]) -> tuple[Index, ...]:
    """Return the index of batch and head in row-major order of these variables."""
    return unravel_safe(ravel(positions(batch), [variable.extent for variable in batch]), part.tensor.shape[:-2])


def _grouped(query: Access, part: Access) -> tuple[Index, ...]:
    """Return the index of batch and head of a key or a value at a query's, where a group of heads shares them."""
    batch, head = query.index[:2]
    ours, theirs = query.tensor.shape[1].constant, part.tensor.shape[1].constant
    if ours is None or theirs is None or ours == theirs or ours % theirs:
        return (batch, head)
    return (batch, head // (ours // theirs))


def fused_settings(attention: Attention | AttentionGradient, m: Variable) -> tuple[bool, float] | None:
    """Return True for a causal mask, and the scale of a score; None for another mask or another score."""
    seen, last = score_of_seen(attention.score, m, attention.key), last_key_of(attention.score, m, attention.key)
    is_causal = seen != attention.score
    if seen is None or (is_causal and last != as_index(0)):
        return None
    scale = _scale_of(seen)
    return None if isnan(scale) else (is_causal, scale)


def _is_near(factor: float, other: float) -> bool:
    return isclose(factor, other, rel_tol=SCALE_TOLERANCE)


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


def _direct(call: LibraryCall) -> LibraryCall:
    """Return the same product of the tensors that the operands are views of, when a function accepts those."""
    if call.function not in ("aten::mm", "aten::bmm"):
        return call
    left, right = call.arguments
    assert isinstance(left, Tensor)
    assert isinstance(right, Tensor)
    base = _same_memory(left)
    if base is None:
        return _columns_by_columns(call, left, right)
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


def _columns_by_columns(call: LibraryCall, left: Tensor, right: Tensor) -> LibraryCall:
    """Return the product over all dims but the last of the tensors whose columns two matrices multiply, as for the
    gradient of a weight: it needs no transposed copy of the left one."""
    base, flat, _ = _viewed(left)
    other = _same_memory(right)
    transposed = ravel(tuple(reversed(_view_body(left)[0])), tuple(reversed(left.shape)))
    if call.function != "aten::mm" or other is None or flat != transposed or base.shape[-1] != left.shape[0]:
        return call
    summed = tuple(range(len(base.shape) - 1))
    if not summed or base.shape[:-1] != other.shape[:-1] or other.shape[-1] != right.shape[-1]:
        return call
    return LibraryCall("aten::tensordot", (base, other, summed, summed), call.shape)


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
    while isinstance(scalar, Access) and is_view(scalar.tensor):
        inner = scalar.tensor.definition
        assert isinstance(inner, Pointwise)
        scalar = inner.body.substitute(dict(zip(inner.variables, scalar.index, strict=True)))
    return own, scalar.index if isinstance(scalar, Access) and is_view(tensor) else own


def _base(tensor: Tensor) -> Tensor:
    while is_view(tensor):
        assert isinstance(tensor.definition, Pointwise)
        assert isinstance(tensor.definition.body, Access)
        tensor = tensor.definition.body.tensor
    return tensor


def n_products(definition: Reduction, shape: Sequence[Index]) -> Index:
    """Return the number of multiplications of a contraction."""
    return product(shape) * product(variable.extent for variable in definition.reduced)


SCALES = (2.0**-20, 2.0**20)
"""Smallest and largest constant factor that multiplies a sum instead of its terms: a sum beyond f32's range is computed
again, term by term."""


def without_scale(factor: Scalar) -> tuple[Scalar, float]:
    """Return a factor in f32 without the numbers that it is multiplied by, so that it may be an element in memory, and
    the product of these numbers."""
    scale = 1.0
    while isinstance(factor, Operation) and factor.name == "mul":
        parts = [(a, b) for a, b in (factor.operands, factor.operands[::-1]) if isinstance(b, Constant)]
        if not parts or not SCALES[0] <= abs(float(parts[0][1].value)) <= SCALES[1]:
            break
        factor, scale = parts[0][0], scale * float(parts[0][1].value)
    return factor, scale


def runs_along(factor: Scalar, reduced: Sequence[Variable]) -> bool:
    """Return True if every tensor behind a factor, through views, casts and arithmetic, is constant along the summed
    dims or has them last."""
    found = list(reads_behind(factor, reduced))
    return bool(found) and all(is_matrix(e) and not e.index[-1].variables.isdisjoint(reduced) for e in found)


def run_along(factors: Iterable[Scalar], reduced: Sequence[Variable]) -> bool:
    """Return True if this holds for all factors."""
    return all(runs_along(factor, reduced) for factor in factors)


def stays_in_registers(factors: Sequence[Scalar], definition: Reduction, is_small: bool) -> bool:
    """Return True if sums of few rows suit registers: a small product with a factor along its sums, or narrow factors
    along them."""
    if is_small and any(runs_along(factor, definition.reduced) for factor in factors):
        return True
    reads = (read for factor in factors for read in reads_behind(factor, definition.reduced))
    return any(read.dtype.itemsize < 4 for read in reads) and run_along(factors, definition.reduced)


def has_bytes(factors: Sequence[Scalar], reduced: Sequence[Variable]) -> bool:
    """Return True for factors in 16 bits of which one is computed from bytes along the sums: quantized weights."""
    reads = (read for factor in factors for read in reads_behind(factor, reduced))
    is_narrow = any(read.dtype.itemsize == 1 for read in reads) and all(each.dtype.itemsize == 2 for each in factors)
    return is_narrow and run_along(factors, reduced)


def reads_behind(factor: Scalar, reduced: Sequence[Variable]) -> Iterator[Access]:
    """Yield the reads of memory behind a factor that vary along the summed dims."""
    for access in accesses(factor):
        definition = access.tensor.definition
        if access.variables.isdisjoint(reduced):
            continue
        if isinstance(definition, Pointwise):
            along = dict(zip(definition.variables, access.index, strict=True))
            yield from reads_behind(definition.body.substitute(along), reduced)
        else:
            yield access


def is_matrix(factor: Scalar) -> bool:
    """Return True if a factor is a tensor indexed by one variable per dim, so that runs of it are vector loads."""
    if not isinstance(factor, Access) or factor.mask is not None:
        return False
    return all(
        len(index.terms) <= 1 and all(step == 1 and len(atoms) <= 1 for atoms, step in index.terms)
        for index in factor.index
    )
