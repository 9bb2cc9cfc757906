"""Scatter kernels: one thread per update, atomic where several may hit one element; and sums of whole rows, where one
kernel links the updates of each row and another walks along the links.

Of the sums of rows no element is added to atomically, and a row is written once, zeros included. The updates of a row
are in several chains, so that a row with many updates waits for several of them at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Constant
from kernel_lsp.core.plan import Fill
from kernel_lsp.generate.codegen.elements.elementwise import grid_limits, write_packed
from kernel_lsp.generate.codegen.elements.packs import Packing, read_packs
from kernel_lsp.generate.codegen.kernel import (
    KernelWriter,
    RenderedKernel,
    blocks_of,
    divisible,
    name_coordinates,
    rendered,
)
from kernel_lsp.generate.codegen.operators import ADD, COMPUTE_TYPE, MULTIPLY, UNARY, Text, stored
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.fusion.groups import RowScatterGroup, ScatterGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import as_index, divide_exactly
from kernel_lsp.generate.ir.scalar import Access, Argument, Scalar, transformed
from kernel_lsp.generate.ir.scalar import Constant as NumberConstant
from kernel_lsp.generate.ir.sizes import ravel, to_expression

LOCAL_NAMES = ("i", "update", "row", "pack", "col", "v", "c", "at", "sum_of_row")
CHAINS = 4
LINKING_THREADS = 256


@dataclass(frozen=True)
class RowScatterSchedule:
    """`threads` of a block share part of a row, in packs of `vector` elements."""

    threads: int
    vector: int


def render_row_scatter(
    link: KernelWriter, gather: KernelWriter, group: RowScatterGroup, schedule: RowScatterSchedule, comment: str
) -> tuple[RenderedKernel, RenderedKernel]:
    """Render the kernel that links the updates, and the one that adds them up."""
    rows, updates = to_expression(group.row.extent), to_expression(group.update.extent)
    last = link.add_scratch("last", DType.I32, (rows, Constant(CHAINS)))
    before = link.add_scratch("before", DType.I32, (updates,))
    link.fills.append(Fill(link.scratch[last].name, Constant(-1)))
    for name in (last, before):
        gather.scratch[name] = link.scratch[name]
    return _render_link(link, group, last, before), _render_gather(gather, group, schedule, comment, last, before)


def _render_link(kernel: KernelWriter, group: RowScatterGroup, last: str, before: str) -> RenderedKernel:
    scope = Scope(kernel)
    scope.line(f"const int update = blockIdx.x * {LINKING_THREADS} + threadIdx.x;")
    scope.line(f"if (update >= {kernel.size('n_updates', group.update.extent)}) return;")
    scope.define(group.update, "update")
    place = scope.index(group.place).within(MULTIPLY)
    chain = f"{place} * {CHAINS} + update % {CHAINS}"
    scope.line(f"{before}[update] = atomicExch({last} + {chain}, update);")
    comment = f"One thread per update puts it before the others of one of its row's {CHAINS} chains."
    grid = (blocks_of(group.update.extent, LINKING_THREADS),)
    return rendered(kernel, comment, scope.lines, grid, (LINKING_THREADS,))


def _render_gather(
    kernel: KernelWriter, group: RowScatterGroup, schedule: RowScatterSchedule, comment: str, last: str, before: str
) -> RenderedKernel:
    scope, packing = Scope(kernel), _packing(group, schedule.vector)
    scope.line(f"const {kernel.index_type} row = blockIdx.x;")
    scope.define(group.row, "row")
    size = kernel.size("n_columns", group.column.extent)
    limit = str(int(size) // schedule.vector) if size.isdigit() else f"{size} / {schedule.vector}"
    name = packing.pack.name
    scope.line(f"const int {name} = blockIdx.y * {schedule.threads} + threadIdx.x;")
    scope.line(f"if ({name} >= {limit if schedule.vector > 1 else size}) return;")
    scope.define(packing.pack, name)
    name_coordinates(kernel, packing.flat, [group.column.extent])
    total, along = "sum_of_row", {group.column: packing.flat}
    scope.line(f"{COMPUTE_TYPE[group.tensor.dtype]} {total}[{schedule.vector}] = {{}};")
    if not (isinstance(group.base, NumberConstant) and group.base.value == 0):
        read_packs(scope, total, packing, group.base.substitute(along))
    _walk(scope, group, packing, last, before)
    lane = "v" if schedule.vector > 1 else "0"
    found = Argument(total, group.tensor.dtype, frozenset((packing.lane,)))
    scope.bind(found, Text(f"{total}[{lane}]", UNARY))
    stores = [replace(store, scalar=_with_sum(store.scalar, group, found)) for store in group.stores]
    write_packed(scope, packing, packing.substituted(stores, group.column))
    grid = (to_expression(group.row.extent), blocks_of(group.column.extent, schedule.threads * schedule.vector))
    conditions = (*divisible(group.column.extent, schedule.vector), *grid_limits(grid))
    kernel_text = rendered(kernel, comment, scope.lines, grid, (schedule.threads,), conditions)
    return replace(kernel_text, scratch=())


def _walk(scope: Scope, group: RowScatterGroup, packing: Packing, last: str, before: str) -> None:
    """Add up the updates along the row's chains, one of each chain at a time."""
    scope.line(f"int at[{CHAINS}];")
    scope.line("#pragma unroll")
    scope.line(f"for (int c = 0; c < {CHAINS}; ++c) at[c] = {last}[row * {CHAINS} + c];")
    with scope.open(
        f"while ({scope.kernel.use('any_left')}(at))",
        "#pragma unroll",
        f"for (int c = 0; c < {CHAINS}; ++c)",
        "if (at[c] >= 0)",
    ) as update:
        update.line("const int update = at[c];")
        update.line(f"at[c] = {before}[update];")
        update.define(group.update, "update")
        read_packs(update, "sum_of_row", packing, group.value.substitute({group.column: packing.flat}), "+=")


def _packing(group: RowScatterGroup, vector: int) -> Packing:
    extent = group.column.extent
    n_packs = divide_exactly(extent, as_index(vector))
    return Packing(
        Variable("pack" if vector > 1 else "col", 1 << 20, n_packs if n_packs is not None else extent),
        Variable("v", (1 << 20) + 1, as_index(vector)),
        vector,
        multiple=extent,
    )


def _with_sum(scalar: Scalar, group: RowScatterGroup, found: Argument) -> Scalar:
    return transformed(scalar, lambda each: found if _is_sum(each, group) else each)


def _is_sum(scalar: Scalar, group: RowScatterGroup) -> bool:
    return isinstance(scalar, Access) and scalar.tensor is group.tensor


__all__ = ["RowScatterSchedule", "render_row_scatter"]


def render_scatter(kernel: KernelWriter, group: ScatterGroup, threads: int, comment: str) -> RenderedKernel:
    """Render the kernel of the updates. Its target was prepared before."""
    scope = Scope(kernel)
    scope.define(group.position, "i")
    name_coordinates(kernel, as_index(group.position), group.shape)
    prefix = "(long long)" if kernel.index_type == "long long" else ""
    scope.line(f"const {kernel.index_type} i = {prefix}blockIdx.x * {threads} + threadIdx.x;")
    scope.line(f"if (i >= {kernel.size('n', group.position.extent)}) return;")
    flat = ravel(group.index, group.tensor.shape)
    target = kernel.target(group.tensor)
    text = scope.value(group.scalar)
    offset = scope.index(flat).within(ADD)
    dtype = group.tensor.dtype
    if group.kind == "set":
        scope.line(f"{target}[{offset}] = {stored(text, group.scalar.dtype, dtype)};")
    elif dtype == DType.I64:
        pointer = f"reinterpret_cast<unsigned long long*>({target} + {offset})"
        scope.line(f"atomicAdd({pointer}, static_cast<unsigned long long>({text.text}));")
    else:
        scope.line(f"atomicAdd({target} + {offset}, {text.text});")
    return rendered(kernel, comment, scope.lines, (blocks_of(group.position.extent, threads),), (threads,))


ATOMIC_TYPES = (DType.F32, DType.F64, DType.I32, DType.I64)
"""Element types that can be added to atomically."""
