"""Select the template of each group, with its knobs and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from kernel_lsp.core.plan import LibraryStep
from kernel_lsp.errors import TargetError
from kernel_lsp.generate.codegen.attention import (
    attention,
    attention_gradients,
    warpgroup_attention,
    warpgroup_gradients,
)
from kernel_lsp.generate.codegen.elements import boxes as boxed
from kernel_lsp.generate.codegen.elements import elementwise, scatter
from kernel_lsp.generate.codegen.elements.boxes import boxes_of, default_box, fits_planes, render_boxes, whole_sizes
from kernel_lsp.generate.codegen.elements.elementwise import render_elementwise
from kernel_lsp.generate.codegen.elements.scatter import ATOMIC_TYPES, render_row_scatter, render_scatter
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel, by_size
from kernel_lsp.generate.codegen.products import matmul, register_tiles, split_matmul, thread_rows
from kernel_lsp.generate.codegen.products.matmul import TiledRenderer, TileSchedule, is_valid_tile_schedule
from kernel_lsp.generate.codegen.products.register_tiles import (
    REGISTER_TILE_THREADS,
    RegisterTileRenderer,
    RegisterTileSchedule,
    is_valid_register_tile,
    register_tile_comment,
    sharing_threads,
)
from kernel_lsp.generate.codegen.products.split_matmul import SplitRenderer
from kernel_lsp.generate.codegen.products.split_schedule import SplitSchedule, is_valid_split_schedule
from kernel_lsp.generate.codegen.products.thread_rows import (
    ThreadRowRenderer,
    ThreadRowSchedule,
    is_valid_thread_rows,
    thread_row_comment,
)
from kernel_lsp.generate.codegen.routines import recurrence, selection, sorting, window_gradients
from kernel_lsp.generate.codegen.routines.recurrence import Recurrence, render_recurrence
from kernel_lsp.generate.codegen.routines.selection import SelectionSchedule, render_selection
from kernel_lsp.generate.codegen.routines.sorting import (
    leading_capacity,
    render_leading,
    render_ranked,
    render_sorted,
    sort_capacity,
)
from kernel_lsp.generate.codegen.routines.window_gradients import render_window_gradients
from kernel_lsp.generate.codegen.rows import column_sums, line_rows, rows
from kernel_lsp.generate.codegen.rows.column_sums import ColumnSumRenderer
from kernel_lsp.generate.codegen.rows.line_rows import LineRowRenderer
from kernel_lsp.generate.codegen.rows.online_rows import OnlineRowRenderer
from kernel_lsp.generate.codegen.rows.packed_columns import PackedColumnRenderer
from kernel_lsp.generate.codegen.rows.row_lines import with_lines
from kernel_lsp.generate.codegen.rows.row_schedule import WARP
from kernel_lsp.generate.codegen.rows.shared_rows import SharedRowRenderer
from kernel_lsp.generate.codegen.scans import scan
from kernel_lsp.generate.codegen.scans.scan import render_scan
from kernel_lsp.generate.codegen.scans.scan_schedule import (
    SCAN_THREADS,
    ScanSchedule,
    ScanState,
    default_scan_schedule,
    is_valid_scan_schedule,
    scan_comment,
    scan_widths,
    single_element_schedule,
)
from kernel_lsp.generate.codegen.tensor_cores import tensor_core
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_warpgroups import tensor_core_renderer
from kernel_lsp.generate.fusion.groups import (
    AttentionGradientGroup,
    AttentionGroup,
    ContractionGroup,
    ElementwiseGroup,
    Group,
    LibraryGroup,
    RoutineGroup,
    RowGroup,
    RowScatterGroup,
    ScanGroup,
    ScatterGroup,
    SortedGroup,
    one_floating_type,
)
from kernel_lsp.generate.ir.scalar import Access, Loop, accesses, nodes
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.ir.workload import HOPPER, Workload
from kernel_lsp.generate.library import library_step
from kernel_lsp.generate.schedule.attention_knobs import choose_attention, choose_gradient
from kernel_lsp.generate.schedule.column_choices import (
    choose_column_sums,
    choose_lines,
    column_sum_comment,
    line_comment,
)
from kernel_lsp.generate.schedule.element_choices import ElementChooser, choose_row_scatter, element_comment
from kernel_lsp.generate.schedule.knobs import Choices
from kernel_lsp.generate.schedule.next_rows import for_other_lengths
from kernel_lsp.generate.schedule.row_choices import RowChooser
from kernel_lsp.generate.schedule.row_comments import row_comment
from kernel_lsp.generate.schedule.selection_choice import choose_selection
from kernel_lsp.generate.schedule.split_choice import (
    SHAPES,
    default_split_schedule,
    default_thread_rows,
    shape_name,
    split_comment,
    steps_of,
)
from kernel_lsp.generate.schedule.tensor_core_knobs import (
    default_schedule,
    pick_schedule,
    render_windows,
    tensor_core_comment,
)

SHARED_TILES = {
    128: TileSchedule(32, 32, 16, 4, 2),
    256: TileSchedule(32, 32, 16, 2, 2),
    512: TileSchedule(64, 32, 16, 2, 2),
    1024: TileSchedule(64, 64, 16, 2, 2),
}
"""Tiles of a contraction that shares a launch, by its block size."""
MIN_PACKED_BOXES = 1 << 19
"""Minimum results of boxes for packs that need a contract: smaller ones take as long as their launch."""
MIN_TERMS_OF_LARGE_TILES = 512
"""Minimum terms for tiles of 8 x 8 sums: with fewer than a pack for each of 128 threads, warps would be idle."""
FLAT_THREADS = 256
"""Threads of a block whose boxes need one division, wherever planes begin: in planes a fourth of them is idle. With
constant sizes a convolution of (64, 1, 28, 28) with its pooling took 4.0 us on an H200 in planes, 3.6 so."""


@dataclass(frozen=True)
class RenderedGroup:
    """The kernels of a group, and the steps that precede them."""

    kernels: tuple[RenderedKernel, ...]
    library: tuple[LibraryStep, ...] = ()
    is_valid: bool = True


@dataclass(frozen=True)
class GroupRenderer:
    """Renders groups of one operation. `threads` is the size of every block where groups share a launch."""

    choices: Choices
    workload: Workload
    new_kernel: Callable[[str, Sequence[str]], KernelWriter]
    tensor_names: Mapping[Tensor, str]
    threads: int | None = None

    def render(self, group: Group, name: str) -> RenderedGroup:
        """Pick the knobs of the group and render it."""
        match group:
            case ElementwiseGroup():
                return self._elementwise(group, name)
            case RowGroup():
                return self._rows(group, name)
            case ContractionGroup():
                return self._contraction(group, name) if group.operand is None else self._on_tensor_cores(group, name)
            case AttentionGroup() | AttentionGradientGroup():
                return self._attention(group, name)
            case ScanGroup():
                return self._scan(group, name)
            case ScatterGroup():
                return self._scatter(group, name)
            case RowScatterGroup():
                return self._row_scatter(group, name)
            case LibraryGroup():
                return RenderedGroup((), library=(library_step(group.call, group.tensors, self.tensor_names),))
            case RoutineGroup():
                return self._routine(group, name)
            case SortedGroup():
                return self._sorted(group, name)

    def _contraction(self, group: ContractionGroup, name: str) -> RenderedGroup:
        if group.way == "register_tiles" and self.threads in (None, *REGISTER_TILE_THREADS):
            return self._register_tiles(group, name)
        if group.way == "thread_rows" and self.threads is None and group.k.extent.constant is not None:
            return self._thread_rows(group, name)
        if group.way in ("split_warps", "register_tiles"):  # a shared launch may have too many threads for the latter
            return self._split_contraction(group, name)
        kernel = self.new_kernel(name, matmul.LOCAL_NAMES)
        pick = self.choices.pick_int
        default = self._default_tiles(group) if self.threads is None else SHARED_TILES[self.threads]
        schedule = TileSchedule(
            pick(f"{kernel.name}.tile_m", (16, 32, 64, 128), default.tile_m, "rows of a block's tile"),
            pick(f"{kernel.name}.tile_n", (16, 32, 64, 128), default.tile_n, "columns of a block's tile"),
            pick(f"{kernel.name}.tile_k", (8, 16, 32), default.tile_k, "products per step through shared memory"),
            pick(f"{kernel.name}.thread_m", (1, 2, 4, 8), default.thread_m, "rows per thread"),
            pick(f"{kernel.name}.thread_n", (1, 2, 4, 8), default.thread_n, "columns per thread"),
        )
        is_valid = is_valid_tile_schedule(schedule, group.tensor.dtype)
        is_valid = is_valid and self.threads in (None, schedule.n_threads)
        used = schedule if is_valid else default
        comment = (
            f"Each block computes a {used.tile_m} x {used.tile_n} tile of {group.tensor.name} in shared memory, "
            f"{used.tile_k} products at a time; each thread keeps {used.thread_m} x {used.thread_n} sums in registers"
            f" and writes {self._written(group)}."
        )
        return RenderedGroup((TiledRenderer(kernel, group, used).render(comment),), is_valid=is_valid)

    def _split_contraction(self, group: ContractionGroup, name: str) -> RenderedGroup:
        kernel = self.new_kernel(name, split_matmul.LOCAL_NAMES)
        n_terms = self.workload.size(group.k.extent)
        n_rows, n_columns = map(self.workload.size, (group.m.extent, group.n.extent * group.batch.extent))
        default = default_split_schedule(n_rows, n_columns, n_terms, self.workload, self.threads)
        default = default if self.workload.capability >= HOPPER else replace(default, cluster=1)
        pick = self.choices.pick_int
        shape = self.choices.pick(
            f"{kernel.name}.tile", tuple(SHAPES), shape_name(default), "results per block, thread"
        )
        clusters = (1,) if self.threads or self.workload.capability < HOPPER else (1, 2, 4, 8)
        cluster = pick(f"{kernel.name}.cluster", clusters, default.cluster, "blocks that share the products of a tile")
        threads_values = (self.threads,) if self.threads else (128, 256, 512)
        threads = pick(f"{kernel.name}.threads", threads_values, default.threads, "threads per block")
        step = pick(f"{kernel.name}.step", steps_of(n_terms), default.tile_k, "products staged at a time")
        tile_m, tile_n, thread_m, thread_n = SHAPES[str(shape)]
        schedule = SplitSchedule(tile_m, tile_n, step, thread_m, thread_n, threads, cluster)
        is_valid = is_valid_split_schedule(schedule, group.tensor.dtype)
        used = schedule if is_valid else default
        comment = split_comment(used, group.tensor.name, self._written(group))
        return RenderedGroup((SplitRenderer(kernel, group, used).render(comment),), is_valid=is_valid)

    def _register_tiles(self, group: ContractionGroup, name: str) -> RenderedGroup:
        kernel = self.new_kernel(name, register_tiles.LOCAL_NAMES)
        n_results = self.workload.size(group.m.extent * group.n.extent * group.batch.extent)
        n_terms, dtype = self.workload.size(group.k.extent), group.tensor.dtype
        is_large = n_results >= 64 * self.workload.n_multiprocessors // 2 and n_terms >= MIN_TERMS_OF_LARGE_TILES
        tile = self.choices.pick(
            f"{kernel.name}.sums", ("4x8", "8x4", "8x8"), "8x8" if is_large else "4x8", "sums per thread"
        )
        tile_m, tile_n = map(int, str(tile).split("x"))
        values = (self.threads,) if self.threads else sharing_threads(n_terms)
        in_one_round = (n for n in values if 4 * n >= n_terms)
        fitting = (n for n in in_one_round if is_valid_register_tile(RegisterTileSchedule(tile_m, tile_n, n), dtype))
        default = self.threads or next(fitting, 256)
        threads = self.choices.pick_int(
            f"{kernel.name}.sharing", values, default, "threads that share a tile's products"
        )
        schedule = RegisterTileSchedule(tile_m, tile_n, threads)
        is_valid = is_valid_register_tile(schedule, group.tensor.dtype)
        used = schedule if is_valid else RegisterTileSchedule(4, 8, threads)
        comment = register_tile_comment(used, group.tensor.name, self._written(group))
        return RenderedGroup((RegisterTileRenderer(kernel, group, used).render(comment),), is_valid=is_valid)

    def _thread_rows(self, group: ContractionGroup, name: str) -> RenderedGroup:
        kernel = self.new_kernel(name, thread_rows.LOCAL_NAMES)
        pick = self.choices.pick_int
        default = default_thread_rows(group, self.workload)
        schedule = ThreadRowSchedule(
            pick(f"{kernel.name}.columns_per_thread", (4, 8, 16, 24, 32), default.tile_n, "columns per thread"),
            pick(f"{kernel.name}.rows_per_thread", (1, 2, 4, 6, 8), default.rows, "rows per thread"),
            pick(f"{kernel.name}.threads", (64, 128, 256), default.threads, "threads per block"),
        )
        is_valid = is_valid_thread_rows(schedule, group)
        used = schedule if is_valid else default
        comment = thread_row_comment(used, group.tensor.name, self._written(group))
        return RenderedGroup((ThreadRowRenderer(kernel, group, used).render(comment),), is_valid=is_valid)

    def _on_tensor_cores(self, group: ContractionGroup, name: str) -> RenderedGroup:
        kernel = self.new_kernel(name, tensor_core.LOCAL_NAMES)
        if self.workload.capability == HOPPER:
            written = self._written(group)
            kernels = render_windows(self.choices, self.new_kernel, kernel, group, self.workload, written)
            if kernels:
                return RenderedGroup(kernels)
        default = default_schedule(group, self.workload)
        schedule = pick_schedule(self.choices, kernel.name, group, default, self.workload)
        renderer = tensor_core_renderer(kernel, group, schedule, self.workload)
        is_valid = renderer.is_valid
        if not is_valid:
            renderer = tensor_core_renderer(kernel, group, default, self.workload)
        comment = tensor_core_comment(group, renderer.schedule, self._written(group))
        return RenderedGroup((renderer.render(comment),), is_valid=is_valid)

    def _written(self, group: ContractionGroup) -> str:
        """Describe the results that the kernel writes, for its comment."""
        names = [self.tensor_names[store.tensor] for store in group.stores]
        is_plain = len(group.stores) == 1 and isinstance(group.stores[0].scalar, Access)
        return "them" if is_plain else f"{' and '.join(names)} from them"

    def _default_tiles(self, group: ContractionGroup) -> TileSchedule:
        n_rows, n_columns = self.workload.size(group.m.extent), self.workload.size(group.n.extent)
        n_batch = max(1, self.workload.size(group.batch.extent))
        for tile_m, tile_n, thread in ((128, 128, 8), (64, 64, 4), (32, 32, 2)):
            n_blocks = -(-n_rows // tile_m) * -(-n_columns // tile_n) * n_batch
            if n_blocks >= self.workload.n_multiprocessors and n_rows >= tile_m and n_columns >= tile_n:
                return TileSchedule(tile_m, tile_n, 16 if tile_m == 128 else 32, thread, thread)
        if n_columns <= 16 < n_rows:
            return TileSchedule(64, 16, 16, 4, 2)
        if n_rows <= 16 < n_columns:
            return TileSchedule(16, 64, 16, 2, 4)
        return TileSchedule(32, 32, 16, 2, 2)

    def _attention(self, group: AttentionGroup | AttentionGradientGroup, name: str) -> RenderedGroup:
        if isinstance(group, AttentionGroup):
            kernel = self.new_kernel(name, (*attention.LOCAL_NAMES, *warpgroup_attention.LOCAL_NAMES))
            text, is_valid = choose_attention(kernel, group, self.choices, self.workload)
        else:
            kernel = self.new_kernel(name, (*attention_gradients.LOCAL_NAMES, *warpgroup_gradients.LOCAL_NAMES))
            text, is_valid = choose_gradient(kernel, group, self.choices, self.workload)
        return RenderedGroup((text,), is_valid=is_valid)

    def _scan(self, group: ScanGroup, name: str) -> RenderedGroup:
        kernel = self.new_kernel(name, scan.LOCAL_NAMES)
        default = default_scan_schedule(group, self.workload)
        pick = self.choices.pick_int
        is_row = group.is_column_contiguous
        schedule = ScanSchedule(
            pick(f"{kernel.name}.threads", SCAN_THREADS[is_row], default.threads, "threads that share a row"),
            pick(f"{kernel.name}.rows", (1, 4, 8) if is_row else (8, 16, 32), default.rows, "rows per block"),
            pick(f"{kernel.name}.vector", scan_widths(group, self.workload), default.vector, "elements per load"),
            pick(f"{kernel.name}.items", (1, 2, 4, 8, 16), default.items, "loads per thread and tile"),
            bool(pick(f"{kernel.name}.chained", (0, 1), int(default.chained), "a block for each tile of a row")),
        )
        schedule = replace(schedule, rows=1) if is_row and schedule.threads > WARP else schedule
        is_valid = is_valid_scan_schedule(group, schedule, ScanState.of(group).n_tile_words)
        used = schedule if is_valid else default
        main = render_scan(kernel, group, used, scan_comment(group, used))
        if not main.conditions:
            return RenderedGroup((main,), is_valid=is_valid)
        return RenderedGroup((*self._scan_variants(main, group, used, name),), is_valid=is_valid)

    def _scan_variants(
        self, main: RenderedKernel, group: ScanGroup, schedule: ScanSchedule, name: str
    ) -> tuple[RenderedKernel, RenderedKernel]:
        """Return a kernel with packs where they divide the rows, and one with single elements for all other sizes."""
        single = single_element_schedule(group, schedule, self.workload)
        other = self.new_kernel(f"{name}_any_size", scan.LOCAL_NAMES)
        rest = render_scan(other, group, single, scan_comment(group, single))
        return by_size(replace(main, conditions=main.conditions[:1]), rest)

    def _scatter(self, group: ScatterGroup, name: str) -> RenderedGroup:
        if group.kind == "sum" and group.tensor.dtype not in ATOMIC_TYPES:
            raise TargetError(
                f"the generator cannot add {group.tensor.dtype} values at indices: there is no atomic addition for it",
                file=group.tensor.source.file if group.tensor.source else None,
                line=group.tensor.source.line if group.tensor.source else None,
                next_step="convert to f32 or i32 before adding",
            )
        base = self._elementwise(group.base, f"{name}_base").kernels
        kernel = self.new_kernel(name, scatter.LOCAL_NAMES)
        threads = self.choices.pick_int(f"{kernel.name}.threads", (64, 128, 256, 512), 256, "threads per block")
        how = "adds it atomically, for several may meet" if group.kind == "sum" else "writes it"
        comment = f"One thread per update finds its place and {how}."
        return RenderedGroup((*base, render_scatter(kernel, group, threads, comment)))

    def _row_scatter(self, group: RowScatterGroup, name: str) -> RenderedGroup:
        link = self.new_kernel(f"{name}_link", scatter.LOCAL_NAMES)
        gather = self.new_kernel(name, scatter.LOCAL_NAMES)
        found = choose_row_scatter(self.choices, gather.name, group, self.workload)
        written = ", ".join(self.tensor_names[store.tensor] for store in group.stores)
        comment = f"One thread per pack of a row adds up its updates, chain by chain. Writes {written}."
        return RenderedGroup(render_row_scatter(link, gather, group, found, comment))

    def _routine(self, group: RoutineGroup, name: str) -> RenderedGroup:
        if group.routine.kind == window_gradients.KIND:
            kernel = self.new_kernel(name, window_gradients.LOCAL_NAMES)
            return RenderedGroup((render_window_gradients(kernel, group.tensor, group.routine, self.workload),))
        kernel = self.new_kernel(name, recurrence.LOCAL_NAMES)
        layer = Recurrence(group.tensor, group.routine)
        values = [blocks for blocks in (8, 4, 2, 1) if layer.is_valid(blocks, 1)]
        if not values or self.workload.capability < HOPPER:
            values = [1]
        blocks = self.choices.pick_int(f"{kernel.name}.blocks", values, values[0], "blocks per sequence")
        n_parts = [parts for parts in (8, 16, 4, 32, 2, 1) if layer.is_valid(blocks, parts)]
        if not n_parts:
            raise TargetError(
                f"the generator cannot do a recurrent layer of {layer.n_units} units: a block has too few threads",
                next_step="use fewer hidden units, or leave this layer outside the target",
            )
        default = next((parts for parts in n_parts if layer.keeps_weights(blocks, parts)), n_parts[0])
        parts = self.choices.pick_int(f"{kernel.name}.parts", n_parts, default, "threads per unit")
        return RenderedGroup((render_recurrence(kernel, layer, blocks, parts),))

    def _sorted(self, rows: SortedGroup, name: str) -> RenderedGroup:
        if (schedule := choose_selection(self.choices, name, rows, self.workload)) is not None:
            return self._selected(rows, schedule, name)
        kernel = self.new_kernel(name, sorting.LOCAL_NAMES)
        capacity = sort_capacity(self.workload.size(rows.length), rows.source.dtype)
        default = 256 if capacity is None else max(32, min(512, capacity // 2))
        threads = self.choices.pick_int(f"{kernel.name}.threads", (32, 64, 128, 256, 512), default, "threads per block")
        leading = leading_capacity(rows.count.constant, rows.source.dtype, threads)
        if capacity:
            return RenderedGroup((render_sorted(kernel, rows, capacity, threads),))
        if leading:
            return RenderedGroup((render_leading(kernel, rows, leading, threads),))
        return RenderedGroup((render_ranked(kernel, rows, threads),))

    def _selected(self, rows: SortedGroup, schedule: SelectionSchedule, name: str) -> RenderedGroup:
        """Return the kernel for packs and the captured length, and one for all other sizes where these are open."""
        kernel = self.new_kernel(name, selection.LOCAL_NAMES)
        main, fits = render_selection(kernel, rows, schedule), sorting.fitting(kernel, rows)
        if not main.conditions:
            return RenderedGroup((replace(main, conditions=fits),))
        other = self.new_kernel(f"{name}_any_size", selection.LOCAL_NAMES)
        rest = render_selection(other, rows, SelectionSchedule(schedule.threads, 1, 4))
        return RenderedGroup(tuple(replace(kernel, conditions=fits) for kernel in by_size(main, rest)))

    def _elementwise(self, group: ElementwiseGroup, name: str) -> RenderedGroup:
        pixels = boxed.over_pixels(group) if self.threads is None else None
        boxes = self._boxes(group) if pixels is None else boxed.pixel_boxes(pixels, self.workload)
        if boxes and (rendered := self._boxed(pixels or group, name, boxes)) is not None:
            return rendered
        kernel = self.new_kernel(name, elementwise.LOCAL_NAMES)
        kernel.quick_type = one_floating_type(group) if kernel.uses_intrinsics else None
        chooser = ElementChooser(self.choices, self.workload, group, self.threads)
        schedule = chooser.choose(kernel.name)
        comment = f"{element_comment(schedule)} {self._reads_and_writes(group)}"
        return RenderedGroup((render_elementwise(kernel, group, schedule, comment, self.workload),))

    def _boxes(self, group: ElementwiseGroup) -> list[tuple[int, ...]]:
        """Return the candidate boxes of elements per thread where each takes a loop; none for plain elementwise
        work."""
        has_loop = any(isinstance(node, Loop) for node in nodes(*(store.scalar for store in group.stores)))
        shapes = {store.tensor.shape for store in group.stores}
        return boxes_of(group) if has_loop and len(shapes) == 1 else []

    def _boxed(self, group: ElementwiseGroup, name: str, boxes: Sequence[tuple[int, ...]]) -> RenderedGroup | None:
        """Render a box per thread; None where the schedule wants an element per thread."""
        single = (1,) * len(group.shape)
        is_worth_it = self.workload.size(group.position.extent) >= MIN_PACKED_BOXES
        default = default_box(group, self.workload, boxes, is_large=is_worth_it) or single
        by_name = {"x".join(map(str, box)): box for box in (single, *boxes)}
        wanted = "x".join(map(str, default))
        box = by_name[str(self.choices.pick(f"{name}.box", tuple(by_name), wanted, "elements per thread, by axis"))]
        pick = self.choices.pick_int
        fitting = [threads for threads in (128, 64) if fits_planes(group, box, self.workload, threads)]
        if box == single and not pick(f"{name}.planes", (0, 1) if fitting else (0,), 0, "blocks in planes"):
            return None
        kernel = self.new_kernel(name, boxed.LOCAL_NAMES)
        kernel.quick_type = one_floating_type(group) if kernel.uses_intrinsics else None
        is_constant = all(size.constant is not None for size in group.shape)
        is_flat = is_constant or (is_worth_it and bool(whole_sizes(group, self.workload)))
        default_threads = 128 if is_constant else FLAT_THREADS if is_flat else (fitting or [128])[0]
        threads = self.threads or pick(
            f"{kernel.name}.threads", (64, 128, 256, 512, 1024), default_threads, "per block"
        )
        planes = pick(
            f"{kernel.name}.planes",
            (0, 1) if len(box) > 2 else (0,),
            int(threads in fitting and not is_flat),
            "blocks in planes",
        )
        comment = f"One thread per box of {' x '.join(map(str, box))} elements. {self._reads_and_writes(group)}"
        packs = pick(f"{kernel.name}.packs", (0, 1), int(is_worth_it), "rows of boxes and windows are loads of packs")
        workload = self.workload if packs else None
        text = render_boxes(kernel, group, box, threads, comment, planes=bool(planes), workload=workload)
        return RenderedGroup((text,))

    def _reads_and_writes(self, group: ElementwiseGroup) -> str:
        reads = {access.tensor for store in group.stores for access in accesses(store.scalar)}
        names = sorted(self.tensor_names[tensor] for tensor in reads if tensor in self.tensor_names)
        written = ", ".join(self.tensor_names[store.tensor] for store in group.stores)
        return f"Writes {written} from {', '.join(names) or 'constants'} in one pass over memory."

    def _rows(self, group: RowGroup, name: str) -> RenderedGroup:
        if group.column_sums:
            return self._column_sums(group, name)
        if group.line_sums:
            return self._line_sums(group, name)
        kernel = self.new_kernel(name, rows.LOCAL_NAMES)
        chooser = RowChooser(self.choices, self.workload, group, self.threads)
        chosen = chooser.choose(kernel.name)
        if kernel.uses_intrinsics and chooser.takes_exponentials():
            kernel.quick_type = one_floating_type(group)
        if chosen.schedule.vector > 1 and not group.is_column_contiguous:
            packed = PackedColumnRenderer(kernel, group, chosen.schedule, self.workload)
            return RenderedGroup((packed.render(row_comment(group, chosen.schedule)),), is_valid=chosen.is_valid)
        group = with_lines(group, chosen.schedule.vector, self.workload)
        renderer = SharedRowRenderer if chosen.schedule.blocks > 1 else OnlineRowRenderer
        comment = row_comment(group, chosen.schedule)
        whole = chooser.for_whole_rows(chosen.schedule)
        if whole is None:
            return RenderedGroup((renderer(kernel, group, chosen.schedule).render(comment),), is_valid=chosen.is_valid)
        other = self.new_kernel(f"{name}_any_size", rows.LOCAL_NAMES)
        other.quick_type = kernel.quick_type
        has_clusters = self.workload.capability >= HOPPER
        general = for_other_lengths(group, chosen.schedule, has_clusters=has_clusters)
        rest = renderer(other, group, general).render(row_comment(group, general))
        return RenderedGroup(by_size(renderer(kernel, group, whole).render(comment), rest), is_valid=chosen.is_valid)

    def _line_sums(self, group: RowGroup, name: str) -> RenderedGroup:
        kernel = self.new_kernel(name, (*rows.LOCAL_NAMES, *line_rows.LOCAL_NAMES))
        chooser = RowChooser(self.choices, self.workload, group, None)
        chosen = choose_lines(chooser, kernel.name)
        text = LineRowRenderer(kernel, group, chosen.schedule).render(line_comment(group, chosen.schedule))
        return RenderedGroup((text,), is_valid=chosen.is_valid)

    def _column_sums(self, group: RowGroup, name: str) -> RenderedGroup:
        kernel = self.new_kernel(name, (*rows.LOCAL_NAMES, *column_sums.LOCAL_NAMES))
        chooser = RowChooser(self.choices, self.workload, group, self.threads)
        chosen = choose_column_sums(chooser, kernel.name)
        comment = column_sum_comment(chosen.schedule, [self.tensor_names[entry.tensor] for entry in group.column_sums])
        text = ColumnSumRenderer(kernel, group, chosen.schedule).render(comment)
        return RenderedGroup((text,), is_valid=chosen.is_valid)
