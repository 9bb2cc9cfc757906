"""Pooling and upsampling: small windows that one thread walks alone, and their gradients in gather form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Constant as ExpressionConstant
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.identity import identity_of
from kernel_lsp.generate.index import Index, Variable, as_index, divide_exactly, expanded, product
from kernel_lsp.generate.lowering.builder import Call, Shape, accumulation_dtype, positions
from kernel_lsp.generate.lowering.contraction import converted
from kernel_lsp.generate.lowering.elements import number, op
from kernel_lsp.generate.lowering.table import lowers
from kernel_lsp.generate.row_major import ravel
from kernel_lsp.generate.scalar import (
    Access,
    Constant,
    Loop,
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
from kernel_lsp.generate.sizes import ceil_div as expression_ceil_div
from kernel_lsp.generate.sizes import to_expression
from kernel_lsp.generate.tensor import Tensor


@dataclass(frozen=True)
class _Window:
    """One entry per spatial dim."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, call: Call, n_spatial: int, first: int, *, has_dilation: bool) -> _Window:
        """From ``kernel_size, stride, padding`` and perhaps ``dilation`` at `first`."""
        size = call.spatial(first, "kernel_size", n_spatial, 1)
        stride = call.spatial(first + 1, "stride", n_spatial, 0)
        return cls(
            size,
            size if not any(stride) else stride,
            call.spatial(first + 2, "padding", n_spatial, 0),
            call.spatial(first + 3, "dilation", n_spatial, 1) if has_dilation else (1,) * n_spatial,
        )

    def at(self, out: Sequence[Index], tap: Sequence[Index]) -> list[Index]:
        """The input position of a tap; it may lie outside."""
        return [
            position * stride - padding + offset * dilation
            for position, offset, stride, padding, dilation in zip(
                out, tap, self.stride, self.padding, self.dilation, strict=True
            )
        ]


def _n_spatial(call: Call) -> int:
    """From the operator's name: ``avg_pool2d`` has two."""
    return next(int(letter) for letter in call.node.op if letter in "123")


def _taps(call: Call, size: Sequence[int]) -> tuple[Variable, ...]:
    return call.builder.variables([as_index(extent) for extent in size], names=("kd", "kh", "kw")[-len(size) :])


def _inside(at: Sequence[Index], spatial: Shape) -> Scalar:
    inside: Scalar = Constant(True, DType.BOOL)
    for position, extent in zip(at, spatial, strict=True):
        inside = both(inside, in_range(position, extent))
    return inside


# --- maxima


@lowers("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
@lowers("max_pool1d_with_indices")
def _max_pool(call: Call) -> Tensor | tuple[Tensor, ...]:
    n_spatial = _n_spatial(call)
    window = _Window.of(call, n_spatial, 1, has_dilation=True)
    source = call.tensor(0)
    out = _window_extreme(call, source, window, 0)
    if "with_indices" not in call.node.op:
        return out
    return out, _window_argument(call, source, window)


def _window_extreme(call: Call, source: Tensor, window: _Window, item: int) -> Tensor:
    """The largest element of each window; what lies outside never wins."""
    n_spatial = len(window.size)
    spatial = source.shape[-n_spatial:]
    taps = _taps(call, window.size)
    lowest = identity_of("max", source.dtype)

    def body(index: tuple[Index, ...]) -> Scalar:
        at = window.at(index[-n_spatial:], positions(taps))
        value = guarded(_inside(at, spatial), Access(source, (*index[:-n_spatial], *at)), lowest)
        return Loop("max", taps, source.dtype, value)

    return call.builder.pointwise(call.dtype(item), call.shape(item), body)


def _window_argument(call: Call, source: Tensor, window: _Window) -> Tensor:
    """Where that element is, as a flat position in the input's spatial dims: the last NaN's, else that of the first of
    equals."""
    n_spatial = len(window.size)
    spatial = source.shape[-n_spatial:]
    taps = _taps(call, window.size)

    def body(index: tuple[Index, ...]) -> Scalar:
        at = window.at(index[-n_spatial:], positions(taps))
        inside = _inside(at, spatial)
        value = guarded(inside, Access(source, (*index[:-n_spatial], *at)), identity_of("max", source.dtype))
        # Outside there is no candidate: -1 never comes before another.
        position = select(inside, index_value(ravel(at, spatial)), integer(-1))
        return Loop("window_argmax", taps, DType.I64, value, position)

    return call.builder.pointwise(DType.I64, call.shape(1), body, name="indices")


@lowers("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "max_pool1d_with_indices_backward")
def _max_pool_backward(call: Call) -> Tensor:
    """Every input position sums the gradients of the windows that chose it."""
    n_spatial = _n_spatial(call)
    grad, source = call.tensor(0, "grad_output"), call.tensor(1)
    window = _Window.of(call, n_spatial, 2, has_dilation=True)
    indices = call.tensor(len(call.node.arguments) - 1, "indices")
    if "indices" in call.node.keywords:
        indices = call.tensor(99, "indices")
    spatial = source.shape[-n_spatial:]
    reach = _reach(window)
    taps = _taps(call, reach)
    dtype = accumulation_dtype(grad.dtype)

    def body(index: tuple[Index, ...]) -> Scalar:
        inner = index[-n_spatial:]
        out, inside = _reaching_windows(window, inner, positions(taps), grad.shape[-n_spatial:])
        at = (*index[:-n_spatial], *out)
        chosen = guarded(inside, Access(indices, at), integer(-1))
        is_chosen = compare("eq", chosen, index_value(ravel(inner, spatial)))
        value = guarded(both(inside, is_chosen), cast(Access(grad, at), dtype), number(0, Constant(0.0, dtype)))
        return Loop("sum", taps, dtype, value)

    return call.builder.pointwise(call.dtype(), source.shape, body)


def _reach(window: _Window) -> tuple[int, ...]:
    """How many windows can hold one position, per dim."""
    return tuple(
        -(-((size - 1) * dilation + 1) // stride)
        for size, dilation, stride in zip(window.size, window.dilation, window.stride, strict=True)
    )


def _reaching_windows(
    window: _Window, inner: Sequence[Index], tap: Sequence[Index], out_shape: Shape
) -> tuple[list[Index], Scalar]:
    """The `tap`-th window before the last that starts at or before a position, and whether it exists."""
    out: list[Index] = []
    inside: Scalar = Constant(True, DType.BOOL)
    for position, offset, stride, padding, extent in zip(
        inner, tap, window.stride, window.padding, out_shape, strict=True
    ):
        start = (position + padding) // stride - offset
        inside = both(inside, in_range(start, extent))
        out.append(start)
    return out, inside


# --- averages


@lowers("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _average_pool(call: Call) -> Tensor:
    n_spatial = _n_spatial(call)
    source = call.tensor(0)
    window = _Window.of(call, n_spatial, 1, has_dilation=False)
    divisor = _Divisor.of(call, 5, window, source.shape[-n_spatial:])
    dtype = accumulation_dtype(source.dtype)
    taps = _taps(call, window.size)

    def body(index: tuple[Index, ...]) -> Scalar:
        at = window.at(index[-n_spatial:], positions(taps))
        value = cast(Access(source, (*index[:-n_spatial], *at)), dtype)
        zero = number(0, value)
        total = Loop("sum", taps, dtype, guarded(_inside(at, source.shape[-n_spatial:]), value, zero))
        return op("div", total, divisor.at(index[-n_spatial:], dtype))

    return call.builder.pointwise(call.dtype(), call.shape(), body)


@dataclass(frozen=True)
class _Divisor:
    """What an average divides by."""

    window: _Window
    spatial: Shape
    counts_padding: bool
    override: int | None

    @classmethod
    def of(cls, call: Call, first: int, window: _Window, spatial: Shape) -> _Divisor:
        """From ``count_include_pad, divisor_override`` at `first`."""
        counts = call.raw(first, "count_include_pad", True)
        override = call.optional_number(first + 1, "divisor_override")
        uses_ceil = bool(call.raw(first - 1, "ceil_mode", False))
        if uses_ceil and counts and override is None and any(window.padding):
            call.fail("ceil_mode with padding that counts is not implemented")
        # Without padding, a window that ceil_mode lets hang over the edge counts just what is inside.
        return cls(window, spatial, bool(counts) and not uses_ceil, None if override is None else int(override))

    def at(self, out: Sequence[Index], dtype: DType) -> Scalar:
        size = product(as_index(extent) for extent in self.window.size)
        if self.override is not None:
            return Constant(float(self.override), dtype)
        if self.counts_padding:
            return Constant(float(size.constant or 1), dtype)
        count: Scalar = integer(1)
        for position, extent, size_, stride, padding in zip(
            out, self.spatial, self.window.size, self.window.stride, self.window.padding, strict=True
        ):
            count = op("mul", count, _overlap(position * stride - padding, size_, extent))
        return cast(count, dtype)


def _overlap(start: Index, size: int, extent: Index) -> Scalar:
    """How many of [start, start + size) lie in [0, extent)."""
    low = op("maximum", index_value(start), integer(0))
    high = op("minimum", index_value(start + size), index_value(extent))
    return op("sub", high, low)


@lowers("avg_pool1d_backward", "avg_pool2d_backward", "avg_pool3d_backward")
def _average_pool_backward(call: Call) -> Tensor:
    """Every input position sums its share of the windows that hold it."""
    n_spatial = _n_spatial(call)
    grad, source = call.tensor(0, "grad_output"), call.tensor(1)
    window = _Window.of(call, n_spatial, 2, has_dilation=False)
    divisor = _Divisor.of(call, 6, window, source.shape[-n_spatial:])
    taps = _taps(call, _reach(window))
    dtype = accumulation_dtype(grad.dtype)

    def body(index: tuple[Index, ...]) -> Scalar:
        inner = index[-n_spatial:]
        out, inside = _reaching_windows(window, inner, positions(taps), grad.shape[-n_spatial:])
        for position, start, size, stride, padding in zip(
            inner, out, window.size, window.stride, window.padding, strict=True
        ):
            inside = both(inside, in_range(position - (start * stride - padding), as_index(size)))
        share = op("div", cast(Access(grad, (*index[:-n_spatial], *out)), dtype), divisor.at(out, dtype))
        return Loop("sum", taps, dtype, guarded(inside, share, number(0, share)))

    return call.builder.pointwise(call.dtype(), source.shape, body)


# --- adaptive: output o looks at [floor(o * in / out), ceil((o + 1) * in / out))


@dataclass(frozen=True)
class _AdaptiveDim:
    """One spatial dim. `window` bounds how many positions an output looks at; `is_uniform`: it is exactly that many."""

    size: Index
    n_outputs: Index
    window: Index
    is_uniform: bool

    @classmethod
    def of(cls, call: Call, size: Index, n_outputs: Index) -> _AdaptiveDim:
        quotient = divide_exactly(size, n_outputs)
        if quotient is not None:
            return cls(size, n_outputs, quotient, True)
        if size.constant is not None and n_outputs.constant is not None:
            return cls(size, n_outputs, as_index(-(-size.constant // n_outputs.constant) + 1), False)
        exact = (expanded(size) + expanded(n_outputs) - 1) // expanded(n_outputs) + 1
        text = binary("+", expression_ceil_div(to_expression(size), to_expression(n_outputs)), ExpressionConstant(1))
        return cls(size, n_outputs, as_index(call.builder.sizes.derived(exact, text)), False)

    def start(self, out: Index) -> Index:
        return out * self.window if self.is_uniform else (out * self.size) // self.n_outputs

    def length(self, out: Index) -> Index:
        if self.is_uniform:
            return self.window
        end = (out * self.size + self.size + self.n_outputs - 1) // self.n_outputs
        return end - self.start(out)

    def holds(self, out: Index, tap: Index) -> Scalar:
        """Whether the window has a `tap`-th position."""
        if self.is_uniform:
            return Constant(True, DType.BOOL)
        return compare("lt", index_value(tap), index_value(self.length(out)))


def _adaptive_dims(call: Call, spatial: Shape, out: Shape) -> list[_AdaptiveDim]:
    return [_AdaptiveDim.of(call, size, wanted) for size, wanted in zip(spatial, out, strict=True)]


def _adaptive_taps(call: Call, dims: Sequence[_AdaptiveDim]) -> tuple[Variable, ...]:
    return call.builder.variables([dim.window for dim in dims], names=("kd", "kh", "kw")[-len(dims) :])


def _adaptive_window(
    dims: Sequence[_AdaptiveDim], out: Sequence[Index], taps: Sequence[Index]
) -> tuple[list[Index], Scalar, Index]:
    """Positions, whether they belong to the window, and how many do."""
    inside: Scalar = Constant(True, DType.BOOL)
    for dim, position, tap in zip(dims, out, taps, strict=True):
        inside = both(inside, dim.holds(position, tap))
    at = [dim.start(position) + tap for dim, position, tap in zip(dims, out, taps, strict=True)]
    return at, inside, product(dim.length(position) for dim, position in zip(dims, out, strict=True))


@lowers("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d")
@lowers("adaptive_avg_pool3d")
def _adaptive_average_pool(call: Call) -> Tensor:
    n_spatial = _n_spatial(call)
    source, shape = call.tensor(0), call.shape()
    if all(size.constant == 1 for size in shape[-n_spatial:]):
        return _global_average(call, source, n_spatial)
    dims = _adaptive_dims(call, source.shape[-n_spatial:], shape[-n_spatial:])
    taps = _adaptive_taps(call, dims)
    dtype = accumulation_dtype(source.dtype)

    def body(index: tuple[Index, ...]) -> Scalar:
        at, inside, count = _adaptive_window(dims, index[-n_spatial:], positions(taps))
        value = cast(Access(source, (*index[:-n_spatial], *at)), dtype)
        total = Loop("sum", taps, dtype, guarded(inside, value, number(0, value)))
        return op("div", total, cast(index_value(count), dtype))

    return call.builder.pointwise(call.dtype(), shape, body)


def _global_average(call: Call, source: Tensor, n_spatial: int) -> Tensor:
    from kernel_lsp.generate.lowering.reduction import mean_over

    axes = tuple(range(len(source.shape) - n_spatial, len(source.shape)))
    mean = mean_over(call.builder, source, axes)
    return converted(call, call.builder.reshaped(mean, call.shape()))


@lowers("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def _adaptive_average_pool_backward(call: Call) -> Tensor:
    """Every input position sums its share of the outputs whose windows hold it."""
    n_spatial = _n_spatial(call)
    grad, source = call.tensor(0, "grad_output"), call.tensor(1)
    dims = _adaptive_dims(call, source.shape[-n_spatial:], grad.shape[-n_spatial:])
    # The roles are exchanged: seen from an input, the outputs that look at it are an adaptive window too.
    reach = [_AdaptiveDim.of(call, dim.n_outputs, dim.size) if not dim.is_uniform else None for dim in dims]
    extents = [as_index(1) if entry is None else entry.window for entry in reach]
    taps = call.builder.variables(extents, names=("kd", "kh", "kw")[-n_spatial:])
    dtype = accumulation_dtype(grad.dtype)

    def body(index: tuple[Index, ...]) -> Scalar:
        out: list[Index] = []
        inside: Scalar = Constant(True, DType.BOOL)
        count = as_index(1)
        for dim, position, tap in zip(dims, index[-n_spatial:], positions(taps), strict=True):
            first = position // dim.window if dim.is_uniform else (position * dim.n_outputs) // dim.size
            out.append(first + tap)
            if not dim.is_uniform:
                inside = both(inside, in_range(out[-1], dim.n_outputs))
                inside = both(inside, in_range(position - dim.start(out[-1]), dim.length(out[-1])))
            count = count * dim.length(out[-1])
        share = op("div", cast(Access(grad, (*index[:-n_spatial], *out)), dtype), cast(index_value(count), dtype))
        return Loop("sum", taps, dtype, guarded(inside, share, number(0, share)))

    return call.builder.pointwise(call.dtype(), source.shape, body)


@lowers("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d")
def _adaptive_max_pool(call: Call) -> tuple[Tensor, ...]:
    n_spatial = _n_spatial(call)
    source, shape = call.tensor(0), call.shape()
    spatial = source.shape[-n_spatial:]
    dims = _adaptive_dims(call, spatial, shape[-n_spatial:])
    taps = _adaptive_taps(call, dims)

    def value(index: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
        at, inside, _ = _adaptive_window(dims, index[-n_spatial:], positions(taps))
        element = guarded(inside, Access(source, (*index[:-n_spatial], *at)), identity_of("max", source.dtype))
        return element, select(inside, index_value(ravel(at, spatial)), integer(-1))

    largest = call.builder.pointwise(
        call.dtype(0), shape, lambda index: Loop("max", taps, source.dtype, value(index)[0])
    )
    where = call.builder.pointwise(
        DType.I64, shape, lambda index: Loop("window_argmax", taps, DType.I64, *value(index)), name="indices"
    )
    return largest, where


# --- upsampling


def _scale_factors(call: Call, source: Shape, out: Shape) -> list[Index]:
    factors = []
    for size, wanted in zip(source, out, strict=True):
        factor = divide_exactly(wanted, size)
        if factor is None or factor.constant is None:
            call.fail("it scales by a factor that is not whole")
        factors.append(factor)
    return factors


@lowers("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _upsample_nearest(call: Call) -> Tensor:
    """Whole-number factors; ATen takes floor(out * in / out_size), which they make exact."""
    n_spatial = _n_spatial(call)
    source, shape = call.tensor(0), call.shape()
    factors = _scale_factors(call, source.shape[-n_spatial:], shape[-n_spatial:])

    def to_source(index: tuple[Index, ...]) -> list[Index]:
        inner = [position // factor for position, factor in zip(index[-n_spatial:], factors, strict=True)]
        return [*index[:-n_spatial], *inner]

    return call.builder.view(source, shape, to_source)


@lowers("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward")
def _upsample_nearest_backward(call: Call) -> Tensor:
    """Every input position sums the block of outputs that copied it."""
    n_spatial = _n_spatial(call)
    grad, shape = call.tensor(0, "grad_output"), call.shape()
    factors = _scale_factors(call, shape[-n_spatial:], grad.shape[-n_spatial:])
    taps = call.builder.variables(factors, names=("kd", "kh", "kw")[-n_spatial:])
    dtype = accumulation_dtype(grad.dtype)

    def body(index: tuple[Index, ...]) -> Scalar:
        pairs = zip(index[-n_spatial:], factors, positions(taps), strict=True)
        at = [position * factor + tap for position, factor, tap in pairs]
        return Loop("sum", taps, dtype, cast(Access(grad, (*index[:-n_spatial], *at)), dtype))

    return call.builder.pointwise(call.dtype(), shape, body)


@lowers("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def _upsample_linear(call: Call) -> Tensor:
    """Weighted means of the nearest positions, per dim, with ATen's rules for where an output lies."""
    source, shape = call.tensor(0), call.shape()
    n_spatial = len(shape) - 2
    aligns_corners = bool(call.raw(2, "align_corners", False))
    dtype = accumulation_dtype(source.dtype)
    scales = _given_scales(call, n_spatial)
    sizes = list(zip(source.shape[-n_spatial:], shape[-n_spatial:], scales, strict=True))

    def body(index: tuple[Index, ...]) -> Scalar:
        places = [
            _interpolation(position, size, wanted, scale, aligns_corners, dtype)
            for position, (size, wanted, scale) in zip(index[-n_spatial:], sizes, strict=True)
        ]
        return _interpolated(source, index[:-n_spatial], places, dtype)

    return call.builder.pointwise(call.dtype(), shape, body)


def _given_scales(call: Call, n_spatial: int) -> list[float | None]:
    """The factors the caller gave, which ATen then uses instead of the sizes' ratio."""
    raw = call.raw(3, "scale_factors")
    if isinstance(raw, list):
        return [float(scale) for scale in raw]
    given = [call.optional_number(3 + axis, f"scales_{axis}") for axis in range(n_spatial)]
    return [None if scale is None else float(scale) for scale in given]


@dataclass(frozen=True)
class _Place:
    """Between positions `low` and `high`, `weight` of the way."""

    low: Index
    high: Index
    weight: Scalar


def _interpolation(
    position: Index, size: Index, wanted: Index, scale: float | None, aligns_corners: bool, dtype: DType
) -> _Place:
    """Where an output position lies in the input."""
    out = cast(index_value(position), dtype)
    zero, one, half = (Constant(value, dtype) for value in (0.0, 1.0, 0.5))
    if aligns_corners:
        ratio = _corner_ratio(size, wanted, dtype)
        at = op("mul", out, ratio)
    else:
        ratio = Constant(1 / scale, dtype) if scale else op("div", _as_float(size, dtype), _as_float(wanted, dtype))
        centre = op("sub", op("mul", op("add", out, half), ratio), half)
        at = select(compare("lt", centre, zero), zero, centre)
    low = cast(at, DType.I64)
    last = index_value(size - 1)
    low_index = op("minimum", low, last)
    high_index = op("minimum", op("add", low, integer(1)), last)
    weight = op("sub", at, cast(low_index, dtype))
    weight = select(compare("gt", weight, one), one, weight)
    return _Place(as_position(low_index), as_position(high_index), weight)


def _as_float(size: Index, dtype: DType) -> Scalar:
    return cast(index_value(size), dtype)


def _corner_ratio(size: Index, wanted: Index, dtype: DType) -> Scalar:
    if wanted.constant == 1:
        return Constant(0.0, dtype)
    if wanted.constant is None:
        one = integer(1)
        is_single = compare("le", index_value(wanted), one)
        ratio = op("div", _as_float(size - 1, dtype), _as_float(wanted - 1, dtype))
        return select(is_single, Constant(0.0, dtype), ratio)
    return op("div", _as_float(size - 1, dtype), _as_float(wanted - 1, dtype))


def _interpolated(source: Tensor, outer: Sequence[Index], places: Sequence[_Place], dtype: DType) -> Scalar:
    """The last dim first: rows of interpolated values, interpolated again."""
    if not places:
        return cast(Access(source, outer), dtype)
    place = places[0]
    low = _interpolated(source, (*outer, place.low), places[1:], dtype)
    high = _interpolated(source, (*outer, place.high), places[1:], dtype)
    kept = op("sub", Constant(1.0, dtype), place.weight)
    return op("add", op("mul", low, kept), op("mul", high, place.weight))
