"""Small windows that one thread loops over: the positions of their taps, and the windows that reach a position, by
phase where outputs are a stride apart.

Output position o = stride * row + phase sums the taps with dilation * tap = o + padding (mod stride). The t-th of them
is first_tap + t * tap_step, and reads input position row + shift - t * source_step. The other taps of the gather form,
all but 1 of stride ** n, meet no input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.ir.atoms import Symbol, Variable
from kernel_lsp.generate.ir.index import ZERO, Index, as_index, expanded
from kernel_lsp.generate.ir.scalar import Constant, Scalar, as_position, both, in_range, index_value, integer
from kernel_lsp.generate.ir.sizes import Sizes, ceil_div, to_expression
from kernel_lsp.generate.lowering.arithmetic import op
from kernel_lsp.generate.lowering.builder import Call, Shape


@dataclass(frozen=True)
class Window:
    """Parameters of a window, one entry per spatial dim."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @classmethod
    def of(cls, call: Call, n_spatial: int, first: int, *, has_dilation: bool) -> Window:
        """Read the arguments ``kernel_size, stride, padding`` and, if present, ``dilation`` from position `first`
        on."""
        size = call.spatial(first, "kernel_size", n_spatial, 1)
        stride = call.spatial(first + 1, "stride", n_spatial, 0)
        return cls(
            size,
            size if not any(stride) else stride,
            call.spatial(first + 2, "padding", n_spatial, 0),
            call.spatial(first + 3, "dilation", n_spatial, 1) if has_dilation else (1,) * n_spatial,
        )

    def along(self, dims: Sequence[int]) -> Window:
        """Return the window along some of its dims."""
        entries = (self.size, self.stride, self.padding, self.dilation)
        return Window(*(tuple(entry[dim] for dim in dims) for entry in entries))

    def at(self, out: Sequence[Index], tap: Sequence[Index]) -> list[Index]:
        """Return the input position of a tap; it may be out of bounds."""
        return [
            position * stride - padding + offset * dilation
            for position, offset, stride, padding, dilation in zip(
                out, tap, self.stride, self.padding, self.dilation, strict=True
            )
        ]

    def first_inside(self, out: Sequence[Index]) -> list[Index]:
        """Return the first tap of a window that is not before the input."""
        return [
            as_position(
                op("maximum", integer(0), index_value((padding - position * stride + dilation - 1) // dilation))
            )
            if padding
            else ZERO
            for position, stride, padding, dilation in zip(out, self.stride, self.padding, self.dilation, strict=True)
        ]


def n_spatial_of(call: Call) -> int:
    """Return the number of spatial dims from the operator's name: 2 for ``avg_pool2d``."""
    return next(int(letter) for letter in call.node.op if letter in "123")


def taps_of(call: Call, extents: Sequence[Index | int]) -> tuple[Variable, ...]:
    """Return the loop variables of a window, one per spatial dim."""
    return call.builder.variables([as_index(extent) for extent in extents], names=("kd", "kh", "kw")[-len(extents) :])


def is_inside(at: Sequence[Index], spatial: Shape) -> Scalar:
    """Return the condition that a position is inside the input."""
    inside: Scalar = Constant(True, DType.BOOL)
    for position, extent in zip(at, spatial, strict=True):
        inside = both(inside, in_range(position, extent))
    return inside


def reach_of(window: Window) -> tuple[int, ...]:
    """Return the maximum number of windows that contain one position, per dim."""
    return tuple(
        -(-((size - 1) * dilation + 1) // stride)
        for size, dilation, stride in zip(window.size, window.dilation, window.stride, strict=True)
    )


def reaching_windows(
    window: Window, inner: Sequence[Index], tap: Sequence[Index], out_shape: Shape
) -> tuple[list[Index], Scalar]:
    """Return the `tap`-th window before the last that starts at or before a position, and the condition that it
    exists."""
    out: list[Index] = []
    inside: Scalar = Constant(True, DType.BOOL)
    for position, offset, stride, padding, extent in zip(
        inner, tap, window.stride, window.padding, out_shape, strict=True
    ):
        start = (position + padding) // stride - offset
        inside = both(inside, in_range(start, extent))
        out.append(start)
    return out, inside


@dataclass(frozen=True)
class AxisGeometry:
    """One spatial axis of a transposed convolution: `size` outputs, `n_taps` of the kernel."""

    stride: int
    padding: int
    dilation: int
    size: Index
    n_taps: int

    @property
    def _common(self) -> int:
        return gcd(self.stride, self.dilation)

    @property
    def tap_step(self) -> int:
        """Return the distance between the taps of a phase."""
        return self.stride // self._common

    @property
    def source_step(self) -> int:
        """Return the distance between the input positions that the taps of a phase read."""
        return self.dilation // self._common

    @property
    def max_taps(self) -> int:
        """Return the maximum number of taps of a phase."""
        return -(-self.n_taps // self.tap_step)

    @property
    def max_passed(self) -> int:
        """Return the maximum number of input positions between tap 0 and a first tap."""
        return (self.tap_step - 1) * self.dilation // self.stride

    def n_rows(self, sizes: Sizes) -> Index:
        """Return the number of outputs of a phase, at most one of which is out of bounds."""
        if self.stride == 1:
            return self.size
        exact = (expanded(self.size) + (self.stride - 1)) // self.stride
        is_product = len(exact.terms) <= 1 and all(
            isinstance(atom, Symbol) for atoms, _ in exact.terms for atom in atoms
        )
        return exact if is_product else as_index(sizes.derived(exact, ceil_div(to_expression(self.size), self.stride)))

    def first_tap(self, phase: Index) -> Index:
        """Return the first tap of a phase that has taps."""
        if self.tap_step == 1:
            return as_index(0)
        inverse = pow(self.source_step, -1, self.tap_step)
        return self._place(phase) // self._common * inverse % self.tap_step

    def shift(self, phase: Index) -> Index:
        """Return how far behind its row, plus `max_passed`, the first tap of a phase reads."""
        passed = self.first_tap(phase) * self.dilation // self.stride
        return (phase + self.padding) // self.stride - passed + self.max_passed

    @property
    def max_shift(self) -> int:
        return (self.stride - 1 + self.padding) // self.stride + self.max_passed

    def n_taps_of(self, phase: Index) -> Index:
        """Return the number of taps of a phase."""
        has_taps = (self._common - self._place(phase) % self._common) // self._common
        return (self.n_taps - self.first_tap(phase) + (self.tap_step - 1)) // self.tap_step * has_taps

    def _place(self, phase: Index) -> Index:
        return (phase + self.padding % self.stride) % self.stride
