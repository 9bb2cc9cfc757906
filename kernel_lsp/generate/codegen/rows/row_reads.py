"""Tensors of a row group by how often it reads an element: once, or for every row."""

from __future__ import annotations

from kernel_lsp.generate.codegen.rows.row_schedule import RowSchedule
from kernel_lsp.generate.fusion.groups import RowGroup
from kernel_lsp.generate.ir.scalar import Access, accesses
from kernel_lsp.generate.ir.tensor import Tensor


def read_by_all_rows(group: RowGroup) -> frozenset[Tensor]:
    """Return the tensors of which every row reads the same elements."""
    if group.row.extent.constant == 1:
        return frozenset()
    found = _reads_of_columns(group)
    varying = {access.tensor for access in found if group.row in access.variables}
    return frozenset(access.tensor for access in found) - varying


def read_once(group: RowGroup, schedule: RowSchedule, n_pairs: int) -> frozenset[Tensor]:
    """Return the tensors that differ from row to row, if the kernel reads them once. One pass computes both reductions
    of a pair."""
    n_passes = len({entry.level for entry in group.reductions} | {level for level, _ in group.stores})
    if n_passes - n_pairs > 1 and not schedule.cached:
        return frozenset()
    is_one = group.row.extent.constant == 1
    return frozenset(read.tensor for read in _reads_of_columns(group) if group.row in read.variables or is_one)


def _reads_of_columns(group: RowGroup) -> list[Access]:
    """Return the reads of elements that differ from column to column."""
    scalars = [*(entry.scalar for entry in group.reductions), *(store.scalar for _, store in group.stores)]
    return [access for access in accesses(*scalars) if group.column in access.variables]
