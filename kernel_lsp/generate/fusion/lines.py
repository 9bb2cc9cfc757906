"""Lines of rows: the rows of one reduction are parts of the rows of another, such as the channels of a group."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.generate.fusion.patterns import pattern_of
from kernel_lsp.generate.fusion.progress import Progress
from kernel_lsp.generate.ir.index import Index, Variable, as_index, divide_exactly
from kernel_lsp.generate.ir.row_major import ravel, reshape
from kernel_lsp.generate.ir.scalar import Access
from kernel_lsp.generate.ir.tensor import Reduction, Tensor


@dataclass(frozen=True)
class LinesOfRows:
    """A `row` has `n` lines of `length` columns; `number` is that of a line."""

    row: Variable
    number: Variable
    n: int
    length: Index

    @classmethod
    def of(cls, definition: Reduction, row: Variable, column: Variable, progress: Progress) -> LinesOfRows | None:
        """Return the lines that the reduction combines; None where they are not those of the rows."""
        pattern = pattern_of(definition)
        if [kind for kind, _ in pattern] != ["o", "r"] or definition.kind != "sum":
            return None
        (_, n_lines), (_, length) = pattern
        per_row = divide_exactly(n_lines, row.extent)
        n = per_row.constant if per_row is not None else None
        if n is None or n < 2 or not progress.sizes.same(length * n, column.extent):
            return None
        return cls(row, progress.variable("line", as_index(n)), n, length)

    def index(self, number: Index, within: Index, definition: Reduction) -> tuple[Index, ...]:
        """Return the index of an element of a line in the domain of the reduction."""
        shape = [variable.extent for variable in definition.domain]
        flat = as_index(self.row) * self.n + number
        return reshape((flat, within), (self.row.extent * self.n, self.length), shape)

    def place(self, tensor: Tensor) -> tuple[Index, ...]:
        """Return the index of a line's value in a tensor with one element per line."""
        return reshape((self._flat(),), (self.row.extent * self.n,), tensor.shape)

    def is_own(self, access: Access) -> bool:
        """Return True for a read of the value of a line itself."""
        return ravel(access.index, access.tensor.shape) == self._flat()

    def _flat(self) -> Index:
        return as_index(self.row) * self.n + as_index(self.number)
