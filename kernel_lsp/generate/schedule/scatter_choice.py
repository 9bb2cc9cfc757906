"""Choose the threads of a kernel that gathers the updates of rows."""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES
from kernel_lsp.generate.codegen.elements.row_scatter import RowScatterSchedule
from kernel_lsp.generate.fusion.groups import RowScatterGroup
from kernel_lsp.generate.ir.index import Index
from kernel_lsp.generate.ir.scalar_walk import accesses
from kernel_lsp.generate.schedule.knobs import Choices

MAX_THREADS = 256


def choose_row_scatter(
    choices: Choices, kernel: str, group: RowScatterGroup, captured: Callable[[Index], int]
) -> RowScatterSchedule:
    """Read the knobs of `kernel`: packs of 16 bytes, and as many threads as a row has packs, by default."""
    n_columns = captured(group.column.extent)
    read = [a.dtype.itemsize for a in accesses(group.value) if group.column in a.variables]
    widest = max([*read, *(store.tensor.dtype.itemsize for store in group.stores)])
    widths = [width for width in (1, 2, 4, 8) if n_columns % width == 0 and width * widest <= MAX_PACK_BYTES]
    vector = choices.pick_int(f"{kernel}.vector", widths, max(widths), "neighbouring elements per load")
    threads = 32
    while threads < MAX_THREADS and threads * vector < n_columns:
        threads *= 2
    threads = choices.pick_int(f"{kernel}.threads", (32, 64, 128, 256, 512), threads, "threads per block")
    return RowScatterSchedule(threads, vector)
