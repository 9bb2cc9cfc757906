"""The runs of outer and reduced dims of a reduction, in memory order."""

from __future__ import annotations

from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.tensor import Reduction


def pattern_of(definition: Reduction) -> tuple[tuple[str, Index], ...]:
    """Return the runs of outer (``o``) and reduced (``r``) dims of a reduction with their extents, in memory order.
    Dims of size 1 are left out."""
    runs: list[tuple[str, Index]] = []
    for variable in definition.domain:
        kind = "r" if variable in definition.reduced else "o"
        if variable.extent.constant == 1:
            continue
        if runs and runs[-1][0] == kind:
            runs[-1] = (kind, runs[-1][1] * variable.extent)
        else:
            runs.append((kind, variable.extent))
    return tuple(runs)
