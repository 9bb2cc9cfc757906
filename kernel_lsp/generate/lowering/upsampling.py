"""Upsampling to the nearest element or linearly, and their gradients in gather form."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.atoms import Indirect
from kernel_lsp.generate.ir.index import Index, as_index, divide_exactly
from kernel_lsp.generate.ir.scalar import (
    TRUE,
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
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.lowering.arithmetic import op
from kernel_lsp.generate.lowering.builder import Call, Shape, accumulation_dtype, lowers, positions
from kernel_lsp.generate.lowering.windows import n_spatial_of, taps_of

MAX_EXACT_RATIO = 64
"""Maximum outputs per input, or inputs per output, whose positions whole numbers find."""


def _whole_factors(source: Shape, out: Shape, scales: Sequence[float | None]) -> list[Index] | None:
    """Return the factor of each dim; None where ATen does not copy each element so many times."""
    factors = [divide_exactly(wanted, size) for size, wanted in zip(source, out, strict=True)]
    pairs = zip(factors, scales, strict=True)
    whole = [factor for factor, scale in pairs if factor is not None and _copies_evenly(factor.constant, scale)]
    return whole if len(whole) == len(factors) else None


def _copies_evenly(factor: int | None, scale: float | None) -> bool:
    """Return True if ATen's floor(out / factor) is exact. It divides by the `scale` of the caller, which may be 3.1
    where 3 elements become 9, but for factors of 1 and 2; and in f32 the 41st element is not 41 * (1 / 41)."""
    if not factor or factor <= 2:
        return bool(factor)
    return scale in (None, factor) and _as_f32(factor * _as_f32(1 / factor)) == 1


def _check_scales(
    call: Call, source: Shape, out: Shape, scales: Sequence[float | None], copied: tuple[int, ...]
) -> None:
    """Refuse a scale beside one of the factors that ATen's CPU kernels copy by without it, some of them in some
    layouts alone: CUDA's use the scale."""
    for size, wanted, scale in zip(source, out, scales, strict=True):
        factor = divide_exactly(wanted, size)
        if scale is not None and factor is not None and factor.constant in copied and scale != factor.constant:
            call.fail(f"scale {scale:g} gives {factor.constant} times the size: PyTorch's CPU and GPU differ there")


def _as_f32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


@lowers("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
def _upsample_nearest(call: Call) -> Tensor:
    """Read ATen's floor(out * in / out_size)."""
    n_spatial = n_spatial_of(call)
    source, shape = call.tensor(0), call.shape()
    scales = _given_scales(call, n_spatial, 2)
    _check_scales(call, source.shape[-n_spatial:], shape[-n_spatial:], scales, (1, 2))
    factors = _whole_factors(source.shape[-n_spatial:], shape[-n_spatial:], scales)

    def to_source(index: tuple[Index, ...]) -> list[Index]:
        at = index[-n_spatial:]
        if factors is not None:
            return [*index[:-n_spatial], *(position // factor for position, factor in zip(at, factors, strict=True))]
        sizes = zip(at, source.shape[-n_spatial:], shape[-n_spatial:], scales, strict=True)
        return [*index[:-n_spatial], *(_nearest(*each) for each in sizes)]

    return call.builder.view(source, shape, to_source)


def _nearest(position: Index, size: Index, wanted: Index, scale: float | None) -> Index:
    """Return the input position that an output copies, in ATen's f32."""
    f32, whole = DType.F32, _whole_type(size)
    ratio = Constant(1 / scale, f32) if scale else op("div", _as_float(size, f32), _as_float(wanted, f32))
    found = cast(op("mul", _as_float(position, f32), ratio), whole)
    return as_position(op("minimum", found, cast(index_value(size - 1), whole)))


@lowers("upsample_nearest1d_backward", "upsample_nearest2d_backward", "upsample_nearest3d_backward")
def _upsample_nearest_backward(call: Call) -> Tensor:
    """Sum, per input position, the outputs that copied it."""
    n_spatial = n_spatial_of(call)
    grad, shape = call.tensor(0, "grad_output"), call.shape()
    outer = len(shape) - n_spatial
    scales = _given_scales(call, n_spatial, 3)
    _check_scales(call, shape[outer:], grad.shape[outer:], scales, (1, 2))
    factors = _whole_factors(shape[outer:], grad.shape[outer:], scales)
    sizes = list(zip(shape[outer:], grad.shape[outer:], scales, strict=True))
    taps = taps_of(call, factors or [(wanted + size - 1) // size + 2 for size, wanted, _ in sizes])
    dtype = accumulation_dtype(grad.dtype)

    def body(index: tuple[Index, ...]) -> Scalar:
        if factors is not None:
            pairs = zip(index[outer:], factors, positions(taps), strict=True)
            whole = [position * factor + tap for position, factor, tap in pairs]
            return Loop("sum", taps, dtype, cast(Access(grad, (*index[:outer], *whole)), dtype))
        at: list[Index] = []
        inside: Scalar = TRUE
        for position, tap, (size, wanted, scale) in zip(index[outer:], positions(taps), sizes, strict=True):
            at.append(_first_copy(position, size, wanted, scale) + tap)
            is_own = compare("eq", index_value(_nearest(at[-1], size, wanted, scale)), index_value(position))
            inside = both(inside, both(in_range(at[-1], wanted), is_own))
        share = cast(Access(grad, (*index[:outer], *at)), dtype)
        return Loop("sum", taps, dtype, guarded(inside, share, Constant(0.0, dtype)))

    return call.builder.pointwise(call.dtype(), shape, body)


def _first_copy(position: Index, size: Index, wanted: Index, scale: float | None) -> Index:
    """Return an output no later than the first that copies the input position, and less than two before it."""
    f32, whole = DType.F32, _whole_type(wanted)
    ratio = Constant(scale, f32) if scale else op("div", _as_float(wanted, f32), _as_float(size, f32))
    found = op("sub", cast(op("mul", _as_float(position, f32), ratio), whole), Constant(1, whole))
    return as_position(op("maximum", found, Constant(0, whole)))


@lowers("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def _upsample_linear(call: Call) -> Tensor:
    """Interpolate between the nearest positions per dim, with ATen's rules for the position of an output."""
    source, shape = call.tensor(0), call.shape()
    n_spatial = len(shape) - 2
    aligns_corners = bool(call.raw(2, "align_corners", False))
    dtype = accumulation_dtype(source.dtype)
    scales = _given_scales(call, n_spatial)
    _check_scales(call, source.shape[-n_spatial:], shape[-n_spatial:], scales, () if aligns_corners else (1,))
    sizes = list(zip(source.shape[-n_spatial:], shape[-n_spatial:], scales, strict=True))

    def body(index: tuple[Index, ...]) -> Scalar:
        places = [
            _interpolation(position, size, wanted, scale, aligns_corners, dtype)
            for position, (size, wanted, scale) in zip(index[-n_spatial:], sizes, strict=True)
        ]
        return _interpolated(source, index[:-n_spatial], places, dtype)

    return call.builder.pointwise(call.dtype(), shape, body)


@lowers("upsample_linear1d_backward", "upsample_bilinear2d_backward", "upsample_trilinear3d_backward")
def _upsample_linear_backward(call: Call) -> Tensor:
    """Sum, per input position, the outputs that were interpolated from it, times its weight in each."""
    n_spatial = n_spatial_of(call)
    grad, shape = call.tensor(0, "grad_output"), call.shape()
    aligns_corners = bool(call.raw(3, "align_corners", False))
    dtype = accumulation_dtype(grad.dtype)
    scales = _given_scales(call, n_spatial, 4)
    _check_scales(call, shape[-n_spatial:], grad.shape[-n_spatial:], scales, () if aligns_corners else (1,))
    sizes = list(zip(shape[-n_spatial:], grad.shape[-n_spatial:], scales, strict=True))
    taps = taps_of(call, [_n_reached(size, wanted, scale, aligns_corners) for size, wanted, scale in sizes])

    def body(index: tuple[Index, ...]) -> Scalar:
        at = list(index[:-n_spatial])
        inside: Scalar = TRUE
        weight: Scalar = Constant(1.0, dtype)
        for position, tap, (size, wanted, scale) in zip(index[-n_spatial:], positions(taps), sizes, strict=True):
            out = _first_reached(position, size, wanted, scale, aligns_corners, dtype) + tap
            place = _interpolation(out, size, wanted, scale, aligns_corners, dtype)
            at.append(out)
            inside = both(inside, in_range(out, wanted))
            weight = op("mul", weight, place.weight_of(position))
        share = op("mul", cast(Access(grad, at), dtype), weight)
        return Loop("sum", taps, dtype, guarded(inside, share, Constant(0.0, dtype)))

    return call.builder.pointwise(call.dtype(), shape, body)


def _n_reached(size: Index, wanted: Index, scale: float | None, aligns_corners: bool) -> Index:
    """Return a bound of the outputs less than one input position away from one input."""
    if aligns_corners:  # (wanted - 1) / (size - 1) <= 2 * wanted / size from size 2 on
        return wanted * 4 // size + 2
    return as_index(math.ceil(2 * scale)) if scale else (wanted * 2 + size - 1) // size


def _first_reached(
    position: Index, size: Index, wanted: Index, scale: float | None, aligns_corners: bool, dtype: DType
) -> Index:
    """Return the first output that may be less than one input position away."""
    power = None if aligns_corners else _power_of_two(size, wanted, scale)
    if power is not None:  # before the first output it is none
        inputs = int(1 / power)
        return position * int(power) - int(power) // 2 if power > 1 else (position + (inputs // 2 - 1)) // inputs
    before = op("sub", _as_float(position, dtype), Constant(1.0, dtype))
    whole = _whole_type(wanted)
    if aligns_corners:
        at = op("mul", before, _corner_ratio(wanted, size, dtype))
        first = cast(op("floor", at), whole)
    else:
        half = Constant(0.5, dtype)
        per_input = op("div", _as_float(wanted, dtype), _as_float(size, dtype))
        at = op("sub", op("mul", op("add", before, half), Constant(scale, dtype) if scale else per_input), half)
        first = op("add", cast(op("floor", at), whole), Constant(1, whole))
    return as_position(op("maximum", first, Constant(0, whole)))


def _given_scales(call: Call, n_spatial: int, first: int = 3) -> list[float | None]:
    """Return the scales that the caller passed; ATen then uses them instead of the ratio of sizes."""
    raw = call.raw(first, "scale_factors")
    if isinstance(raw, list):
        return [float(scale) for scale in raw]
    given = [call.optional_number(first + axis, f"scales_{axis}") for axis in range(n_spatial)]
    return [None if scale is None else float(scale) for scale in given]


@dataclass(frozen=True)
class _Place:
    """A position between `low` and `high`; `weight` is its fraction of the way."""

    low: Index
    high: Index
    weight: Scalar

    def weight_of(self, position: Index) -> Scalar:
        """Return the weight of one input position, 0 if it is neither."""
        zero, one = (Constant(value, self.weight.dtype) for value in (0.0, 1.0))
        is_low, is_high = (compare("eq", index_value(end), index_value(position)) for end in (self.low, self.high))
        return op("add", select(is_low, op("sub", one, self.weight), zero), select(is_high, self.weight, zero))


def _interpolation(
    position: Index, size: Index, wanted: Index, scale: float | None, aligns_corners: bool, dtype: DType
) -> _Place:
    """Return the position of an output element in the input."""
    if not aligns_corners and (power := _power_of_two(size, wanted, scale)) is not None:
        return _exact_interpolation(position, size, power, dtype)
    out = _as_float(position, dtype)
    zero, one, half = (Constant(value, dtype) for value in (0.0, 1.0, 0.5))
    if aligns_corners:
        ratio = _corner_ratio(size, wanted, dtype)
        at = op("mul", out, ratio)
    else:
        ratio = Constant(1 / scale, dtype) if scale else op("div", _as_float(size, dtype), _as_float(wanted, dtype))
        centre = op("sub", op("mul", op("add", out, half), ratio), half)
        at = select(compare("lt", centre, zero), zero, centre)
    whole = _whole_type(size)
    low = cast(at, whole)
    last = cast(index_value(size - 1), whole)
    low_index = op("minimum", low, last)
    high_index = op("minimum", op("add", low, Constant(1, whole)), last)
    weight = op("sub", at, cast(low_index, dtype))
    weight = select(compare("gt", weight, one), one, weight)
    return _Place(as_position(low_index), as_position(high_index), weight)


def _power_of_two(size: Index, wanted: Index, scale: float | None) -> float | None:
    """Return the outputs per input where that is a power of two but 1: positions are then exact in f32, and whole
    numbers find them, in a fraction of the instructions. Bilinear (16, 64, 64, 64) by two is bound by conversions
    between integers and floats without."""
    if scale is None:
        factor, inverse = divide_exactly(wanted, size), divide_exactly(size, wanted)
        up, down = (None if found is None else found.constant for found in (factor, inverse))
        scale = float(up) if up else 1 / down if down else 1.0
    is_power = math.frexp(scale)[0] == 0.5 and scale != 1 and 1 / MAX_EXACT_RATIO <= scale <= MAX_EXACT_RATIO
    return scale if is_power else None


def _exact_interpolation(position: Index, size: Index, ratio: float, dtype: DType) -> _Place:
    """Return the position in the input of an output element, of which there are `ratio` per input."""
    whole, zero = _whole_type(size), Constant(0.0, dtype)
    if ratio < 1:  # half-way between two elements
        low = position * int(1 / ratio) + (int(0.5 / ratio) - 1)
        return _Place(low, low + 1, Constant(0.5, dtype))
    factor, half = int(ratio), int(ratio) // 2
    shifted = position + half
    low_value = op("maximum", cast(index_value(shifted // factor - 1), whole), Constant(0, whole))
    last = cast(index_value(size - 1), whole)
    high_value = op("minimum", op("add", low_value, Constant(1, whole)), last)
    place = op("add", _as_float(shifted % factor, dtype), Constant(0.5, dtype))
    weight = op("mul", place, Constant(1 / factor, dtype))
    is_before = compare("lt", index_value(position), integer(half))
    return _Place(as_position(low_value), as_position(high_value), select(is_before, zero, weight))


def _whole_type(size: Index) -> DType:
    """Return the type of a position along a dim: conversions to 64 bits take a quarter of the rate."""
    return DType.I32 if size.constant is not None and size.constant < 1 << 30 else DType.I64


def _as_float(index: Index, dtype: DType) -> Scalar:
    atoms = [monomial[0] for monomial, factor in index.terms if len(monomial) == 1 and factor == 1]
    if len(atoms) == len(index.terms) == 1 and isinstance(atoms[0], Indirect):
        return cast(atoms[0].scalar, dtype)  # without a detour over 64 bits
    return cast(index_value(index), dtype)


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
    """Interpolate along the last dim first, then between the interpolated rows."""
    if not places:
        return cast(Access(source, outer), dtype)
    place = places[0]
    low = _interpolated(source, (*outer, place.low), places[1:], dtype)
    high = _interpolated(source, (*outer, place.high), places[1:], dtype)
    kept = op("sub", Constant(1.0, dtype), place.weight)
    return op("add", op("mul", low, kept), op("mul", high, place.weight))
