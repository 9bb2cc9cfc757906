"""Pooling to a given size: output o covers [floor(o * in / out), ceil((o + 1) * in / out))."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Constant as ExpressionConstant
from kernel_lsp.core.expression_rules import binary
from kernel_lsp.generate.ir.identity import identity_of
from kernel_lsp.generate.ir.index import Index, Variable, as_index, divide_exactly, expanded, product
from kernel_lsp.generate.ir.row_major import ravel
from kernel_lsp.generate.ir.scalar import (
    Access,
    Constant,
    Loop,
    Scalar,
    both,
    cast,
    compare,
    in_range,
    index_value,
    integer,
    select,
)
from kernel_lsp.generate.ir.scalar_walk import guarded
from kernel_lsp.generate.ir.sizes import ceil_div, to_expression
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.builder import Call, Shape, accumulation_dtype, positions
from kernel_lsp.generate.lowering.contraction import converted
from kernel_lsp.generate.lowering.elements import number, op
from kernel_lsp.generate.lowering.reduction import mean_over
from kernel_lsp.generate.lowering.registry import lowers
from kernel_lsp.generate.lowering.windows import n_spatial_of, taps_of


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
    mean = mean_over(call.builder, source, axes)
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
