"""Reads and writes at data-dependent indices: gather, embedding, index, scatter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.atoms import Indirect, Variable
from kernel_lsp.generate.ir.index import Index, as_index, is_nonnegative, substitute
from kernel_lsp.generate.ir.scalar import (
    TRUE,
    Access,
    Constant,
    IndexValue,
    Loop,
    Operation,
    Scalar,
    as_position,
    both,
    cast,
    compare,
    guarded,
    in_range,
    index_value,
    integer,
    select,
)
from kernel_lsp.generate.ir.tensor import Pointwise, Scatter, Tensor
from kernel_lsp.generate.lowering.arithmetic import op
from kernel_lsp.generate.lowering.builder import Call, accumulation_dtype, lowers, positions, read
from kernel_lsp.generate.lowering.contraction import converted

ValueAt = Callable[[tuple[Index, ...]], Scalar]
"""Map from an update's index to the value to write."""
PositionsOf = Callable[[tuple[Index, ...]], list[Index]]
"""Map from an index of the result to one of the source."""


@lowers("gather")
def _gather(call: Call) -> Tensor:
    source, index_tensor = call.tensor(0), call.tensor(2, "index")
    if not source.shape:
        return call.builder.pointwise(call.dtype(), call.shape(), lambda index: Access(source, ()))
    axis = call.axis(1, "dim", len(source.shape))

    def to_source(index: tuple[Index, ...]) -> list[Index]:
        return [*index[:axis], position_of(Access(index_tensor, index)), *index[axis + 1 :]]

    return call.builder.view(source, call.shape(), to_source)


def position_of(scalar: Scalar) -> Index:
    """Return an integer value as an index; one that is made of positions and sizes alone is read from no memory."""
    found = _arithmetic(scalar)
    return as_position(cast(scalar, DType.I64)) if found is None else found


def _arithmetic(scalar: Scalar) -> Index | None:
    """Return an integer value as arithmetic of positions and sizes, such as that of a roll, ``(arange(n) + 2) % n``;
    None where it is another."""
    scalar = _defined(scalar)
    if isinstance(scalar, IndexValue) or (isinstance(scalar, Constant) and scalar.dtype == DType.I64):
        return as_position(scalar)
    if not isinstance(scalar, Operation) or scalar.dtype not in (DType.I32, DType.I64):
        return None
    operands = [_arithmetic(operand) for operand in scalar.operands]
    if None in operands:
        return None
    first, *others = (operand for operand in operands if operand is not None)
    match scalar.name:
        case "cast":
            return first
        case "add":
            return first + others[0]
        case "sub":
            return first - others[0]
        case "mul":
            return first * others[0]
        case "fmod" | "remainder" if is_nonnegative(first) and is_nonnegative(others[0] - 1):
            return first % others[0]
    return None


@lowers("index_select")
def _index_select(call: Call) -> Tensor:
    source, indices = call.tensor(0), call.tensor(2, "index")
    axis = call.axis(1, "dim", max(len(source.shape), 1))

    def to_source(index: tuple[Index, ...]) -> list[Index]:
        at = (index[axis],) if indices.shape else ()
        return [*index[:axis], position_of(Access(indices, at)), *index[axis + 1 :]]

    return call.builder.view(source, call.shape(), to_source)


@lowers("embedding")
def _embedding(call: Call) -> Tensor:
    weight, indices = call.tensor(0, "weight"), call.tensor(1, "indices")

    return call.builder.view(weight, call.shape(), lambda index: [position_of(Access(indices, index[:-1])), index[-1]])


@lowers("index", "_unsafe_index")
def _index(call: Call) -> Tensor:
    """Lower ``source[i, :, j]`` with integer tensors that broadcast; a negative index counts from the end."""
    source = call.tensor(0)
    given = call.tensors(1, "indices")
    to_source = advanced_index(call, source, given)
    return call.builder.view(source, call.shape(), to_source)


def advanced_index(call: Call, source: Tensor, given: Sequence[Tensor | None]) -> PositionsOf:
    """Return the map from an index of the result to one of the source, by the rules of NumPy's advanced indexing."""
    used = [axis for axis, tensor in enumerate(given) if tensor is not None]
    if any(tensor.dtype in (DType.BOOL, DType.U8) for tensor in given if tensor is not None):
        call.fail("it selects by a mask, so that its size depends on values")
    n_broadcast = max(len(tensor.shape) for tensor in given if tensor is not None)
    is_adjacent = used == list(range(used[0], used[-1] + 1))
    start = used[0] if is_adjacent else 0

    def to_source(index: tuple[Index, ...]) -> list[Index]:
        broadcast = index[start : start + n_broadcast]
        rest = iter((*index[:start], *index[start + n_broadcast :]))
        result = []
        for axis in range(len(source.shape)):
            tensor = given[axis] if axis < len(given) else None
            result.append(next(rest) if tensor is None else _wrapped(read(tensor, broadcast), source.shape[axis]))
        return result

    return to_source


def _wrapped(scalar: Scalar, size: Index) -> Index:
    """Return the position with negative values counted from the end."""
    found = _arithmetic(scalar)
    if found is not None and is_nonnegative(found):
        return found
    value = cast(scalar, DType.I64)
    if _is_nonnegative_value(scalar):
        return as_position(value)
    is_negative = compare("lt", value, integer(0))
    return as_position(select(is_negative, op("add", value, index_value(size)), value))


def _is_nonnegative_value(scalar: Scalar) -> bool:
    """Return True for a value that provably is not negative: clamped from below, or chosen where it is not negative."""
    scalar = _defined(scalar)
    if isinstance(scalar, Constant):
        return scalar.value >= 0
    if isinstance(scalar, IndexValue):
        return is_nonnegative(scalar.index)
    if not isinstance(scalar, Operation):
        return False
    operands = scalar.operands
    match scalar.name:
        case "select":
            condition, if_true, if_false = operands
            is_guarded = _implies_nonnegative(condition, if_true, "ge")
            is_clamped = _implies_nonnegative(condition, if_false, "lt")
            return (is_guarded or _is_nonnegative_value(if_true)) and (is_clamped or _is_nonnegative_value(if_false))
        case "maximum":
            return any(map(_is_nonnegative_value, operands))
        case "cast":  # to narrower integers it wraps
            return (scalar.dtype == DType.I64 or scalar.dtype.is_floating) and _is_nonnegative_value(operands[0])
        case "minimum" | "floor" | "round":
            return all(map(_is_nonnegative_value, operands))
    return False


def _implies_nonnegative(condition: Scalar, value: Scalar, comparison: str) -> bool:
    """Return True if the value cannot be negative: for "ge" wherever ``value >= c``, alone or joined to others by
    `and`, holds; for "lt" wherever ``value < c`` does not. c is a number that is not negative."""
    condition = _defined(condition)
    if not isinstance(condition, Operation):
        return False
    if comparison == "ge" and condition.name in ("bitwise_and", "logical_and"):
        return any(_implies_nonnegative(part, value, comparison) for part in condition.operands)
    if condition.name != comparison:
        return False
    low = condition.operands[1]
    return condition.operands[0] == value and isinstance(low, Constant) and low.value >= 0


def _defined(scalar: Scalar) -> Scalar:
    """Return the expression of an element of a pointwise tensor; any other scalar as it is."""
    while isinstance(scalar, Access) and scalar.mask is None and isinstance(scalar.tensor.definition, Pointwise):
        definition = scalar.tensor.definition
        scalar = definition.body.substitute(dict(zip(definition.variables, scalar.index, strict=True)))
    return scalar


@lowers("scatter", "scatter_add", "scatter_reduce")
def _scatter(call: Call) -> Tensor:
    base, index_tensor = call.tensor(0), call.tensor(2, "index")
    rank = len(base.shape)
    axis = call.axis(1, "dim", max(rank, 1))
    name = call.node.op.split(".")[1]
    overload = call.node.op.rsplit(".", 1)[-1]
    value = _scatter_value(call, overload)
    if name == "scatter_reduce" or overload in ("reduce", "value_reduce"):
        kind = str(call.raw(4, "reduce"))
        return _gathered_updates(call, base, index_tensor, axis, value, UPDATES[kind])
    return _general_scatter(call, base, index_tensor, axis, value, "sum" if name == "scatter_add" else "set")


UPDATES = {
    "add": "sum",
    "sum": "sum",
    "multiply": "prod",
    "prod": "prod",
    "mean": "mean",
    "amax": "max",
    "amin": "min",
}
"""Kind of reduction by ATen's name of it."""


def _gathered_updates(
    call: Call,
    base: Tensor,
    index_tensor: Tensor,
    axis: int,
    value: ValueAt,
    kind: str,
) -> Tensor:
    """Lower updates in gather form: every element combines those whose index names it, in their order. So the result
    is the same in every run, at the price of reading each index once per element of its row."""
    dtype = accumulation_dtype(base.dtype)
    counts_base = bool(call.raw(5, "include_self", True))
    extent = index_tensor.shape[axis] if index_tensor.shape else as_index(1)
    is_row_index = len(index_tensor.shape) < len(base.shape)

    def element(index: tuple[Index, ...]) -> Scalar:
        (update,) = call.builder.variables((extent,), names=("update",))
        at = (*index[:axis], as_index(update), *index[axis + 1 :]) if index else ()
        own = (at[axis],) if is_row_index else at
        inside: Scalar = Constant(True, DType.BOOL)
        for dim, size in enumerate(() if is_row_index else index_tensor.shape):
            if dim != axis and not call.builder.same_size(size, base.shape[dim]):
                inside = both(inside, in_range(index[dim], size))
        place = cast(Access(index_tensor, own, None if inside == TRUE else inside), DType.I64)
        is_here = both(inside, compare("eq", place, index_value(index[axis] if index else as_index(0))))

        def combined(body: Scalar, nothing: Scalar, how: str) -> Scalar:
            return Loop(how, (update,), body.dtype, guarded(is_here, body, nothing))

        first = cast(Access(base, index), dtype)
        start = first if counts_base else _nothing(kind, dtype)
        how = "sum" if kind == "mean" else kind
        total = op(COMBINE[how], start, combined(cast(value(at), dtype), _nothing(kind, dtype), how))
        count = combined(integer(1), integer(0), "sum")
        if kind == "mean":
            n_terms = op("add", count, integer(int(counts_base)))
            divisor = cast(select(compare("lt", n_terms, integer(1)), integer(1), n_terms), dtype)
            total = op("div" if dtype.is_floating else "div_floor", total, divisor)
        return total if counts_base else select(compare("eq", count, integer(0)), first, total)

    return call.builder.pointwise(call.dtype(), call.shape(), element)


COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


def _nothing(kind: str, dtype: DType) -> Scalar:
    """Return the value that changes nothing when it is combined."""
    if kind in ("sum", "mean", "prod"):
        return cast(integer(int(kind == "prod")), dtype)
    return extreme(dtype, is_largest=kind == "min")


def extreme(dtype: DType, *, is_largest: bool) -> Scalar:
    """Return the largest or the smallest value of a type."""
    if dtype.is_floating:
        return cast(Constant(float("inf") if is_largest else -float("inf"), DType.F32), dtype)
    if dtype == DType.BOOL:
        return Constant(is_largest, dtype)
    n_bits = 8 * dtype.itemsize - (dtype != DType.U8)
    smallest = 0 if dtype == DType.U8 else -(1 << n_bits)
    return Constant((1 << n_bits) - 1 if is_largest else smallest, dtype)


@lowers("index_reduce")
def _index_reduce(call: Call) -> Tensor:
    base, indices, source = call.tensor(0), call.tensor(2, "index"), call.tensor(3, "source")
    axis = call.axis(1, "dim", len(base.shape))
    return _gathered_updates(
        call, base, indices, axis, lambda at: Access(source, at), UPDATES[str(call.raw(4, "reduce"))]
    )


def _scatter_value(call: Call, overload: str) -> ValueAt:
    """Return the written value as a function of the update's index."""
    if overload.startswith("value"):
        constant = call.scalar(3, "value", call.dtype())
        return lambda index: constant
    source = call.tensor(3, "src")
    return lambda index: Access(source, index)


def _general_scatter(
    call: Call,
    base: Tensor,
    index_tensor: Tensor,
    axis: int,
    value: ValueAt,
    kind: str,
) -> Tensor:
    variables = call.builder.variables(index_tensor.shape)
    index = positions(variables)
    where = (*index[:axis], position_of(Access(index_tensor, index)), *index[axis + 1 :])
    return scattered(call, base, where, variables, value(index), kind)


def scattered(
    call: Call, base: Tensor, where: Sequence[Index], variables: Sequence[Variable], body: Scalar, kind: str
) -> Tensor:
    """Return a copy of `base` with updates, in the accumulation type when they add."""
    dtype = accumulation_dtype(call.dtype()) if kind == "sum" else call.dtype()
    shape = call.shape()
    axis = _axis_of_single_updates(call, base, where, variables)
    if axis is not None:
        return _one_hot(call, base, where, variables, cast(body, dtype), axis, adds=kind == "sum")
    base_variables = call.builder.variables(shape)
    base_body = cast(Access(base, positions(base_variables)), dtype)
    definition = Scatter(kind, base_body, base_variables, tuple(variables), tuple(where), cast(body, dtype))
    return converted(call, call.builder.tensor(call.builder.result_name(), dtype, shape, definition))


def _value_of(index: Index) -> Scalar:
    """Return an index as a value: the one that is read, where it is nothing else."""
    if len(index.terms) == 1:
        ((atoms, factor),) = index.terms
        if factor == 1 and len(atoms) == 1 and isinstance(atoms[0], Indirect):
            return atoms[0].scalar
    return index_value(index)


def _axis_of_single_updates(
    call: Call, base: Tensor, where: Sequence[Index], variables: Sequence[Variable]
) -> int | None:
    """Return the axis along which each row of `base` has exactly one update; None where rows have none or several."""
    places = {as_index(variable): variable for variable in variables}
    along = {places[place]: axis for axis, place in enumerate(where) if place in places}
    is_covered = all(call.builder.same_size(variable.extent, base.shape[axis]) for variable, axis in along.items())
    is_single = all(variable in along or variable.extent.constant == 1 for variable in variables)
    free = [axis for axis in range(len(where)) if axis not in along.values()]
    return free[0] if is_covered and is_single and len(free) == 1 else None


def _one_hot(
    call: Call,
    base: Tensor,
    where: Sequence[Index],
    variables: Sequence[Variable],
    body: Scalar,
    axis: int,
    *,
    adds: bool,
) -> Tensor:
    """Lower one update per row in gather form: every element compares its position along `axis` with the update's."""

    def element(index: tuple[Index, ...]) -> Scalar:
        own = dict(zip(where, index, strict=True))
        at = {variable: own.get(as_index(variable), as_index(0)) for variable in variables}
        is_here = compare("eq", _value_of(substitute(where[axis], at)), index_value(index[axis]))
        old, update = cast(Access(base, index), body.dtype), body.substitute(at)
        return cast(guarded(is_here, op("add", old, update) if adds else update, old), call.dtype())

    return call.builder.pointwise(call.dtype(), call.shape(), element)


@lowers("index_put", "_unsafe_index_put")
def _index_put(call: Call) -> Tensor:
    base, given, values = call.tensor(0), call.tensors(1, "indices"), call.tensor(2, "values")
    accumulate = bool(call.raw(3, "accumulate", False))
    to_base = advanced_index(call, base, given)
    shape = _update_shape(base, given)
    variables = call.builder.variables(shape)
    index = positions(variables)
    return scattered(call, base, to_base(index), variables, read(values, index), "sum" if accumulate else "set")


def _update_shape(base: Tensor, given: Sequence[Tensor | None]) -> tuple[Index, ...]:
    used = [axis for axis, tensor in enumerate(given) if tensor is not None]
    tensors = [tensor for tensor in given if tensor is not None]
    rank = max(len(tensor.shape) for tensor in tensors)
    broadcast = [as_index(1)] * rank
    for tensor in tensors:
        for axis, size in enumerate(tensor.shape):
            if size.constant != 1:
                broadcast[rank - len(tensor.shape) + axis] = size
    rest = [size for axis, size in enumerate(base.shape) if axis not in used]
    start = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
    return (*rest[:start], *broadcast, *rest[start:])
