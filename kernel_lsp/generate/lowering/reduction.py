"""Reductions over any dims, and their compositions: means, variances, extrema and their positions, vector norms and
distances."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, product
from kernel_lsp.generate.ir.scalar import (
    Access,
    Constant,
    Scalar,
    as_position,
    cast,
    compare,
    index_value,
    integer,
    select,
)
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.arithmetic import number, op
from kernel_lsp.generate.lowering.builder import Body, Builder, Call, Shape, accumulation_dtype, lowers, read
from kernel_lsp.generate.lowering.centered_sums import centered_sum
from kernel_lsp.generate.lowering.summed_products import Windows, summed_product
from kernel_lsp.generate.lowering.whole_dims import over_whole_dims


def sum_over(call: Call, source: Tensor, axes: Sequence[int], dtype: DType, *, name: str = "") -> Tensor:
    """Return the sum over axes, without them; that of a contraction's results by sums of a factor where that is less
    arithmetic."""
    builder, extents = call.builder, [source.shape[axis] for axis in axes]

    def add_up(shape: Shape, places: Mapping[int, int], body: Body) -> Tensor:
        added = builder.reduction("sum", dtype, shape, tuple(places), body, name="sum")
        return builder.unsqueezed(added, tuple(places))

    def count(_: Sequence[Index], places: Sequence[int], type_: DType) -> Scalar:
        return count_of(product(extents[place] for place in places), type_)

    windows = Windows(tuple(axes), (ONE,) * len(axes), None, count, add_up)
    if (found := summed_product(call, source, windows)) is not None:
        return builder.reshaped(found, tuple(without(source.shape, axes)))
    shape, body = source.shape, elements(source, dtype)
    if (whole := over_whole_dims(builder, source, axes, body)) is not None:
        shape, body = whole
    return builder.reduction("sum", dtype, shape, axes, body, name=name)


def reduce_over(
    call: Call, kind: str, source: Tensor, axes: Sequence[int], body: Body, dtype: DType, *, name: str = ""
) -> Tensor:
    """Combine `body` over `axes` of the shape of `source`."""
    return call.builder.reduction(kind, dtype, source.shape, axes, body, name=name)


def shaped(call: Call, reduced: Tensor, item: int = 0) -> Tensor:
    """Return the reduction with the result's shape and dtype, including kept dims."""
    shape, dtype = call.shape(item), call.dtype(item)
    if len(shape) != len(reduced.shape):
        reduced = call.builder.reshaped(reduced, shape)
    if reduced.dtype != dtype:
        reduced = call.builder.pointwise(dtype, shape, lambda index: Access(reduced, index))
    return reduced


def without(index: Sequence[Index], axes: Sequence[int]) -> list[Index]:
    """Return the index without some axes."""
    return [position for axis, position in enumerate(index) if axis not in axes]


def element_count(shape: Shape, axes: Sequence[int]) -> Index:
    """Return the number of elements that each result combines."""
    return product(shape[axis] for axis in axes)


def count_of(size: Index, dtype: DType) -> Scalar:
    """Return a count as a floating value."""
    return cast(index_value(size), dtype)


def elements(source: Tensor, dtype: DType) -> Body:
    """Return the elements of a tensor in a type."""
    return lambda index: cast(Access(source, index), dtype)


def _reduction(kind: str, dtype_of: Callable[[Call], DType], result: DType | None = None) -> Callable[[Call], Tensor]:
    """Return the rule of a reduction of one result, which combines elements in a type, and has another if given."""

    def rule(call: Call) -> Tensor:
        source, dtype = call.tensor(0), dtype_of(call)
        axes = call.axes(1, "dim", len(source.shape))
        return shaped(call, reduce_over(call, kind, source, axes, elements(source, dtype), result or dtype))

    return rule


@lowers("sum")
def _sum(call: Call) -> Tensor:
    source = call.tensor(0)
    axes = call.axes(1, "dim", len(source.shape))
    return shaped(call, sum_over(call, source, axes, accumulation_dtype(call.dtype())))


lowers("prod")(_reduction("prod", lambda call: accumulation_dtype(call.dtype())))
for _name in ("any", "all"):
    lowers(_name)(_reduction(_name, lambda call: DType.BOOL))
for _name in ("max", "min"):
    lowers(f"a{_name}", f"{_name}.default")(_reduction(_name, lambda call: call.tensor(0).dtype))
    lowers(f"arg{_name}")(_reduction(f"arg{_name}", lambda call: call.tensor(0).dtype, DType.I64))


@lowers("mean")
def _mean(call: Call) -> Tensor:
    source = call.tensor(0)
    axes = call.axes(1, "dim", len(source.shape))
    return shaped(call, mean_over(call, source, axes, name=call.builder.result_name()))


def mean_over(call: Call, source: Tensor, axes: Sequence[int], *, name: str = "mean") -> Tensor:
    """Return the mean over axes, without them, in the accumulation type."""
    dtype = accumulation_dtype(source.dtype)
    total = centered_sum(call.builder, source, axes, dtype) or sum_over(call, source, axes, dtype, name="sum")
    count = count_of(element_count(source.shape, axes), dtype)
    return call.builder.pointwise(dtype, total.shape, lambda index: op("div", Access(total, index), count), name=name)


def shifted_mean(builder: Builder, source: Tensor, axes: Sequence[int]) -> Tensor:
    """Return the mean as ``first + mean(x - first)``. The mean of equal elements is then exact, so that their variance
    is 0 and no rounding error; and a large common offset costs no digits."""
    dtype = accumulation_dtype(source.dtype)

    def first(kept: Sequence[Index]) -> Scalar:
        rest = iter(kept)
        index = [ZERO if axis in axes else next(rest) for axis in range(len(source.shape))]
        return cast(Access(source, index), dtype)

    def distance(index: tuple[Index, ...]) -> Scalar:
        return op("sub", cast(Access(source, index), dtype), first(without(index, axes)))

    total = builder.reduction("sum", dtype, source.shape, axes, distance, name="shifted_sum")
    count = count_of(element_count(source.shape, axes), dtype)

    def body(index: tuple[Index, ...]) -> Scalar:
        return op("add", first(index), op("div", Access(total, index), count))

    return builder.pointwise(dtype, total.shape, body, name="mean")


def centered_squares(builder: Builder, source: Tensor, axes: Sequence[int], mean: Tensor) -> Tensor:
    """Return the sum of squared distances from the mean, by a second pass for accuracy."""
    dtype = mean.dtype

    def body(index: tuple[Index, ...]) -> Scalar:
        distance = op("sub", cast(Access(source, index), dtype), Access(mean, without(index, axes)))
        return op("mul", distance, distance)

    return builder.reduction("sum", dtype, source.shape, axes, body, name="squares")


def variance_over(
    builder: Builder, source: Tensor, axes: Sequence[int], correction: float = 0
) -> tuple[Tensor, Tensor]:
    """Return (variance, mean) over axes, without them."""
    mean = shifted_mean(builder, source, axes)
    squares = centered_squares(builder, source, axes, mean)
    count = count_of(element_count(source.shape, axes), mean.dtype)

    def body(index: tuple[Index, ...]) -> Scalar:
        divisor = op("sub", count, number(correction, count)) if correction else count
        if correction:
            zero = number(0, count)
            divisor = select(compare("gt", divisor, zero), divisor, zero)
        return op("div", Access(squares, index), divisor)

    return builder.pointwise(mean.dtype, squares.shape, body, name="variance"), mean


@lowers("var", "std", "var_mean", "std_mean")
def _variance(call: Call) -> Tensor | tuple[Tensor, ...]:
    source = call.tensor(0)
    name = call.node.op.split(".")[1]
    rank = len(source.shape)
    axes = tuple(range(rank)) if isinstance(call.raw(1, "dim"), bool) else call.axes(1, "dim", rank)
    variance, _ = variance_over(call.builder, source, axes, _correction(call))
    if name.startswith("std"):
        deviation = variance
        variance = call.builder.pointwise(
            deviation.dtype, deviation.shape, lambda index: op("sqrt", Access(deviation, index)), name="deviation"
        )
    if name.endswith("mean"):
        return shaped(call, variance, 0), shaped(call, mean_over(call, source, axes), 1)
    return shaped(call, variance)


def _correction(call: Call) -> float:
    if "correction" in call.node.keywords:
        return float(call.node.keywords["correction"])
    unbiased = call.raw(1 if isinstance(call.raw(1, ""), bool) else 2, "unbiased", True)
    return 1.0 if unbiased else 0.0


def _extreme_with_index(kind: str) -> Callable[[Call], tuple[Tensor, ...]]:
    def rule(call: Call) -> tuple[Tensor, ...]:
        source = call.tensor(0)
        axes, body = (call.axis(1, "dim", len(source.shape)),), elements(source, source.dtype)
        found = reduce_over(call, kind, source, axes, body, source.dtype)
        where = reduce_over(call, f"arg{kind}", source, axes, body, DType.I64, name="indices")
        return shaped(call, found, 0), shaped(call, where, 1)

    return rule


lowers("max.dim")(_extreme_with_index("max"))
lowers("min.dim")(_extreme_with_index("min"))


@lowers("linalg_vector_norm", "norm")
def _vector_norm(call: Call) -> Tensor:
    source = call.tensor(0)
    order = call.optional_number(1, "ord", 2)
    axes = call.axes(2, "dim", len(source.shape))
    dtype = accumulation_dtype(call.dtype())
    order = 2 if order is None else order

    def magnitude(index: tuple[Index, ...]) -> Scalar:
        return op("abs", cast(Access(source, index), dtype))

    if order in (float("inf"), float("-inf")):
        return shaped(call, reduce_over(call, "max" if order > 0 else "min", source, axes, magnitude, dtype))
    total = reduce_over(call, "sum", source, axes, lambda index: _powered(magnitude(index), order), dtype)
    root = call.builder.pointwise(dtype, total.shape, lambda index: _rooted(Access(total, index), order))
    return shaped(call, root)


def _powered(value: Scalar, order: float) -> Scalar:
    if order == 0:
        zero = number(0, value)
        return select(compare("ne", value, zero), number(1, value), zero)
    if order == 1:
        return value
    return op("mul", value, value) if order == 2 else op("pow", value, number(order, value))


def _rooted(value: Scalar, order: float) -> Scalar:
    if order in (0, 1):
        return value
    return op("sqrt", value) if order == 2 else op("pow", value, number(1 / order, value))


@lowers("dist")
def _distance(call: Call) -> Tensor:
    left, right = call.tensor(0), call.tensor(1, "other")
    order = float(call.number(2, "p", 2))
    dtype = accumulation_dtype(call.dtype())
    axes = tuple(range(len(left.shape)))

    def body(index: tuple[Index, ...]) -> Scalar:
        difference = op("sub", cast(read(left, index), dtype), cast(read(right, index), dtype))
        return _powered(op("abs", difference), order)

    total = reduce_over(call, "sum", left, axes, body, dtype)
    return shaped(call, call.builder.pointwise(dtype, (), lambda index: _rooted(Access(total, index), order)))


@lowers("_cdist_forward")
def _pairwise_distance(call: Call) -> Tensor:
    """Return the distances between all rows of (..., P, M) and (..., R, M)."""
    left, right = call.tensor(0, "x1"), call.tensor(1, "x2")

    def pair(index: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
        return read(left, (*index[:-2], index[-1])), read(right, (*index[:-3], *index[-2:]))

    return _distances(call, left.shape[-1], float(call.number(2, "p")), pair)


@lowers("_pdist_forward")
def _distance_of_two_rows(call: Call) -> Tensor:
    """Return the distances between each row of (N, M) and those after it, the first row's first. The row of a pair is
    computed in fp64, as in PyTorch."""
    source = call.tensor(0)

    def pair(index: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
        place, n = index_value(index[0]), index_value(source.shape[0])
        half = op("sub", cast(n, DType.F64), Constant(0.5, DType.F64))
        passed = op("add", op("mul", cast(place, DType.F64), Constant(2.0, DType.F64)), Constant(1.0, DType.F64))
        row = cast(op("sub", half, op("sqrt", op("sub", op("mul", half, half), passed))), DType.I64)
        after = op("add", row, integer(1))
        skipped = op("sub", op("mul", n, row), op("div_trunc", op("mul", row, after), integer(2)))
        other = op("add", op("sub", place, skipped), after)
        return Access(source, (as_position(row), index[1])), Access(source, (as_position(other), index[1]))

    return _distances(call, source.shape[-1], float(call.number(1, "p", 2)), pair)


def _distances(
    call: Call, length: Index, order: float, pair: Callable[[tuple[Index, ...]], tuple[Scalar, Scalar]]
) -> Tensor:
    """Return the norm of the difference of each `pair` of rows of that length."""
    dtype = accumulation_dtype(call.dtype())
    shape = (*call.shape(), length)
    axis = len(shape) - 1

    def magnitude(index: tuple[Index, ...]) -> Scalar:
        lhs, rhs = pair(index)
        return op("abs", op("sub", cast(lhs, dtype), cast(rhs, dtype)))

    if order == float("inf"):
        return shaped(call, call.builder.reduction("max", dtype, shape, (axis,), magnitude))
    total = call.builder.reduction(
        "sum", dtype, shape, (axis,), lambda index: _powered(magnitude(index), order), name="sum"
    )
    return shaped(call, call.builder.pointwise(dtype, total.shape, lambda index: _rooted(Access(total, index), order)))
