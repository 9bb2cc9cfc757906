"""One thread per element, or per pack of neighbouring elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.coordinates import name_coordinates
from kernel_lsp.generate.codegen.kernel import RenderedKernel, blocks_of, divisible, rendered
from kernel_lsp.generate.codegen.packs import Packing, find_packed
from kernel_lsp.generate.codegen.writer import KernelWriter, Scope, stored
from kernel_lsp.generate.fuse import ElementwiseGroup, Store
from kernel_lsp.generate.index import Variable, as_index, divide_exactly
from kernel_lsp.generate.scalar import Scalar

LOCAL_NAMES = ("i", "pack", "v")


@dataclass(frozen=True)
class ElementwiseSchedule:
    """`threads` per block, `vector` elements per thread."""

    threads: int
    vector: int


def render_elementwise(
    kernel: KernelWriter, group: ElementwiseGroup, schedule: ElementwiseSchedule, comment: str
) -> RenderedKernel:
    """The kernel of an elementwise group."""
    if schedule.vector > 1:
        return _render_packed(kernel, group, schedule, comment)
    scope = Scope(kernel)
    n_elements = kernel.size("n", group.position.extent)
    scope.define(group.position, "i")
    name_coordinates(kernel, as_index(group.position), group.shape)
    scope.line(f"const {kernel.index_type} i = {_thread_index(kernel, schedule.threads)};")
    scope.line(f"if (i >= {n_elements}) return;")
    write_stores(scope, group.stores)
    grid = (blocks_of(group.position.extent, schedule.threads),)
    return rendered(kernel, comment, scope.lines, grid, (schedule.threads,))


def write_stores(scope: Scope, stores: Sequence[Store]) -> None:
    """Compute every scalar, then write each to its place."""
    texts = scope.values([store.scalar for store in stores])
    for store, text in zip(stores, texts, strict=True):
        target = scope.kernel.target(store.tensor)
        offset = scope.offset(store.tensor, store.index).text
        scope.line(f"{target}[{offset}] = {stored(text, store.scalar.dtype, store.tensor.dtype)};")


def _thread_index(kernel: KernelWriter, threads: int) -> str:
    text = f"blockIdx.x * {threads} + threadIdx.x"
    return f"(long long){text}" if kernel.index_type == "long long" else text


# --- below: packs


def _render_packed(
    kernel: KernelWriter, group: ElementwiseGroup, schedule: ElementwiseSchedule, comment: str
) -> RenderedKernel:
    vector = schedule.vector
    total = group.position.extent
    n_packs = divide_exactly(total, as_index(vector))
    pack_extent = n_packs if n_packs is not None else total
    packing = Packing(Variable("pack", 1 << 20, pack_extent), Variable("v", (1 << 20) + 1, as_index(vector)), vector)
    stores = packing.substituted(group.stores, group.position)
    scope = Scope(kernel)
    size = kernel.size("n", total)
    limit = str(int(size) // vector) if size.isdigit() else f"{size} / {vector}"
    scope.define(packing.pack, "pack")
    name_coordinates(kernel, packing.flat, group.shape)
    scope.line(f"const {kernel.index_type} pack = {_thread_index(kernel, schedule.threads)};")
    scope.line(f"if (pack >= {limit}) return;")
    write_packed(scope, packing, stores)
    grid = (
        blocks_of(pack_extent, schedule.threads)
        if n_packs is not None
        else blocks_of(total, schedule.threads * vector),
    )
    return rendered(kernel, comment, scope.lines, grid, (schedule.threads,), divisible(total, vector))


def write_packed(scope: Scope, packing: Packing, stores: Sequence[Store]) -> None:
    """Load packs, compute lane by lane, store packs."""
    scalars: list[Scalar] = [store.scalar for store in stores]
    scope.hoist(scalars, [packing.lane])
    packed = find_packed(scalars, packing)
    names = {access.digest: packing.load(scope, access) for access in packed}
    targets = [packing.declare_result(scope, store) for store in stores]
    scope.line("#pragma unroll")
    inner = scope.open(f"for (int v = 0; v < {packing.vector}; ++v)")
    inner.define(packing.lane, "v")
    for access in packed:
        inner.bind(access, packing.item(names[access.digest], access.dtype))
    texts = inner.values(scalars)
    for store, target, text in zip(stores, targets, texts, strict=True):
        value = stored(text, store.scalar.dtype, store.tensor.dtype)
        if target is None:
            offset = inner.offset(store.tensor, store.index).text
            inner.line(f"{inner.kernel.target(store.tensor)}[{offset}] = {value};")
        else:
            inner.line(f"{target}.item[v] = {value};")
    inner.close()
    for store, target in zip(stores, targets, strict=True):
        if target is not None:
            packing.store(scope, store, target)


_ = DType
