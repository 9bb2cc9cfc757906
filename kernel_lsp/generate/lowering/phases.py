"""Strided transposed convolutions by phase: outputs that are a stride apart meet the same taps of the kernel.

Output position o = stride * row + phase sums the taps with dilation * tap = o + padding (mod stride). The t-th of them
is first_tap + t * tap_step, and reads input position row + shift - t * source_step. The other taps of the gather form,
all but 1 of stride ** n, meet no input.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from kernel_lsp.generate.ir.index import Index, Symbol, as_index, expanded
from kernel_lsp.generate.ir.sizes import Sizes, ceil_div, to_expression


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
        """Return the maximum number of input positions that a first tap lies behind that of tap 0."""
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
