"""Convolutions, transposed ones, and the gradients of convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import ZERO, Index, as_index, divide_exactly
from kernel_lsp.generate.ir.scalar import Access, Constant, Scalar, both, cast, compare, guarded, in_range, index_value
from kernel_lsp.generate.ir.tensor import CopiedFactor, LibraryCall, Phases, Tensor
from kernel_lsp.generate.lowering.arithmetic import op
from kernel_lsp.generate.lowering.builder import Call, Shape, accumulation_dtype, lowers, positions
from kernel_lsp.generate.lowering.contraction import contract, converted
from kernel_lsp.generate.lowering.windows import AxisGeometry
from kernel_lsp.generate.structure.window_gradient_patterns import Convolution


def _with_bias(call: Call, total: Tensor, bias: Tensor | None, axis: int) -> Tensor:
    if bias is None:
        return converted(call, total)

    def body(index: tuple[Index, ...]) -> Scalar:
        return op("add", Access(total, index), cast(Access(bias, (index[axis],)), total.dtype))

    return call.builder.pointwise(call.dtype(), total.shape, body)


@dataclass(frozen=True)
class _Convolution:
    """The geometry of one convolution. Shapes are (N, C, spatial); all lists have one entry per spatial dim."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, call: Call, n_spatial: int, first: int) -> _Convolution:
        """Read the arguments ``stride, padding, dilation, transposed, output_padding, groups`` from position `first`
        on."""
        return cls(
            call.spatial(first, "stride", n_spatial, 1),
            call.spatial(first + 1, "padding", n_spatial, 0),
            call.spatial(first + 2, "dilation", n_spatial, 1),
            call.integer(first + 5, "groups", 1),
        )

    @property
    def is_plain(self) -> bool:
        """Return True for two spatial dims without strides, dilation and groups."""
        return self.stride == self.dilation == (1, 1) and self.groups == 1

    def is_depthwise(self, source: Tensor, weight: Tensor) -> bool:
        """Return True for two spatial dims without strides and dilation, where each channel is a group."""
        has_steps_of_1 = self.stride == self.dilation == (1, 1) and self.groups > 1
        return has_steps_of_1 and self.groups == source.shape[1].constant == weight.shape[0].constant

    def library(self, source: Tensor, weight: Tensor, shape: Shape) -> LibraryCall:
        """Return the library call of the plain convolution of these tensors."""
        none_added = (0,) * len(self.stride)
        settings = (self.stride, self.padding, self.dilation, False, none_added, self.groups)
        return LibraryCall("aten::convolution", (source, weight, None, *settings), shape)

    def gradient_library(self, grad: Tensor, source: Tensor, weight: Tensor, *, of_weight: bool) -> LibraryCall | None:
        """Return the library call of one gradient of the plain convolution of these tensors; None in f32, where our
        tensor cores are faster than the library, which keeps to CUDA cores."""
        if grad.dtype not in (DType.F16, DType.BF16):
            return None
        none_added = (0,) * len(self.stride)
        settings = (None, self.stride, self.padding, self.dilation, False, none_added, self.groups)
        wanted = (not of_weight, of_weight, False)
        result = weight if of_weight else source
        return LibraryCall("aten::convolution_backward", (grad, source, weight, *settings, wanted), result.shape)

    def source_position(self, out: Sequence[Index], kernel: Sequence[Index]) -> list[Index]:
        """Return the input position that output position `out` reads at kernel position `kernel`; it may be out of
        bounds."""
        return [
            position * stride + tap * dilation - padding
            for position, tap, stride, padding, dilation in zip(
                out, kernel, self.stride, self.padding, self.dilation, strict=True
            )
        ]

    def target_position(self, source: Sequence[Index], kernel: Sequence[Index]) -> tuple[list[Index], Scalar]:
        """Return the output position that reads input position `source` at kernel position `kernel`, and the condition
        that it exists. The condition leaves out the upper bound."""
        positions: list[Index] = []
        exists: Scalar = Constant(True, DType.BOOL)
        for position, tap, stride, padding, dilation in zip(
            source, kernel, self.stride, self.padding, self.dilation, strict=True
        ):
            shifted = position + padding - tap * dilation
            if stride > 1:
                exists = both(exists, compare("eq", index_value(shifted % stride), index_value(ZERO)))
            positions.append(shifted // stride if stride > 1 else shifted)
        return positions, exists


def guarded_access(tensor: Tensor, index: Sequence[Index], n_spatial: int, exists: Scalar | None = None) -> Scalar:
    """Return an element, or 0 where its spatial position is out of bounds."""
    inside: Scalar = Constant(True, DType.BOOL) if exists is None else exists
    for position, size in zip(index[-n_spatial:], tensor.shape[-n_spatial:], strict=True):
        inside = both(inside, in_range(position, size))
    return guarded(inside, Access(tensor, index), cast(Constant(0, DType.I64), tensor.dtype))


@lowers("convolution")
def _convolution(call: Call) -> Tensor:
    source, weight, bias = call.tensor(0, "input"), call.tensor(1, "weight"), call.optional_tensor(2, "bias")
    geometry = _Convolution.of(call, len(source.shape) - 2, 3)
    if bool(call.raw(6, "transposed")):
        total = transposed_convolution(call, source, weight, geometry, call.shape()[2:])
    else:
        total = plain_convolution(call, source, weight, geometry, call.shape()[2:])
    result = _with_bias(call, total, bias, 1)
    if not bool(call.raw(6, "transposed")):
        convolution, records = Convolution(source, weight, bias, geometry.padding), call.builder.windows
        records.convolutions |= {result: convolution} if geometry.is_plain else {}
        records.depthwise |= {result: convolution} if geometry.is_depthwise(source, weight) else {}
    return result


def plain_convolution(call: Call, source: Tensor, weight: Tensor, geometry: _Convolution, spatial: Shape) -> Tensor:
    """Return the convolution over (N, groups, C_out / groups, spatial), viewed as (N, C_out, spatial); without groups,
    computed over the latter."""
    per_group = weight.shape[1]
    channels = _Channels(len(spatial), geometry.groups, _divided(call, weight.shape[0], geometry.groups))

    def factors(index: tuple[Index, ...], k: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
        group, channel = channels.of(index)
        at = geometry.source_position(channels.spatial(index), k[1:])
        pixel = guarded_access(source, (index[0], group * per_group + k[0], *at), len(spatial))
        return pixel, Access(weight, (group * channels.per_group + channel, *k))

    shape = (source.shape[0], weight.shape[0], *spatial)
    library = geometry.library(source, weight, shape)
    total = contract(
        call, channels.shape(source.shape[0], spatial), weight.shape[1:], factors, channels.axes, library=library
    )
    return call.builder.reshaped(total, shape)


def transposed_convolution(
    call: Call,
    source: Tensor,
    weight: Tensor,
    geometry: _Convolution,
    spatial: Shape,
    *,
    name: str = "",
    library: LibraryCall | None = None,
) -> Tensor:
    """Return the transposed convolution in gather form: every output position sums the input positions that reach it.
    The weight is (C_in, C_out / groups, kernel)."""
    if _has_patches_of_few_channels(weight, geometry):
        return _patches(call, source, weight, spatial, name)
    in_per_group = _divided(call, weight.shape[0], geometry.groups)
    channels = _Channels(len(spatial), geometry.groups, weight.shape[1])

    def factors(index: tuple[Index, ...], k: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
        group, channel = channels.of(index)
        at, exists = geometry.target_position(channels.spatial(index), k[1:])
        source_channel = group * in_per_group + k[0]
        pixel = guarded_access(source, (index[0], source_channel, *at), len(spatial), exists)
        return pixel, Access(weight, (source_channel, channel, *k[1:]))

    shape = channels.shape(source.shape[0], spatial)

    def phases(variables: tuple[Variable, ...]) -> Phases:
        return _phases_of(call, source, weight, geometry, channels, shape, variables)

    has_phases = all(size.constant is not None for size in weight.shape[2:])
    reduced = (in_per_group, *weight.shape[2:])
    by_phases = phases if has_phases else None
    total = contract(call, shape, reduced, factors, channels.axes, name=name, library=library, phases=by_phases)
    return call.builder.reshaped(total, (source.shape[0], weight.shape[1] * geometry.groups, *spatial))


MAX_CHANNELS_OF_PATCHES = 16
"""Maximum channels of a result of patches: with more, each phase has columns enough for tensor cores. The gradient of
images of 3 x 224 x 224 cut into patches of 16 took 2.3 s on an H200 as sums over all taps."""


def _has_patches_of_few_channels(weight: Tensor, geometry: _Convolution) -> bool:
    """Return True for a transposed convolution whose windows lie side by side, without gaps or overlaps."""
    is_tight = geometry.groups == 1 and not any(geometry.padding) and all(step == 1 for step in geometry.dilation)
    are_patches = all(taps.constant == step for taps, step in zip(weight.shape[2:], geometry.stride, strict=True))
    n_channels = weight.shape[1].constant
    return is_tight and are_patches and n_channels is not None and n_channels < MAX_CHANNELS_OF_PATCHES


def _patches(call: Call, source: Tensor, weight: Tensor, spatial: Shape, name: str) -> Tensor:
    """Return the transposed convolution as a matrix product: a row is a patch, its columns are the patch's elements.
    What lies behind the last patch is 0."""
    kernel, n_spatial = weight.shape[2:], len(spatial)
    rows, columns = range(1 + n_spatial), range(1 + n_spatial, 2 + 2 * n_spatial)

    def factors(index: tuple[Index, ...], k: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
        pixel = Access(source, (index[0], k[0], *index[1 : 1 + n_spatial]))
        return pixel, Access(weight, (k[0], *index[1 + n_spatial :]))

    shape = (source.shape[0], *source.shape[2:], *weight.shape[1:])
    total = contract(call, shape, (weight.shape[0],), factors, ((), tuple(rows), tuple(columns)), name=name)

    def of_patch(index: tuple[Index, ...]) -> tuple[Index, ...]:
        pairs = list(zip(index[2:], kernel, strict=True))
        return (index[0], *(at // taps for at, taps in pairs), index[1], *(at % taps for at, taps in pairs))

    result = (source.shape[0], weight.shape[1], *spatial)
    sizes = list(zip(spatial, kernel, source.shape[2:], strict=True))
    if all(size == taps * n for size, taps, n in sizes):
        return call.builder.view(total, result, of_patch)

    def element(index: tuple[Index, ...]) -> Scalar:
        inside: Scalar = Constant(True, DType.BOOL)
        for at, (_, taps, n) in zip(index[2:], sizes, strict=True):
            inside = both(inside, in_range(at // taps, n))
        return guarded(inside, Access(total, of_patch(index)), cast(Constant(0, DType.I64), total.dtype))

    return call.builder.pointwise(total.dtype, result, element, name=name)


def _with_channels_last(call: Call, weight: Tensor, groups: int) -> Tensor:
    """Return a transposed convolution's weight as (groups, spatial, C_out / groups, C_in / groups)."""
    in_per_group = _divided(call, weight.shape[0], groups)
    return call.builder.view(
        weight,
        (as_index(groups), *weight.shape[2:], weight.shape[1], in_per_group),
        lambda index: (index[0] * in_per_group + index[-1], index[-2], *index[1:-2]),
    )


def _phases_of(
    call: Call,
    source: Tensor,
    weight: Tensor,
    geometry: _Convolution,
    channels: _Channels,
    shape: Shape,
    variables: tuple[Variable, ...],
) -> Phases:
    """Return the transposed convolution by phases, over a weight whose input channels are its last dim."""
    builder, n_spatial = call.builder, len(geometry.stride)
    first = len(shape) - n_spatial
    in_per_group = _divided(call, weight.shape[0], geometry.groups)
    packed = _with_channels_last(call, weight, geometry.groups)
    axes = [
        AxisGeometry(stride, padding, dilation, shape[first + axis], taps.constant or 1)
        for axis, (stride, padding, dilation, taps) in enumerate(
            zip(geometry.stride, geometry.padding, geometry.dilation, weight.shape[2:], strict=True)
        )
    ]
    names = "dhw"[3 - n_spatial :]
    strided = [(axis.stride, f"phase_{name}") for axis, name in zip(axes, names, strict=True) if axis.stride > 1]
    phases = builder.variables([as_index(stride) for stride, _ in strided], names=[name for _, name in strided])
    rows = builder.variables([axis.n_rows(builder.sizes) for axis in axes], "row")
    reduced = builder.variables([*(as_index(axis.max_taps) for axis in axes), in_per_group], "t")
    pending = iter(positions(phases))
    of_phase = [ZERO if axis.stride == 1 else next(pending) for axis in axes]
    of_row, (*taps, channel) = positions(rows), positions(reduced)
    numbers: dict[Variable, Index] = {}

    def number(name: str, index: Index, limit: int) -> Index:
        if index.constant is not None:
            return index
        (variable,) = builder.variables([as_index(limit)], names=[name])
        numbers[variable] = index
        return as_index(variable)

    places = list(zip(axes, names, of_phase, of_row, taps, strict=True))
    first_taps = [number(f"first_{n}", a.first_tap(phase), a.tap_step) for a, n, phase, _, _ in places]
    limits = [number(f"taps_{n}", a.n_taps_of(phase), a.max_taps + 1) for a, n, phase, _, _ in places]
    shifts = [number(f"shift_{n}", a.shift(phase), a.max_shift + 1) for a, n, phase, _, _ in places]
    index = positions(variables)
    group, column = channels.of(index)
    at = [
        row + shift - axis.max_passed - tap * axis.source_step
        for (axis, _, _, row, tap), shift in zip(places, shifts, strict=True)
    ]
    of_weight = [first + tap * axis.tap_step for (axis, *_, tap), first in zip(places, first_taps, strict=True)]
    return Phases(
        tuple(range(first, len(shape))),
        phases,
        tuple(numbers.items()),
        rows,
        tuple(row * axis.stride + phase for axis, _, phase, row, _ in places),
        reduced,
        (*limits, in_per_group),
        guarded_access(source, (index[0], group * in_per_group + channel, *at), n_spatial),
        Access(packed, (group, *of_weight, column, channel)),
        (packed,),
    )


@dataclass(frozen=True)
class _Channels:
    """Index layout of a convolution's result: (N, C, spatial), or (N, groups, C / groups, spatial) with groups."""

    n_spatial: int
    groups: int
    per_group: Index

    def shape(self, n_images: Index, spatial: Shape) -> Shape:
        if self.groups == 1:
            return (n_images, self.per_group, *spatial)
        return (n_images, as_index(self.groups), self.per_group, *spatial)

    def of(self, index: Sequence[Index]) -> tuple[Index, Index]:
        """Return (group, channel within it)."""
        return (ZERO, index[1]) if self.groups == 1 else (index[1], index[2])

    def spatial(self, index: Sequence[Index]) -> Sequence[Index]:
        return index[len(index) - self.n_spatial :]

    @property
    def axes(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Return the (batch, row, column) axes: groups are a batch, pixels are rows, channels are columns."""
        if self.groups == 1:
            return (), (0, *range(2, 2 + self.n_spatial)), (1,)
        return (1,), (0, *range(3, 3 + self.n_spatial)), (2,)


@lowers("convolution_backward")
def _convolution_backward(call: Call) -> tuple[Tensor | None, ...]:
    grad, source, weight = call.tensor(0, "grad_output"), call.tensor(1, "input"), call.tensor(2, "weight")
    n_spatial = len(source.shape) - 2
    geometry = _Convolution.of(call, n_spatial, 4)
    wanted = call.raw(10, "output_mask")
    is_transposed = bool(call.raw(7, "transposed"))
    results: list[Tensor | None] = [None, None, None]
    if wanted[0] and is_transposed:
        # The gradient of a transposed convolution is the plain one with the same weight.
        results[0] = plain_convolution(call, grad, weight, geometry, source.shape[2:])
    elif wanted[0]:
        library = geometry.gradient_library(grad, source, weight, of_weight=False)
        results[0] = transposed_convolution(
            call, grad, weight, geometry, source.shape[2:], name="grad_input", library=library
        )
    if wanted[1]:
        pixels, positions = (grad, source) if is_transposed else (source, grad)
        library = None if is_transposed else geometry.gradient_library(grad, source, weight, of_weight=True)
        results[1] = _weight_gradient(call, pixels, positions, weight, geometry, library)
    if wanted[2]:
        results[2] = _bias_gradient(call, grad)
    of_source, of_weight, of_bias = (
        tensor if tensor is None else converted(call, tensor, item) for item, tensor in enumerate(results)
    )
    convolution = Convolution(source, weight, None, geometry.padding)
    if geometry.is_plain and not is_transposed:
        call.builder.windows.convolution_gradients(grad, convolution, (of_source, of_weight, of_bias))
    if geometry.is_depthwise(source, weight) and not is_transposed:
        call.builder.windows.gradients_of_depthwise(grad, convolution, (of_source, *results[1:]))
    return of_source, of_weight, of_bias


def _weight_gradient(
    call: Call,
    pixels: Tensor,
    positions: Tensor,
    weight: Tensor,
    geometry: _Convolution,
    library: LibraryCall | None = None,
) -> Tensor:
    """Return the gradient of every weight: the sum over (N, spatial) of the values that it multiplied. `positions`
    slides over `pixels`."""
    n_spatial, groups = len(pixels.shape) - 2, geometry.groups
    per_group = _divided(call, pixels.shape[1], groups)
    rows_per_group = _divided(call, weight.shape[0], groups)
    shape = (as_index(groups), rows_per_group, *weight.shape[1:])

    def factors(index: tuple[Index, ...], k: tuple[Index, ...]) -> tuple[Scalar, Scalar]:
        at = geometry.source_position(k[1:], index[3:])
        pixel = guarded_access(pixels, (k[0], index[0] * per_group + index[2], *at), n_spatial)
        return Access(positions, (k[0], index[0] * rows_per_group + index[1], *k[1:])), pixel

    taps = _copy_by_taps(call, pixels, positions.shape[2:], weight.shape[2:], geometry)

    def copied(index: tuple[Index, ...], k: tuple[Index, ...]) -> CopiedFactor:
        assert taps is not None
        *outer, along = zip(index[3:], geometry.dilation, geometry.stride, strict=True)
        phases = [tap * dilation % stride for tap, dilation, stride in outer if stride > 1]
        rows = [row + tap * dilation // stride for row, (tap, dilation, stride) in zip(k[1:-1], outer, strict=True)]
        channel = index[0] * per_group + index[2]
        return CopiedFactor(Access(taps, (along[0], *phases, k[0], channel, *rows, k[-1])), taps)

    axes = ((0,), (1,), tuple(range(2, 3 + n_spatial)))
    reduced, by_copy = (positions.shape[0], *positions.shape[2:]), None if taps is None else copied
    total = contract(call, shape, reduced, factors, axes, name="grad_weight", library=library, copied=by_copy, item=1)
    return call.builder.reshaped(total, weight.shape)


def _copy_by_taps(call: Call, pixels: Tensor, out: Shape, kernel: Shape, geometry: _Convolution) -> Tensor | None:
    """Return a copy of the pixels for each tap along a row, with zeros around: (tap, phases of strides, N, C, rows,
    positions along a row). There all positions of a tap are neighbours in memory, whatever the other taps. None where
    they are in the pixels themselves, or the kernel's sizes are no constants."""
    sizes = [size.constant for size in kernel]
    settings = (geometry.stride, geometry.dilation, geometry.padding)
    if None in sizes or (sizes == [1] * len(sizes) and settings[0] == (1,) * len(sizes) and not any(settings[2])):
        return None
    *strides, step = geometry.stride
    reach = [((size or 1) - 1) * dilation for size, dilation in zip(sizes, geometry.dilation, strict=True)]
    phases = [as_index(stride) for stride in strides if stride > 1]
    rows = [size + passed // stride for size, passed, stride in zip(out[:-1], reach[:-1], strides, strict=True)]
    n_phases, n_spatial = len(phases), len(sizes)

    def body(index: tuple[Index, ...]) -> Scalar:
        tap, of_phases, n, c = index[0], iter(index[1 : 1 + n_phases]), index[1 + n_phases], index[2 + n_phases]
        *of_rows, along = index[3 + n_phases :]
        at = [
            row * stride + (next(of_phases) if stride > 1 else ZERO) - padding
            for row, stride, padding in zip(of_rows, strides, geometry.padding[:-1], strict=True)
        ]
        at.append(along * step + tap * geometry.dilation[-1] - geometry.padding[-1])
        return guarded_access(pixels, (n, c, *at), n_spatial)

    shape = (kernel[-1], *phases, pixels.shape[0], pixels.shape[1], *rows, out[-1])
    return call.builder.pointwise(pixels.dtype, shape, body, name="by_taps")


def _bias_gradient(call: Call, grad: Tensor) -> Tensor:
    dtype = accumulation_dtype(grad.dtype)
    axes = (0, *range(2, len(grad.shape)))
    return call.builder.reduction(
        "sum", dtype, grad.shape, axes, lambda index: cast(Access(grad, index), dtype), name="grad_bias"
    )


def _divided(call: Call, size: Index, groups: int) -> Index:
    if groups == 1:
        return size
    quotient = divide_exactly(size, as_index(groups))
    if quotient is None:
        call.fail("its channels do not divide by its groups")
    return quotient
