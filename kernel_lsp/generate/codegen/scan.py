"""Running sums and products along rows: a thread per row where rows lie side by side, else a block per row."""

from __future__ import annotations

from dataclasses import dataclass

from kernel_lsp.generate.codegen.accumulator import combined, identity
from kernel_lsp.generate.codegen.kernel import RenderedKernel, blocks_of, rendered
from kernel_lsp.generate.codegen.kernel_writer import KernelWriter
from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE, Text, stored
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import ScanGroup

LOCAL_NAMES = ("row", "col", "start", "value", "of_block")


@dataclass(frozen=True)
class ScanSchedule:
    """`threads` per block. With `is_serial` each thread walks a row alone."""

    threads: int
    is_serial: bool


def render_scan(kernel: KernelWriter, group: ScanGroup, schedule: ScanSchedule, comment: str) -> RenderedKernel:
    """The kernel of a scan."""
    if schedule.is_serial:
        return _render_serial(kernel, group, schedule, comment)
    return _render_block(kernel, group, schedule, comment)


# --- below: the two forms


def _render_serial(kernel: KernelWriter, group: ScanGroup, schedule: ScanSchedule, comment: str) -> RenderedKernel:
    scope = Scope(kernel)
    row = _row_name(scope, group, f"blockIdx.x * {schedule.threads} + threadIdx.x")
    scope.line(f"if ({row} >= {kernel.size('n_rows', group.row.extent)}) return;")
    scope.hoist([group.scalar], [group.column])
    total = _declare_total(scope, group)
    n_columns = kernel.size("n_columns", group.column.extent)
    inner = scope.open(f"for (int col = 0; col < {n_columns}; ++col)")
    inner.define(group.column, "col")
    inner.line(combined(group.kind, total, inner.value(group.scalar), group.scalar.dtype, kernel))
    _write(inner, group, total)
    inner.close()
    return rendered(kernel, comment, scope.lines, (blocks_of(group.row.extent, schedule.threads),), (schedule.threads,))


def _render_block(kernel: KernelWriter, group: ScanGroup, schedule: ScanSchedule, comment: str) -> RenderedKernel:
    scope = Scope(kernel)
    threads = schedule.threads
    if group.row.extent.constant == 1:
        scope.define(group.row, "0")
    else:
        _row_name(scope, group, "blockIdx.x")
    scope.hoist([group.scalar], [group.column])
    total = _declare_total(scope, group)
    type_ = COMPUTE_TYPE[group.scalar.dtype]
    n_columns = kernel.size("n_columns", group.column.extent)
    outer = scope.open(f"for (int start = 0; start < {n_columns}; start += {threads})")
    outer.line("const int col = start + threadIdx.x;")
    outer.define(group.column, "col")
    outer.line(f"{type_} value = {identity(group.kind, group.scalar.dtype).text};")
    guard = outer.open(f"if (col < {n_columns})")
    guard.line(f"value = {guard.value(group.scalar).text};")
    guard.close()
    helper = kernel.use(f"block_scan_{group.kind}", group.scalar.dtype)
    outer.line(f"{type_} of_block;")
    outer.line(f"value = {helper}<{threads}>(value, of_block);")
    store = outer.open(f"if (col < {n_columns})")
    symbol = "+" if group.kind == "sum" else "*"
    _write(store, group, f"{total} {symbol} value")
    store.close()
    outer.line(combined(group.kind, total, Text("of_block", 20), group.scalar.dtype, kernel))
    outer.close()
    return rendered(kernel, comment, scope.lines, (blocks_of(group.row.extent, 1),), (threads,))


def _row_name(scope: Scope, group: ScanGroup, text: str) -> str:
    row = "row"
    prefix = "(long long)" if scope.kernel.index_type == "long long" else ""
    scope.line(f"const {scope.kernel.index_type} {row} = {prefix}{text};")
    scope.define(group.row, row)
    return row


def _declare_total(scope: Scope, group: ScanGroup) -> str:
    dtype = group.scalar.dtype
    return scope.declare("running", COMPUTE_TYPE[dtype], identity(group.kind, dtype).text, is_const=False)


def _write(scope: Scope, group: ScanGroup, value: str) -> None:
    target = scope.kernel.target(group.tensor)
    offset = scope.offset(group.tensor, group.index).text
    text = stored(Text(value, 12), group.scalar.dtype, group.tensor.dtype)
    scope.line(f"{target}[{offset}] = {text};")
