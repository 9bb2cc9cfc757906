"""Assign addresses to the variables of a kernel in their state spaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernel_lsp.ptx.text.syntax import Function, Variable

DYNAMIC_SHARED_ALIGN = 16
GAP_BYTES = 128
"""Minimum gap in bytes behind each shared or local variable but the last.
An index past the end hits the gap, not the next variable."""


@dataclass(frozen=True)
class SharedLayout:
    """Lay out a kernel's shared variables, with a gap between any two. `sizes` are those of variables that are not
    dynamic. `n_static_bytes` is their size on a GPU, where there are no gaps. Dynamic shared memory starts at
    `n_laid_out_bytes`."""

    offsets: dict[str, int]
    sizes: dict[str, int]
    n_static_bytes: int
    n_laid_out_bytes: int
    alignment: int = 1
    """Strictest alignment of any variable, in bytes."""

    def start(self, wanted: int) -> int:
        """Return the address of the first byte for the start that a run requests."""
        return round_up(wanted, self.alignment)

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Return the start and the size in bytes of each gap."""
        ends = [self.offsets[name] + n_bytes for name, n_bytes in self.sizes.items()]
        starts = [*sorted(self.offsets[name] for name in self.sizes), self.n_laid_out_bytes][1:]
        found = [(end, start - end) for end, start in zip(sorted(ends), starts, strict=True)]
        return [(start, n_bytes) for start, n_bytes in found if n_bytes > 0]


@dataclass
class Places:
    """Hold the byte offsets of variables in one space."""

    offsets: dict[str, int] = field(default_factory=dict)
    n_bytes: int = 0

    def add(self, variable: Variable) -> None:
        start = round_up(self.n_bytes, max(1, variable.align))
        self.offsets[variable.name] = start
        self.n_bytes = start + variable.n_bytes


@dataclass
class ApartPlaces(Places):
    """Extend `Places` with a gap between any two variables, and with the size of each in bytes."""

    sizes: dict[str, int] = field(default_factory=dict)

    def add(self, variable: Variable) -> None:
        self.n_bytes += GAP_BYTES if self.n_bytes else 0
        super().add(variable)
        self.sizes[variable.name] = variable.n_bytes

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Return the start and the size in bytes of each variable that is not empty."""
        return [(self.offsets[name], n_bytes) for name, n_bytes in self.sizes.items() if n_bytes]


def shared_layout(kernel: Function, module_variables: Sequence[Variable]) -> SharedLayout:
    variables = [variable for variable in (*module_variables, *kernel.variables) if variable.space == "shared"]
    static = [variable for variable in variables if not variable.is_extern]
    dynamic = [variable.name for variable in variables if variable.is_extern]
    dense, apart = Places(), ApartPlaces()
    for variable in static:
        dense.add(variable)
        apart.add(variable)
    n_static, n_laid_out = dense.n_bytes, apart.n_bytes
    if dynamic:
        n_static = round_up(n_static, DYNAMIC_SHARED_ALIGN)
        n_laid_out = round_up(n_laid_out + GAP_BYTES if n_laid_out else 0, DYNAMIC_SHARED_ALIGN)
    offsets = {**apart.offsets, **dict.fromkeys(dynamic, n_laid_out)}
    sizes = {variable.name: variable.n_bytes for variable in static if variable.n_bytes}
    alignment = max((variable.align for variable in variables), default=1)
    return SharedLayout(offsets, sizes, n_static, n_laid_out, max(1, alignment))


def round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
