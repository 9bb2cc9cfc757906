"""Which lane of a warp holds which elements of a matrix: the fragments of `mma` and `wmma`.

A matrix is held along an outer and an inner direction. Lane l holds, of every 8 rows of the outer direction, the one
with number l / 4, and in it `group` neighbours in each run of 4 * `group`, those at l % 4. That one rule gives all
layouts of `mma.sync` with 8 or 16 rows (PTX ISA, "Matrix Fragments for mma"). The layout of `wmma` fragments is not
for programs to know, so they follow the same rule; where a matrix is stored as it is held, a group is one access.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kernel_lsp.ptx.run.layout import WARP_SIZE
from kernel_lsp.ptx.text.syntax import WIDTH_BITS

Role = Literal["a", "b", "c"]
"""Left factor, right factor, and what they are added to, or the result."""
REGISTER_BITS = 32
OUTER_PERIOD = 8
LANES_PER_ROW = 4
ACCUMULATOR_GROUP = 2
"""Neighbours of an accumulator that one lane holds, in every type."""
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")


@dataclass(frozen=True)
class Shape:
    """``m16n8k16``: an m x k matrix times a k x n matrix."""

    m: int
    n: int
    k: int

    def rows_and_columns(self, role: Role) -> tuple[int, int]:
        return {"a": (self.m, self.k), "b": (self.k, self.n), "c": (self.m, self.n)}[role]


@dataclass(frozen=True)
class Fragment:
    """A warp's share of a `n_rows` x `n_columns` matrix of elements of PTX type `kind`. `outer_is_row` says that rows
    are the outer direction."""

    kind: str
    n_rows: int
    n_columns: int
    group: int
    outer_is_row: bool

    @property
    def element_bits(self) -> int:
        return WIDTH_BITS[self.kind]

    @property
    def n_elements(self) -> int:
        """Of one lane."""
        return self.n_rows * self.n_columns // WARP_SIZE

    @property
    def per_register(self) -> int:
        return max(1, REGISTER_BITS // self.element_bits)

    @property
    def register_bits(self) -> int:
        return self.per_register * self.element_bits

    @property
    def n_registers(self) -> int:
        """That differ; some instructions have more, which repeat these."""
        return self.n_elements // self.per_register

    @property
    def n_bytes(self) -> int:
        """Of one lane."""
        return self.n_elements * self.element_bits // 8

    @property
    def n_outer(self) -> int:
        return self.n_rows if self.outer_is_row else self.n_columns

    def start(self, element: int) -> tuple[int, int]:
        """Outer and inner index of a lane's element, but for what depends on the lane: `lane / 4` outwards and
        `group * (lane % 4)` inwards."""
        index, within = divmod(element, self.group)
        n_across = self.n_outer // OUTER_PERIOD
        return OUTER_PERIOD * (index % n_across), LANES_PER_ROW * self.group * (index // n_across) + within


def parse_shape(modifiers: tuple[str, ...]) -> Shape:
    """The shape that an instruction names. Raises ValueError when it names none."""
    for modifier in modifiers:
        if found := _SHAPE.match(modifier):
            return Shape(*map(int, found.groups()))
    raise ValueError("no shape")


def fragment(role: Role, shape: Shape, kind: str, layout: str) -> Fragment:
    """The fragment of a matrix in an instruction with that shape. `layout` is ``row`` or ``col`` of a and b; c is held
    in one way. Raises ValueError for a matrix that the rule does not fit."""
    n_rows, n_columns = shape.rows_and_columns(role)
    group = ACCUMULATOR_GROUP if role == "c" else max(1, REGISTER_BITS // WIDTH_BITS[kind])
    # The direction in which memory is contiguous should be the inner one, but a narrow matrix is only held across.
    wanted = role == "c" or layout == "row"
    for outer_is_row in (wanted, not wanted):
        n_outer, n_inner = (n_rows, n_columns) if outer_is_row else (n_columns, n_rows)
        if n_outer % OUTER_PERIOD == 0 and n_inner % (LANES_PER_ROW * group) == 0:
            return Fragment(kind, n_rows, n_columns, group, outer_is_row)
    raise ValueError(f"a {n_rows} x {n_columns} matrix of {kind}")
