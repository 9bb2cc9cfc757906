"""Pooling by windows of a fixed size or to a given size, and its gradients in gather form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Constant as ExpressionConstant
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import Index, as_index, divide_exactly, expanded, product
from kernel_lsp.generate.ir.scalar import (
    Access,
    Constant,
    Loop,
    Scalar,
    accesses,
    both,
    cast,
    compare,
    guarded,
    in_range,
    index_value,
    integer,
    masked,
    select,
)
from kernel_lsp.generate.ir.sizes import ceil_div, ravel, to_expression
from kernel_lsp.generate.ir.tensor import Pointwise, Tensor, identity_of
from kernel_lsp.generate.lowering.arithmetic import number, op
from kernel_lsp.generate.lowering.builder import Body, Call, Shape, accumulation_dtype, lowers, positions
from kernel_lsp.generate.lowering.contraction import converted
from kernel_lsp.generate.lowering.reduction import mean_over
from kernel_lsp.generate.lowering.summed_products import Windows, summed_product
from kernel_lsp.generate.lowering.windows import Window, is_inside, n_spatial_of, reach_of, reaching_windows, taps_of
from kernel_lsp.generate.structure.window_gradient_patterns import WINDOW

Taps = tuple[Variable, ...]
MAX_PLACES = 256
"""Maximum elements of a window whose places a byte numbers."""


@lowers("max_pool1d", "max_pool2d", "max_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices")
@lowers("max_pool1d_with_indices")
def _max_pool(call: Call) -> Tensor | tuple[Tensor, ...]:
    n_spatial = n_spatial_of(call)
    window = Window.of(call, n_spatial, 1, has_dilation=True)
    source = call.tensor(0)
    taps = taps_of(call, window.size)
    out = _window_extreme(call, source, window, taps)
    if _has_places(window):
        _window_argument(call, source, window, taps, call.shape(0), by_tap=True)  # for a backward that is given it
    if "with_indices" not in call.node.op:
        return out
    return out, _window_argument(call, source, window, taps, call.shape(1), by_tap=False)


def _window_extreme(call: Call, source: Tensor, window: Window, taps: Taps) -> Tensor:
    """Return the largest element of each window. Positions out of bounds never win."""
    n_spatial = len(window.size)
    spatial = source.shape[-n_spatial:]
    lowest = identity_of("max", source.dtype)

    def body(index: tuple[Index, ...]) -> Scalar:
        at = window.at(index[-n_spatial:], positions(taps))
        value = guarded(is_inside(at, spatial), Access(source, (*index[:-n_spatial], *at)), lowest)
        return Loop("max", taps, source.dtype, value)

    return call.builder.pointwise(call.dtype(0), call.shape(0), body)


def _window_argument(call: Call, source: Tensor, window: Window, taps: Taps, shape: Shape, *, by_tap: bool) -> Tensor:
    """Return the flat position of each window's maximum, in a byte and among its places with `by_tap`, else in the
    input's spatial dims: the last NaN, else the first of equals. `shape` is that of the windows."""
    n_spatial = len(window.size)
    spatial = source.shape[-n_spatial:]

    def body(index: tuple[Index, ...]) -> Scalar:
        out = index[-n_spatial:]

        def place(tap: Sequence[Index]) -> Scalar:
            at = ravel(tap, _places(window)) if by_tap else ravel(window.at(out, tap), spatial)
            return index_value(at)

        at = window.at(out, positions(taps))
        lowest = identity_of("max", source.dtype)
        value = guarded(is_inside(at, spatial), Access(source, (*index[:-n_spatial], *at)), lowest)
        return Loop("window_argmax", taps, DType.I64, value, place(positions(taps)), place(window.first_inside(out)))

    dtype, name = (DType.U8, "chosen") if by_tap else (DType.I64, "indices")
    return call.builder.pointwise(dtype, shape, body, name=name)


def _places(window: Window) -> list[Index]:
    """Return the places of a window along each dim: as many as a position is away from the starts of all windows that
    reach it."""
    return [as_index(reach * stride) for reach, stride in zip(reach_of(window), window.stride, strict=True)]


def _has_places(window: Window) -> bool:
    """Return True if a byte numbers the places of a window."""
    return set(window.dilation) == {1} and (product(_places(window)).constant or 0) <= MAX_PLACES


def _is_apart(window: Window) -> bool:
    """Return True if windows lie side by side."""
    return window.size == window.stride and not any(window.padding)


def _are_own(indices: Tensor, source: Tensor, window: Window) -> bool:
    """Return True if the indices are the maxima of windows of `source` whose places a byte numbers."""
    definition = indices.definition
    loop = definition.body if isinstance(definition, Pointwise) else None
    if not (isinstance(loop, Loop) and loop.kind == "window_argmax"):
        return False
    is_same = [tap.extent.constant for tap in loop.loop_variables] == list(window.size)
    return _has_places(window) and is_same and {access.tensor for access in accesses(loop)} == {source}


@lowers("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "max_pool1d_with_indices_backward")
def _max_pool_backward(call: Call) -> Tensor:
    """Sum, per input position, the gradients of the windows that selected it."""
    n_spatial = n_spatial_of(call)
    grad, source = call.tensor(0, "grad_output"), call.tensor(1)
    window = Window.of(call, n_spatial, 2, has_dilation=True)
    indices = call.tensor(len(call.node.arguments) - 1, "indices")
    if "indices" in call.node.keywords:
        indices = call.tensor(99, "indices")
    spatial = source.shape[-n_spatial:]
    reach = reach_of(window)
    taps = taps_of(call, reach)
    dtype = accumulation_dtype(grad.dtype)

    # The tap is a constant of the thread's loop; a position in the input is not.
    is_own = _are_own(indices, source, window)
    chosen_tap = None
    if is_own:
        of_window = taps_of(call, window.size)
        chosen_tap = _window_argument(call, source, window, of_window, indices.shape, by_tap=True)

    def body(index: tuple[Index, ...]) -> Scalar:
        inner = index[-n_spatial:]
        out, inside = reaching_windows(window, inner, positions(taps), grad.shape[-n_spatial:])
        at = (*index[:-n_spatial], *out)
        value, zero = cast(Access(grad, at), dtype), number(0, Constant(0.0, dtype))
        if chosen_tap is None:
            is_chosen = compare(
                "eq", guarded(inside, Access(indices, at), integer(-1)), index_value(ravel(inner, spatial))
            )
            return Loop("sum", taps, dtype, guarded(both(inside, is_chosen), value, zero))
        own = ravel(_places_of(window, inner, positions(taps)), _places(window))
        is_chosen = compare("eq", masked(inside, Access(chosen_tap, at)), index_value(own))
        # Some position of each window gets its gradient: read it before it is known which. Of no window it is 0.
        return Loop("sum", taps, dtype, select(is_chosen, guarded(inside, value, zero), zero))

    result = call.builder.pointwise(call.dtype(), source.shape, body)
    if is_own and _is_apart(window) and window.size == WINDOW:
        call.builder.windows.poolings[result] = (grad, source)
    return result


def _places_of(window: Window, inner: Sequence[Index], tap: Sequence[Index]) -> list[Index]:
    """Return the place of a position along each dim in the `tap`-th window before the last that starts there."""
    return [
        (position + padding) % stride + offset * stride
        for position, offset, stride, padding in zip(inner, tap, window.stride, window.padding, strict=True)
    ]


@lowers("avg_pool1d", "avg_pool2d", "avg_pool3d")
def _average_pool(call: Call) -> Tensor:
    n_spatial = n_spatial_of(call)
    source = call.tensor(0)
    window = Window.of(call, n_spatial, 1, has_dilation=False)
    divisor = _Divisor.of(call, 5, window, source.shape[-n_spatial:])
    total = _window_sums(call, source, window, divisor)

    def body(index: tuple[Index, ...]) -> Scalar:
        return op("div", total(index), divisor.at(index[-n_spatial:], accumulation_dtype(source.dtype)))

    return call.builder.pointwise(call.dtype(), call.shape(), body)


def _window_sums(call: Call, source: Tensor, window: Window, divisor: _Divisor) -> Body:
    """Return the sum of the elements in bounds of each window."""
    dtype, n_spatial, builder = accumulation_dtype(source.dtype), len(window.size), call.builder
    spatial, extents = source.shape[-n_spatial:], call.shape()[-n_spatial:]

    def sums(places: Mapping[int, int], body: Body) -> Body:
        """Return the sums of `body` over those dims of an index that `places` maps to spatial ones."""
        own = window.along(list(places.values()))
        taps = taps_of(call, own.size)

        def added(index: tuple[Index, ...]) -> Scalar:
            inner = own.at([index[dim] for dim in places], positions(taps))
            of_dim = dict(zip(places, inner, strict=True))
            value = cast(body(tuple(of_dim.get(dim, position) for dim, position in enumerate(index))), dtype)
            inside = is_inside(inner, tuple(spatial[place] for place in places.values()))
            return Loop("sum", taps, dtype, guarded(inside, value, number(0, value)))

        return added

    def add_up(shape: Shape, places: Mapping[int, int], body: Body) -> Tensor:
        pooled = tuple(extents[places[dim]] if dim in places else size for dim, size in enumerate(shape))
        return builder.pointwise(dtype, pooled, sums(places, body), name="pooled")

    axes = tuple(range(len(source.shape) - n_spatial, len(source.shape)))

    def count(index: Sequence[Index], places: Sequence[int], type_: DType) -> Scalar:
        counts_all = divisor.counts_padding and not any(window.padding)
        of_dims = _Divisor(window.along(places), tuple(spatial[place] for place in places), counts_all, None)
        return of_dims.at([index[axes[place]] for place in places], type_)

    windows = Windows(axes, extents, prod(window.size), count, add_up)
    found = summed_product(call, source, windows)
    if found is not None:
        return lambda index: Access(found, index)
    places = dict(zip(axes, range(n_spatial), strict=True))
    return sums(places, lambda index: Access(source, index))


@dataclass(frozen=True)
class _Divisor:
    """Divisor of an average."""

    window: Window
    spatial: Shape
    counts_padding: bool
    override: int | None

    @classmethod
    def of(cls, call: Call, first: int, window: Window, spatial: Shape) -> _Divisor:
        """Read the arguments ``count_include_pad, divisor_override`` from position `first` on."""
        counts = call.raw(first, "count_include_pad", True)
        override = call.optional_number(first + 1, "divisor_override")
        uses_ceil = bool(call.raw(first - 1, "ceil_mode", False))
        if uses_ceil and counts and override is None and any(window.padding):
            call.fail("ceil_mode with padding that counts is not implemented")
        # Without padding, a window that exceeds the edge by ceil_mode counts only positions in bounds.
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
    """Return the number of positions of [start, start + size) in [0, extent)."""
    low = op("maximum", index_value(start), integer(0))
    high = op("minimum", index_value(start + size), index_value(extent))
    return op("sub", high, low)


@lowers("avg_pool1d_backward", "avg_pool2d_backward", "avg_pool3d_backward")
def _average_pool_backward(call: Call) -> Tensor:
    """Sum, per input position, its share of the windows that contain it."""
    n_spatial = n_spatial_of(call)
    grad, source = call.tensor(0, "grad_output"), call.tensor(1)
    window = Window.of(call, n_spatial, 2, has_dilation=False)
    divisor = _Divisor.of(call, 6, window, source.shape[-n_spatial:])
    taps = taps_of(call, reach_of(window))
    dtype = accumulation_dtype(grad.dtype)

    def body(index: tuple[Index, ...]) -> Scalar:
        inner = index[-n_spatial:]
        out, inside = reaching_windows(window, inner, positions(taps), grad.shape[-n_spatial:])
        for position, start, size, stride, padding in zip(
            inner, out, window.size, window.stride, window.padding, strict=True
        ):
            inside = both(inside, in_range(position - (start * stride - padding), as_index(size)))
        share = op("div", cast(Access(grad, (*index[:-n_spatial], *out)), dtype), divisor.at(out, dtype))
        return Loop("sum", taps, dtype, guarded(inside, share, number(0, share)))

    return call.builder.pointwise(call.dtype(), source.shape, body)


@dataclass(frozen=True)
class _AdaptiveDim:
    """One spatial dim. `window` is the maximum number of input positions per output; `is_uniform` is True if it is
    exact."""

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
        text = binary("+", ceil_div(to_expression(size), to_expression(n_outputs)), ExpressionConstant(1))
        return cls(size, n_outputs, as_index(call.builder.sizes.derived(exact, text)), False)

    def start(self, out: Index) -> Index:
        return out * self.window if self.is_uniform else (out * self.size) // self.n_outputs

    def length(self, out: Index) -> Index:
        if self.is_uniform:
            return self.window
        end = (out * self.size + self.size + self.n_outputs - 1) // self.n_outputs
        return end - self.start(out)

    def holds(self, out: Index, tap: Index) -> Scalar:
        """Return the condition that the window has a `tap`-th position."""
        if self.is_uniform:
            return Constant(True, DType.BOOL)
        return compare("lt", index_value(tap), index_value(self.length(out)))


def _adaptive_dims(call: Call, spatial: Shape, out: Shape) -> list[_AdaptiveDim]:
    return [_AdaptiveDim.of(call, size, wanted) for size, wanted in zip(spatial, out, strict=True)]


def _adaptive_taps(call: Call, dims: Sequence[_AdaptiveDim]) -> tuple[Variable, ...]:
    return taps_of(call, [dim.window for dim in dims])


def _adaptive_window(
    dims: Sequence[_AdaptiveDim], out: Sequence[Index], taps: Sequence[Index]
) -> tuple[list[Index], Scalar, Index]:
    """Return the positions of a window, the conditions that they belong to it, and their number."""
    inside: Scalar = Constant(True, DType.BOOL)
    for dim, position, tap in zip(dims, out, taps, strict=True):
        inside = both(inside, dim.holds(position, tap))
    at = [dim.start(position) + tap for dim, position, tap in zip(dims, out, taps, strict=True)]
    return at, inside, product(dim.length(position) for dim, position in zip(dims, out, strict=True))


@lowers("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d")
@lowers("adaptive_avg_pool3d")
def _adaptive_average_pool(call: Call) -> Tensor:
    n_spatial = n_spatial_of(call)
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
    axes = tuple(range(len(source.shape) - n_spatial, len(source.shape)))
    mean = mean_over(call, source, axes)
    return converted(call, call.builder.reshaped(mean, call.shape()))


@lowers("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward")
def _adaptive_average_pool_backward(call: Call) -> Tensor:
    """Sum, per input position, its share of the outputs whose windows contain it."""
    n_spatial = n_spatial_of(call)
    grad, source = call.tensor(0, "grad_output"), call.tensor(1)
    dims = _adaptive_dims(call, source.shape[-n_spatial:], grad.shape[-n_spatial:])
    # With inputs and outputs swapped, the outputs that read an input are an adaptive window too.
    reach = [1 if dim.is_uniform else _AdaptiveDim.of(call, dim.n_outputs, dim.size).window for dim in dims]
    taps = taps_of(call, reach)
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
    n_spatial = n_spatial_of(call)
    source, shape = call.tensor(0), call.shape()
    spatial = source.shape[-n_spatial:]
    dims = _adaptive_dims(call, spatial, shape[-n_spatial:])
    taps = _adaptive_taps(call, dims)

    def value(index: tuple[Index, ...]) -> tuple[Scalar, Scalar, Scalar]:
        out = index[-n_spatial:]
        at, inside, _ = _adaptive_window(dims, out, positions(taps))
        first = [dim.start(position) for dim, position in zip(dims, out, strict=True)]
        element = guarded(inside, Access(source, (*index[:-n_spatial], *at)), identity_of("max", source.dtype))
        return element, index_value(ravel(at, spatial)), index_value(ravel(first, spatial))

    largest = call.builder.pointwise(
        call.dtype(0), shape, lambda index: Loop("max", taps, source.dtype, value(index)[0])
    )
    where = call.builder.pointwise(
        DType.I64, shape, lambda index: Loop("window_argmax", taps, DType.I64, *value(index)), name="indices"
    )
    return largest, where
