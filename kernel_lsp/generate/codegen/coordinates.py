"""Name the coordinates of an element after the user's dims, where those have short names."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.generate.codegen.kernel_writer import KernelWriter
from kernel_lsp.generate.ir.index import Index, Quotient, Remainder, Symbol
from kernel_lsp.generate.ir.row_major import unravel_safe

BY_RANK = {2: ("row", "col"), 3: ("b", "t", "d"), 4: ("n", "c", "h", "w"), 5: ("n", "c", "d", "h", "w")}
MAX_DIM_NAME = 3


def name_coordinates(kernel: KernelWriter, flat: Index, shape: Sequence[Index], names: Sequence[str] = ()) -> None:
    """Name the quotients and remainders that are the index at flat position `flat` of `shape`."""
    if sum(size.constant != 1 for size in shape) < 2:
        return
    for axis, position in enumerate(unravel_safe(flat, shape)):
        if len(position.terms) == 1 and position.terms[0][1] == 1 and len(position.terms[0][0]) == 1:
            atom = position.terms[0][0][0]
            if isinstance(atom, Quotient | Remainder) and position.digest not in kernel.coordinates:
                kernel.coordinates[position.digest] = names[axis] if names else _coordinate_name(shape, axis)


def _coordinate_name(shape: Sequence[Index], axis: int) -> str:
    by_rank = BY_RANK.get(len(shape))
    size = shape[axis]
    if len(size.terms) == 1 and size.terms[0][1] == 1 and len(size.terms[0][0]) == 1:
        atom = size.terms[0][0][0]
        if isinstance(atom, Symbol) and len(atom.name) <= MAX_DIM_NAME and atom.name.lower() != atom.name:
            return atom.name.lower()
    return by_rank[axis] if by_rank else f"i{axis}"
