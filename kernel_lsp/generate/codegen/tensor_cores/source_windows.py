"""Convolutions whose tiles read one window of the source for all taps along a row.

Output rows are laid out with a pitch: the source's row length and as many zeros as taps reach beyond a row. There, each
tap is a constant shift, and a run of outputs needs one run of the source, whatever rows and images it spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_operands import plain_read
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index, expanded, product, substitute
from kernel_lsp.generate.ir.scalar import TRUE, Access, Scalar, both, in_range
from kernel_lsp.generate.ir.sizes import coefficient, ravel

PIECE = 4
"""Elements of f32 in a copy of 16 bytes."""
PADDINGS = (8, 24, 40, 56)
"""Elements by which a row of a window may exceed the tile: lanes then read fragments from different banks."""
DEPTH = 8
"""Products of one `wgmma` of TF32."""
MAX_CHANNELS, MAX_PRODUCTS = 32, 56
"""Maximum channels of a window, and products of a step: tensor cores add up that many before an addition of f32."""
PLACE_SERIAL, TAP_SERIAL = 1 << 23, 1 << 24


@dataclass(frozen=True)
class WindowAxis:
    """A spatial axis: output `place` reads the source at stride * place + step * tap + first. `tap` is its place among
    the summed dims; None without taps."""

    size: Index
    extent: Index
    stride: int
    step: int
    first: int
    tap: int | None
    n_taps: int

    @property
    def offsets(self) -> range | tuple[int, ...]:
        """Return the distance of every tap's position from stride * place."""
        return tuple(self.first + self.step * tap for tap in range(self.n_taps))


@dataclass(frozen=True)
class Windows:
    """A convolution over windows: `shape` are the summed dims, of which `channel` counts the source's channels. Axes
    are in memory order; the last one has stride 1."""

    read: Access
    shape: tuple[int, ...]
    channel: int
    axes: tuple[WindowAxis, ...]
    n_images: Index

    @property
    def row(self) -> WindowAxis:
        return self.axes[-1]

    @property
    def n_channels(self) -> int:
        return self.shape[self.channel]

    @property
    def before(self) -> int:
        """Return how far a window begins before its tile, in whole pieces."""
        return _in_pieces(-min(self.row.offsets))

    @property
    def after(self) -> int:
        """Return how far a window reaches beyond its tile, in whole pieces."""
        return _in_pieces(max(self.row.offsets))

    @property
    def padding(self) -> int | None:
        """Return by how much the rows of a window exceed the tile; None where taps reach too far."""
        return next((padding for padding in PADDINGS if padding >= self.before + self.after), None)

    @property
    def pitch(self) -> Index:
        """Return the distance between output rows: what a row of the source and the zeros around it need."""
        longer = (expanded(self.row.extent) - expanded(self.row.size)).constant
        assert longer is not None
        low, high = -min(self.row.offsets), max(self.row.offsets)
        return self.row.size + _in_pieces(max(low, longer, longer + high))

    @property
    def n_places(self) -> Index:
        """Return the outputs of a channel with those between rows."""
        return product([self.n_images, *(axis.extent for axis in self.axes[:-1])]) * self.pitch

    @property
    def channels(self) -> int:
        """Return the channels of a window."""
        return max(n for n in range(DEPTH, MAX_CHANNELS + 1, DEPTH) if self.n_channels % n == 0)

    @property
    def taps(self) -> int:
        """Return the taps of a step."""
        fitting = [n for n in range(1, self.row.n_taps + 1) if self.row.n_taps % n == 0]
        return max(n for n in fitting if n == 1 or n * self.channels <= max(MAX_CHANNELS, MAX_PRODUCTS * (n > 2)))

    @property
    def n_row_taps(self) -> int:
        """Return the taps over all axes but the last: each has a window of its own."""
        n_taps = 1
        for axis in self.axes[:-1]:
            n_taps *= axis.n_taps
        return n_taps

    @property
    def steps_per_window(self) -> int:
        return self.row.n_taps // self.taps

    @property
    def n_steps(self) -> int:
        return self.n_row_taps * (self.n_channels // self.channels) * self.steps_per_window


def windows_of(group: ContractionGroup) -> Windows | None:
    """Return the windows of a convolution of f32; None for any other contraction, and where a window does not fit."""
    read = plain_read(group.unscaled[0], DType.F32) if group.operand == DType.F32 else None
    extents = group.phases.shape if group.phases is not None else tuple(v.extent for v in group.reduced)
    shape = tuple(extent.constant or 0 for extent in extents)
    if read is None or group.batch.extent.constant != 1 or 0 in shape or not _is_masked_by_bounds(read):
        return None
    if len(group.row_shape) != len(read.index) - 1 or len(read.index) < 3:
        return None
    places = [_variable(PLACE_SERIAL, place, extent) for place, extent in enumerate(group.row_shape)]
    taps = [_variable(TAP_SERIAL, place, extent) for place, extent in enumerate(extents)]
    replaced = {group.m: _flat(places, group.row_shape), group.k: _flat(taps, extents)}
    image, channel, *positions = (substitute(index, replaced) for index in read.index)
    found = [place for place, tap in enumerate(taps) if channel == as_index(tap) and shape[place] > 1]
    if image != _index(places[0]) or not found or read.tensor.shape[1].constant != shape[found[0]]:
        return None
    sizes = read.tensor.shape[2:]
    axes = [
        _axis(position, place, taps, found[0], size)
        for position, place, size in zip(positions, places[1:], sizes, strict=True)
    ]
    whole = tuple(axis for axis in axes if axis is not None)
    if len(whole) < len(axes) or not _are_complete(whole, shape, found[0]):
        return None
    windows = Windows(read, shape, found[0], whole, group.row_shape[0])
    return windows if _is_supported(windows) else None


def _variable(serial: int, place: int, extent: Index) -> Variable:
    return Variable(f"place_{serial}_{place}", serial + place, extent)


def _index(variable: Variable) -> Index:
    return ZERO if variable.extent == ONE else as_index(variable)


def _flat(variables: Sequence[Variable], shape: Sequence[Index]) -> Index:
    return ravel([_index(variable) for variable in variables], shape)


def _is_masked_by_bounds(read: Access) -> bool:
    """Return True if the read is 0 where it is out of bounds, and nowhere else."""
    bounds: Scalar = TRUE
    for position, size in zip(read.index[2:], read.tensor.shape[2:], strict=True):
        bounds = both(bounds, in_range(position, size))
    return read.mask is None or read.mask == bounds


def _axis(position: Index, place: Variable, taps: Sequence[Variable], channel: int, size: Index) -> WindowAxis | None:
    own = [n for n, tap in enumerate(taps) if n != channel and tap in position.variables]
    steps = [coefficient(position, variable) for variable in (place, *(taps[n] for n in own))]
    constants = [None if step is None else step.constant for step in steps]
    first = substitute(position, {place: ZERO, **{taps[n]: ZERO for n in own}}).constant
    if len(own) > 1 or first is None or None in constants:
        return None
    stride, step = constants[0] or 0, (constants[1] or 0) if own else 0
    n_taps = taps[own[0]].extent.constant or 1 if own else 1
    return WindowAxis(size, place.extent, stride, step, first, own[0] if own else None, n_taps)


def _are_complete(axes: Sequence[WindowAxis], shape: Sequence[int], channel: int) -> bool:
    """Return True if every summed dim is the channel or the tap of an axis."""
    used = {axis.tap for axis in axes if axis.tap is not None} | {channel}
    return all(place in used or extent == 1 for place, extent in enumerate(shape))


def _is_supported(windows: Windows) -> bool:
    row = windows.row
    has_pitch = row.stride == 1 and (expanded(row.extent) - expanded(row.size)).constant is not None
    return has_pitch and windows.n_channels % DEPTH == 0 and windows.padding is not None


def _in_pieces(distance: int) -> int:
    return max(0, -(-distance // PIECE) * PIECE)
