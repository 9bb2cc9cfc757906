"""Map the elements of a matrix to the lanes of a warp: the fragments of `mma` and `wmma`.

A matrix is held along an outer and an inner direction. Of every 8 rows of the outer direction, lane l holds row l / 4.
In that row, it holds `group` neighbours in each run of 4 * `group`, those at l % 4. This rule gives all layouts of
`mma.sync` with 8 or 16 rows (PTX ISA, "Matrix Fragments for mma"). The layout of `wmma` fragments is unspecified, so
they follow the same rule. Where memory has the same direction, a group is one access.

Run matrix instructions once the lanes of their warp have arrived. Written in the subset of `ptx.compile.native`.

Every lane of a warp must take part; otherwise the instruction is undefined.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kernel_lsp.ptx.compile.native import call_warp, load64, store64
from kernel_lsp.ptx.run.layout import WARP_SIZE, FaultKind, Thread
from kernel_lsp.ptx.text.syntax import WIDTH_BITS

Role = Literal["a", "b", "c"]
"""Role of a matrix: left factor, right factor, or accumulator and result."""
REGISTER_BITS = 32
OUTER_PERIOD = 8
LANES_PER_ROW = 4
ACCUMULATOR_GROUP = 2
"""Adjacent accumulator elements per lane, for every type."""
_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")


@dataclass(frozen=True)
class Shape:
    """Shape of a product. ``m16n8k16``: an m x k matrix times a k x n matrix."""

    m: int
    n: int
    k: int

    def rows_and_columns(self, role: Role) -> tuple[int, int]:
        return {"a": (self.m, self.k), "b": (self.k, self.n), "c": (self.m, self.n)}[role]


@dataclass(frozen=True)
class Fragment:
    """Describe a warp's fragment of a `n_rows` x `n_columns` matrix of elements of PTX type `kind`.
    `outer_is_row`: rows are the outer direction."""

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
        """Return the number of elements of one lane."""
        return self.n_rows * self.n_columns // WARP_SIZE

    @property
    def per_register(self) -> int:
        return max(1, REGISTER_BITS // self.element_bits)

    @property
    def register_bits(self) -> int:
        return self.per_register * self.element_bits

    @property
    def n_registers(self) -> int:
        """Return the number of distinct registers. Some instructions have more, which repeat these."""
        return self.n_elements // self.per_register

    @property
    def n_bytes(self) -> int:
        """Return the bytes of one lane."""
        return self.n_elements * self.element_bits // 8

    @property
    def n_outer(self) -> int:
        return self.n_rows if self.outer_is_row else self.n_columns

    def start(self, element: int) -> tuple[int, int]:
        """Return the lane-independent part of an element's outer and inner index. The lane adds `lane / 4` to the outer
        and `group * (lane % 4)` to the inner index."""
        index, within = divmod(element, self.group)
        n_across = self.n_outer // OUTER_PERIOD
        return OUTER_PERIOD * (index % n_across), LANES_PER_ROW * self.group * (index // n_across) + within


def parse_shape(modifiers: tuple[str, ...]) -> Shape:
    """Return the shape that an instruction names. Raises ValueError when it names none."""
    for modifier in modifiers:
        if found := _SHAPE.match(modifier):
            return Shape(*map(int, found.groups()))
    raise ValueError("no shape")


def fragment(role: Role, shape: Shape, kind: str, layout: str) -> Fragment:
    """Return the fragment of a matrix in an instruction of that shape. `layout` is ``row`` or ``col`` for a and b; c
    has a single layout. Raises ValueError for a matrix that the rule does not fit."""
    n_rows, n_columns = shape.rows_and_columns(role)
    group = ACCUMULATOR_GROUP if role == "c" else max(1, REGISTER_BITS // WIDTH_BITS[kind])
    # The contiguous direction of memory should be the inner one, but a narrow matrix fits only across.
    wanted = role == "c" or layout == "row"
    for outer_is_row in (wanted, not wanted):
        n_outer, n_inner = (n_rows, n_columns) if outer_is_row else (n_columns, n_rows)
        if n_outer % OUTER_PERIOD == 0 and n_inner % (LANES_PER_ROW * group) == 0:
            return Fragment(kind, n_rows, n_columns, group, outer_is_row)
    raise ValueError(f"a {n_rows} x {n_columns} matrix of {kind}")


STEP_SHIFT = 8
"""Bit position of the failed step's number in the result of a batch.
The bits below hold the kind of fault; 0 is success."""
ALL_LANES = (1 << WARP_SIZE) - 1


def perform_matrix(first: int, stride: int, group: int) -> int:
    """Run the instruction that the lanes of `group` wait for. Returns 0, or the FaultKind that forbids it. On a fault,
    the first lane's `Thread.C` becomes the site of the failed step; otherwise it stays that of the first step."""
    if group != ALL_LANES:
        return FaultKind.WARP_INCOMPLETE
    code = call_warp(load64(first + Thread.WARP_FUNCTION), load64(first + Thread.MATRIX_AREA), stride)
    store64(first + Thread.C, load64(first + Thread.C) + (code >> STEP_SHIFT))
    return code & ((1 << STEP_SHIFT) - 1)
