"""Which template renders a group, with which knobs and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.expression import Constant
from kernel_lsp.core.plan import Fill, LibraryArgument, LibraryStep
from kernel_lsp.errors import TargetError
from kernel_lsp.generate.codegen import elementwise, matmul, rows, scan, scatter, tensor_core
from kernel_lsp.generate.codegen.elementwise import ElementwiseSchedule, render_elementwise
from kernel_lsp.generate.codegen.kernel import RenderedKernel
from kernel_lsp.generate.codegen.kernel_writer import KernelWriter
from kernel_lsp.generate.codegen.matmul import TileSchedule, is_valid_tile_schedule, render_contraction
from kernel_lsp.generate.codegen.packs import MAX_PACK_BYTES
from kernel_lsp.generate.codegen.row_schedule import COLUMN_WIDTH, WARP, RowSchedule, is_valid_row_schedule
from kernel_lsp.generate.codegen.rows import render_rows
from kernel_lsp.generate.codegen.scan import ScanSchedule, render_scan
from kernel_lsp.generate.codegen.scatter import ATOMIC_TYPES, render_scatter
from kernel_lsp.generate.codegen.tensor_core import TensorCoreRenderer
from kernel_lsp.generate.codegen.tensor_core_warpgroups import WarpgroupRenderer
from kernel_lsp.generate.fusion.groups import (
    ContractionGroup,
    ElementwiseGroup,
    Group,
    LibraryGroup,
    RowGroup,
    ScanGroup,
    ScatterGroup,
)
from kernel_lsp.generate.index import Index, divides
from kernel_lsp.generate.knobs import Choices
from kernel_lsp.generate.scalar import Access, Loop
from kernel_lsp.generate.scalar_walk import accesses, nodes
from kernel_lsp.generate.tensor import Tensor
from kernel_lsp.generate.tensor_core_knobs import HOPPER, default_schedule, pick_schedule, tensor_core_comment

MAX_SERIAL_SUM = 4096
"""Elements that one thread adds to one f32: the error grows with their number, and PyTorch's own sums are pairwise."""


@dataclass(frozen=True)
class RenderedGroup:
    """The kernels of a group, and the steps that go before them."""

    kernels: tuple[RenderedKernel, ...]
    fills: tuple[Fill, ...] = ()
    library: tuple[LibraryStep, ...] = ()
    is_valid: bool = True


@dataclass(frozen=True)
class GroupRenderer:
    """Renders groups of one operation. `captured` evaluates a size as it was captured."""

    choices: Choices
    captured: Callable[[Index], int]
    n_multiprocessors: int
    new_kernel: Callable[[str, Sequence[str]], KernelWriter]
    tensor_names: Mapping[Tensor, str]
    capability: tuple[int, int] = HOPPER

    def render(self, group: Group, name: str) -> RenderedGroup:
        """Pick the knobs of the group and render it."""
        match group:
            case ElementwiseGroup():
                return self._elementwise(group, name)
            case RowGroup():
                return self._rows(group, name)
            case ContractionGroup():
                return self._contraction(group, name) if group.operand is None else self._on_tensor_cores(group, name)
            case ScanGroup():
                return self._scan(group, name)
            case ScatterGroup():
                return self._scatter(group, name)
            case LibraryGroup():
                return RenderedGroup((), library=(self._library_step(group),))

    # --- contractions, scans, scatters

    def _contraction(self, group: ContractionGroup, name: str) -> RenderedGroup:
        kernel = self.new_kernel(name, matmul.LOCAL_NAMES)
        pick = self.choices.pick_int
        default = self._default_tiles(group)
        schedule = TileSchedule(
            pick(f"{kernel.name}.tile_m", (16, 32, 64, 128), default.tile_m, "rows of a block's tile"),
            pick(f"{kernel.name}.tile_n", (16, 32, 64, 128), default.tile_n, "columns of a block's tile"),
            pick(f"{kernel.name}.tile_k", (8, 16, 32), default.tile_k, "products per step through shared memory"),
            pick(f"{kernel.name}.thread_m", (1, 2, 4, 8), default.thread_m, "rows per thread"),
            pick(f"{kernel.name}.thread_n", (1, 2, 4, 8), default.thread_n, "columns per thread"),
        )
        is_valid = is_valid_tile_schedule(schedule, group.tensor.dtype)
        used = schedule if is_valid else default
        comment = (
            f"Each block computes a {used.tile_m} x {used.tile_n} tile of {group.tensor.name} in shared memory, "
            f"{used.tile_k} products at a time; each thread keeps {used.thread_m} x {used.thread_n} sums in registers"
            f" and writes {self._written(group)}."
        )
        return RenderedGroup((render_contraction(kernel, group, used, comment),), is_valid=is_valid)

    def _on_tensor_cores(self, group: ContractionGroup, name: str) -> RenderedGroup:
        kernel = self.new_kernel(name, tensor_core.LOCAL_NAMES)
        default = default_schedule(group, self.captured, self.n_multiprocessors, self.capability)
        schedule = pick_schedule(self.choices, kernel.name, group, default, capability=self.capability)
        template = WarpgroupRenderer if schedule.uses_warpgroups else TensorCoreRenderer
        renderer = template(kernel, group, schedule, self.captured)
        is_valid = renderer.is_valid
        if not is_valid:
            renderer = TensorCoreRenderer(kernel, group, default, self.captured)
        comment = tensor_core_comment(group, renderer.schedule, self._written(group))
        return RenderedGroup((renderer.render(comment),), is_valid=is_valid)

    def _written(self, group: ContractionGroup) -> str:
        """What becomes of the sums."""
        names = [self.tensor_names[store.tensor] for store in group.stores]
        is_plain = len(group.stores) == 1 and isinstance(group.stores[0].scalar, Access)
        return "them" if is_plain else f"{' and '.join(names)} from them"

    def _default_tiles(self, group: ContractionGroup) -> TileSchedule:
        n_rows, n_columns = self.captured(group.m.extent), self.captured(group.n.extent)
        n_batch = max(1, self.captured(group.batch.extent))
        for tile_m, tile_n, thread in ((128, 128, 8), (64, 64, 4), (32, 32, 2)):
            n_blocks = -(-n_rows // tile_m) * -(-n_columns // tile_n) * n_batch
            if n_blocks >= self.n_multiprocessors and n_rows >= tile_m and n_columns >= tile_n:
                return TileSchedule(tile_m, tile_n, 16 if tile_m == 128 else 32, thread, thread)
        if n_columns <= 16 < n_rows:
            return TileSchedule(64, 16, 16, 4, 2)
        if n_rows <= 16 < n_columns:
            return TileSchedule(16, 64, 16, 2, 4)
        return TileSchedule(32, 32, 16, 2, 2)

    def _scan(self, group: ScanGroup, name: str) -> RenderedGroup:
        kernel = self.new_kernel(name, scan.LOCAL_NAMES)
        is_serial = not group.is_column_contiguous
        default = 256 if not is_serial else 64
        threads = self.choices.pick_int(f"{kernel.name}.threads", (64, 128, 256, 512), default, "threads per block")
        who = "One thread per row; neighbouring threads walk neighbouring rows" if is_serial else "One block per row"
        comment = f"{who}. Sums are kept in double: an f32 running sum loses a digit every few thousand elements."
        if not group.scalar.dtype.is_floating:
            comment = f"{who}."
        return RenderedGroup((render_scan(kernel, group, ScanSchedule(threads, is_serial), comment),))

    def _scatter(self, group: ScatterGroup, name: str) -> RenderedGroup:
        fills: tuple[Fill, ...] = ()
        kernels: list[RenderedKernel] = []
        if group.kind == "sum" and group.tensor.dtype not in ATOMIC_TYPES:
            raise TargetError(
                f"the generator cannot add {group.tensor.dtype} values at indices: there is no atomic addition for it",
                file=group.tensor.source.file if group.tensor.source else None,
                line=group.tensor.source.line if group.tensor.source else None,
                next_step="convert to f32 or i32 before adding",
            )
        if group.base is None:
            fills = (Fill(self.tensor_names[group.tensor], Constant(0)),)
        else:
            kernels += self._elementwise(group.base, f"{name}_base").kernels
        kernel = self.new_kernel(name, scatter.LOCAL_NAMES)
        threads = self.choices.pick_int(f"{kernel.name}.threads", (64, 128, 256, 512), 256, "threads per block")
        how = "adds it atomically, for several may meet" if group.kind == "sum" else "writes it"
        comment = f"One thread per update finds its place and {how}."
        kernels.append(render_scatter(kernel, group, threads, comment))
        return RenderedGroup(tuple(kernels), fills)

    def _library_step(self, group: LibraryGroup) -> LibraryStep:
        arguments = tuple(self._library_argument(argument) for argument in group.call.arguments)
        return LibraryStep(group.call.function, arguments, (self.tensor_names[group.tensor],))

    def _library_argument(self, argument: Tensor | int | bool | tuple[int, ...] | None) -> LibraryArgument:
        match argument:
            case Tensor():
                return self.tensor_names[argument]
            case tuple():
                return tuple(Constant(value) for value in argument)
            case None:
                return None
        return Constant(argument)

    # --- elementwise

    def _elementwise(self, group: ElementwiseGroup, name: str) -> RenderedGroup:
        kernel = self.new_kernel(name, elementwise.LOCAL_NAMES)
        widths = [1, *(width for width in (2, 4, 8) if self._can_pack(group, width))]
        threads = self.choices.pick_int(f"{kernel.name}.threads", (64, 128, 256, 512, 1024), 256, "threads per block")
        vector = self.choices.pick_int(
            f"{kernel.name}.vector", widths, self._default_width(group, widths), "neighbouring elements per thread"
        )
        what = "One thread per element." if vector == 1 else f"One thread per pack of {vector} neighbouring elements."
        comment = f"{what} {self._reads_and_writes(group)}"
        unroll = self.choices.pick_int(
            f"{kernel.name}.unroll", (1, 2, 4, 8), self._default_unroll(group, vector), "elements or packs per thread"
        )
        schedule = ElementwiseSchedule(threads, vector, unroll)
        return RenderedGroup((render_elementwise(kernel, group, schedule, comment),))

    def _default_unroll(self, group: ElementwiseGroup, vector: int) -> int:
        """Without packs, several independent loads per thread are what keeps the memory busy."""
        has_loop = any(isinstance(node, Loop) for node in nodes(*(store.scalar for store in group.stores)))
        is_large = self.captured(group.position.extent) >= 4 * self.n_multiprocessors * 2048
        return 4 if vector == 1 and is_large and not has_loop else 1

    def _can_pack(self, group: ElementwiseGroup, width: int) -> bool:
        """Whether packs fit the captured sizes, and something is a plain run of memory."""
        scalars = [store.scalar for store in group.stores]
        if any(isinstance(node, Loop) for node in nodes(*scalars)):
            return False
        size = self.captured(group.position.extent)
        narrowest = min(store.tensor.dtype.itemsize for store in group.stores)
        return size > 0 and size % width == 0 and narrowest * width <= MAX_PACK_BYTES

    def _default_width(self, group: ElementwiseGroup, widths: list[int]) -> int:
        """16 bytes per thread where no contract is needed for it and the work is large enough to fill the GPU."""
        widest = max(store.tensor.dtype.itemsize for store in group.stores)
        n_threads = self.n_multiprocessors * 512
        fitting = [
            width
            for width in widths
            if widest * width <= MAX_PACK_BYTES
            and divides(width, group.position.extent)
            and self.captured(group.position.extent) >= n_threads * width
        ]
        return max(fitting, default=1)

    def _reads_and_writes(self, group: ElementwiseGroup) -> str:
        reads = {access.tensor for store in group.stores for access in accesses(store.scalar)}
        names = sorted(self.tensor_names[tensor] for tensor in reads if tensor in self.tensor_names)
        written = ", ".join(self.tensor_names[store.tensor] for store in group.stores)
        return f"Writes {written} from {', '.join(names) or 'constants'} in one pass over memory."

    # --- rows

    def _rows(self, group: RowGroup, name: str) -> RenderedGroup:
        kernel = self.new_kernel(name, rows.LOCAL_NAMES)
        default = self._default_rows(group)
        threads_values = (1, 32, 64, 128, 256, 512, 1024) if group.is_column_contiguous else (1, 2, 4, 8, 16, 32)
        rows_values = (1, 2, 4, 8, 32, 64, 128, 256) if group.is_column_contiguous else (COLUMN_WIDTH,)
        pick = self.choices.pick_int
        schedule = RowSchedule(
            pick(f"{kernel.name}.threads", threads_values, default.threads, "threads that share a row"),
            pick(f"{kernel.name}.rows", rows_values, default.rows, "rows per block"),
            pick(f"{kernel.name}.vector", self._row_widths(group), default.vector, "neighbouring elements per load"),
            bool(
                pick(
                    f"{kernel.name}.cached", self._cache_values(group), int(default.cached), "keep the row in registers"
                )
            ),
        )
        schedule = self._fitted(group, schedule)
        is_valid = is_valid_row_schedule(group, schedule) and self._is_accurate(group, schedule)
        used = schedule if is_valid else default
        return RenderedGroup((render_rows(kernel, group, used, self._row_comment(group, used)),), is_valid=is_valid)

    def _fitted(self, group: RowGroup, schedule: RowSchedule) -> RowSchedule:
        """Without what a choice makes meaningless: rows per block where a block shares one, a cache too small."""
        if group.is_column_contiguous and schedule.threads > WARP:
            schedule = replace(schedule, rows=1)
        fits = is_valid_row_schedule(group, schedule)
        return schedule if fits else replace(schedule, cached=False)

    def _is_accurate(self, group: RowGroup, schedule: RowSchedule) -> bool:
        """Whether no thread adds up so many elements that rounding adds up too."""
        return self.captured(group.column.extent) <= schedule.threads * MAX_SERIAL_SUM

    def _cache_values(self, group: RowGroup) -> tuple[int, ...]:
        return (0, 1) if group.is_column_contiguous and group.column.extent.constant is not None else (0,)

    def _row_widths(self, group: RowGroup) -> list[int]:
        if not group.is_column_contiguous:
            return [1]
        size = self.captured(group.column.extent)
        return [1, *(width for width in (2, 4, 8) if size and size % width == 0 and self._row_fits(group, width))]

    def _row_fits(self, group: RowGroup, width: int) -> bool:
        scalars = [entry.scalar for entry in group.reductions] + [store.scalar for _, store in group.stores]
        dtypes = [access.dtype for access in accesses(*scalars)]
        return any(dtype.itemsize * width <= MAX_PACK_BYTES for dtype in dtypes)

    def _default_rows(self, group: RowGroup) -> RowSchedule:
        n_rows, n_columns = self.captured(group.row.extent), self.captured(group.column.extent)
        if not group.is_column_contiguous:
            lanes = 1
            while lanes < 16 and n_rows * lanes < self.n_multiprocessors * 8192 and n_columns >= 16 * lanes:
                lanes *= 2
            return RowSchedule(lanes, COLUMN_WIDTH, 1, False)
        width = max((w for w in self._row_widths(group) if w <= 4 and divides(w, group.column.extent)), default=1)
        if n_columns <= 16:
            return RowSchedule(1, 64, 1, False)
        if n_columns <= 512:
            width = 1 if n_columns < 128 else width
            return self._with_cache(group, RowSchedule(WARP, 4, width, False))
        is_one_pass = not group.stores and all(entry.level == 0 for entry in group.reductions)
        if is_one_pass and n_columns <= 4096 and n_rows >= 16 * self.n_multiprocessors:
            return RowSchedule(WARP, 4, width, False)
        threads = 64
        while threads < 1024 and threads * width * 4 < n_columns:
            threads *= 2
        return self._with_cache(group, RowSchedule(threads, 1, width, False))

    def _with_cache(self, group: RowGroup, schedule: RowSchedule) -> RowSchedule:
        """Cached when several passes read the row and it fits the registers."""
        levels = {entry.level for entry in group.reductions} | {level for level, _ in group.stores}
        cached = replace(schedule, cached=True)
        return cached if len(levels) > 1 and is_valid_row_schedule(group, cached) else schedule

    def _row_comment(self, group: RowGroup, schedule: RowSchedule) -> str:
        results = ", ".join(dict.fromkeys(entry.tensor.name for entry in group.reductions))
        n_passes = len({entry.level for entry in group.reductions} | {level for level, _ in group.stores})
        if schedule.threads == 1:
            who = "One thread per row"
        elif not group.is_column_contiguous:
            who = (
                f"{schedule.threads} threads per row, neighbouring threads on neighbouring rows so that reads coalesce"
            )
        elif schedule.threads <= WARP:
            who = f"One warp per row, {schedule.rows} rows per block" if schedule.rows > 1 else "One warp per row"
        else:
            who = f"One block of {schedule.threads} threads per row"
        passes = f"{n_passes} passes over the row" if n_passes > 1 else "one pass over the row"
        kept = ", which stays in registers between them" if schedule.cached and n_passes > 1 else ""
        return f"{who}: {results} in {passes}{kept}."
