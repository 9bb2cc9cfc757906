"""Reads of a row group: which tensors it reads once or for every row, and those to issue before any computation.

A kernel whose first reads come first waits for memory once instead of once per stage.
"""

from __future__ import annotations

from dataclasses import replace

from kernel_lsp.generate.codegen.elements.packs import prefetch, reads_ahead
from kernel_lsp.generate.codegen.operators import MULTIPLY, Text
from kernel_lsp.generate.codegen.rows.row_schedule import RowSchedule
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowGroup, scalars_of_group
from kernel_lsp.generate.fusion.row_patterns import n_passes
from kernel_lsp.generate.ir.scalar import Access, accesses
from kernel_lsp.generate.ir.tensor import Buffer, Tensor

MAX_ROW_ELEMENTS = 1 << 20
"""Maximum elements of all rows whose weights are prefetched: more take several waves of blocks, and all but the first
find their weights in the L2 cache."""
LINE_BYTES = 128
MAX_WEIGHTS = 1 << 12
"""Maximum elements of a tensor that each block prefetches, a line for each of 128 threads in f32."""


def read_by_all_rows(group: RowGroup) -> frozenset[Tensor]:
    """Return the tensors of which every row reads the same elements."""
    if group.row.extent.constant == 1:
        return frozenset()
    found = _reads_of_columns(group)
    varying = {access.tensor for access in found if group.row in access.variables}
    return frozenset(access.tensor for access in found) - varying


def read_once(group: RowGroup, schedule: RowSchedule) -> frozenset[Tensor]:
    """Return the tensors that differ from row to row, if the kernel reads them once."""
    shared = schedule.blocks > 1
    if not schedule.cached and n_passes(group, online=schedule.online or shared, shared=shared) > 1:
        return frozenset()
    is_one = group.row.extent.constant == 1
    return frozenset(read.tensor for read in _reads_of_columns(group) if group.row in read.variables or is_one)


def read_late(group: RowGroup, schedule: RowSchedule) -> frozenset[Tensor]:
    """Return the tensors whose lines the L2 cache should evict last: what all rows of a grid read, or the rows that a
    block keeps in registers."""
    if schedule.evicts_late and schedule.cached and schedule.blocks == 1:
        return read_once(group, schedule)
    return read_by_all_rows(group) if schedule.streaming and schedule.is_grid else frozenset()


def reads_bytes(group: RowGroup) -> bool:
    """Return True if elements along a row are bytes, as a mask's: a thread unpacks those of one load before it issues
    the next, and waits for each, where a bounds check is around them. A masked softmax of (8, 12, 512, 512) took 55.2
    us on an H200 with checks, 49.6 us without."""
    return any(access.dtype.itemsize == 1 for access in _reads_of_columns(group))


def _reads_of_columns(group: RowGroup) -> list[Access]:
    """Return the reads of elements that differ from column to column."""
    scalars = [*(entry.scalar for entry in group.reductions), *(store.scalar for _, store in group.stores)]
    return [access for access in accesses(*scalars) if group.column in access.variables]


def first_reads(scope: Scope, group: RowGroup) -> tuple[list[Access], list[Access]]:
    """Return the reads of tensors in memory that nothing precedes: those that a row makes once, and those along it."""
    found = reads_ahead(scalars_of_group(replace(group, wholes=())), (group.row, group.column))
    own = {entry.tensor for entry in group.reductions}
    ordered = [access for access in found if access.tensor in scope.kernel.tensor_names and access.tensor not in own]
    along = [access for access in ordered if group.column in access.variables]
    return [access for access in ordered if access not in along], along


def prefetch_row(scope: Scope, group: RowGroup, lane: str) -> None:
    """Prefetch what a row reads once, and each thread's first element of it."""
    once, along = first_reads(scope, group)
    prefetch(scope, once)
    if along and group.is_column_contiguous:
        with _open_first(scope, group, lane) as inner:
            prefetch(inner, along)


def prefetch_weights(scope: Scope, group: RowGroup, schedule: RowSchedule) -> None:
    """Prefetch small inputs that no first pass reads, such as weights, for few rows of constant length: a pass behind a
    reduction would make a trip to memory of its own for them."""
    n_elements = (group.row.extent * group.column.extent).constant
    if schedule.blocks > 1 or n_elements is None or n_elements > MAX_ROW_ELEMENTS:
        return
    scalars = [(entry.level, entry.scalar) for entry in group.reductions]
    scalars += [(level, store.scalar) for level, store in group.stores]
    reads = [(level, access) for level, scalar in scalars for access in accesses(scalar)]
    late = {access.tensor for level, access in reads if level > 0 and group.column in access.variables}
    for tensor in sorted(late - {access.tensor for level, access in reads if level == 0}, key=lambda each: each.serial):
        n_elements = tensor.n_elements.constant
        if not isinstance(tensor.definition, Buffer) or n_elements is None or n_elements > MAX_WEIGHTS:
            continue
        per_line = LINE_BYTES // tensor.dtype.itemsize
        n_lines, pointer, name = -(-n_elements // per_line), scope.kernel.pointer(tensor), scope.kernel.use("prefetch")
        if n_lines <= schedule.threads * schedule.rows:
            scope.line(f"if (threadIdx.x < {n_lines}) {name}({pointer} + threadIdx.x * {per_line});")


def load_row(scope: Scope, group: RowGroup, lane: str) -> dict[bytes, str]:
    """Load what a row reads once and each thread's first element of it. Return the names of the latter by the digest of
    the read."""
    once, along = first_reads(scope, group)
    for access in once:
        _load_once(scope, access)
    if not along:
        return {}
    names = {access.digest: _declare_first(scope, access) for access in along}
    with _open_first(scope, group, lane) as inner:
        for access in along:
            offset = inner.offset(access.tensor, access.index).text
            inner.line(f"{names[access.digest]} = {scope.kernel.pointer(access.tensor)}[{offset}];")
    return names


def _load_once(scope: Scope, access: Access) -> None:
    """Declare a value that does not depend on the column. A mask is dropped: only single elements have one here."""
    plain = Access(access.tensor, access.index)
    scope.hoist([plain], ())
    known = scope.lookup(plain.digest)
    assert known is not None
    scope.bind(access, known)


def _declare_first(scope: Scope, access: Access) -> str:
    name = scope.names.take(f"{scope.kernel.local_name(access.tensor)}_first")
    scope.line(f"{access.dtype.cuda_type} {name};")
    return name


def _open_first(scope: Scope, group: RowGroup, lane: str) -> Scope:
    """Open the block of the threads that have an element of the row, at their first column."""
    inner = scope.open(f"if ({lane} < {scope.kernel.size('n_columns', group.column.extent)})")
    inner.define(group.column, Text(lane, MULTIPLY))
    return inner
