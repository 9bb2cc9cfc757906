"""Select the template of each group, with its knobs and defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
from kernel_lsp.generate.codegen.elements.boxes import boxes_of, render_boxes
from kernel_lsp.generate.codegen.elements.elementwise import render_elementwise
from kernel_lsp.generate.codegen.elements.halves import by_halves
from kernel_lsp.generate.codegen.elements.scatter import ATOMIC_TYPES, render_row_scatter, render_scatter
from kernel_lsp.generate.codegen.kernel import KernelWriter, RenderedKernel, by_size
from kernel_lsp.generate.codegen.products import matmul, register_tiles, split_matmul, thread_rows
from kernel_lsp.generate.codegen.products.matmul import TiledRenderer, tile_comment
from kernel_lsp.generate.codegen.products.register_tiles import (
    REGISTER_TILE_THREADS,
    RegisterTileRenderer,
    register_tile_comment,
)
from kernel_lsp.generate.codegen.products.split_matmul import SplitRenderer
from kernel_lsp.generate.codegen.products.thread_rows import ThreadRowRenderer, thread_row_comment
from kernel_lsp.generate.codegen.routines import (
    depthwise_gradients,
    depthwise_planes,
    recurrence,
    selection,
    sorting,
    step_loop,
    window_gradients,
)
from kernel_lsp.generate.codegen.routines.recurrence import Recurrence, render_recurrence
from kernel_lsp.generate.codegen.routines.selection import SelectionSchedule, render_selection
from kernel_lsp.generate.codegen.routines.sorting import SortRenderer, leading_capacity, sort_capacity
from kernel_lsp.generate.codegen.routines.window_gradients import render_window_gradients
from kernel_lsp.generate.codegen.rows import column_sums, line_rows, rows, side_sums
from kernel_lsp.generate.codegen.rows.column_sums import ColumnSumRenderer
from kernel_lsp.generate.codegen.rows.line_rows import LineRowRenderer
from kernel_lsp.generate.codegen.rows.online_rows import OnlineRowRenderer
from kernel_lsp.generate.codegen.rows.packed_columns import PackedColumnRenderer
from kernel_lsp.generate.codegen.rows.part_masks import with_shared_reads
from kernel_lsp.generate.codegen.rows.row_lines import with_lines
from kernel_lsp.generate.codegen.rows.shared_rows import SharedRowRenderer
from kernel_lsp.generate.codegen.rows.side_sums import SideSumRenderer
from kernel_lsp.generate.codegen.scans import scan
from kernel_lsp.generate.codegen.scans.scan import render_scan
from kernel_lsp.generate.codegen.scans.scan_schedule import ScanSchedule, scan_comment, single_element_schedule
from kernel_lsp.generate.codegen.tensor_cores import tensor_core
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_warpgroups import tensor_core_renderer
from kernel_lsp.generate.fusion.groups import (
    AttentionGradientGroup,
    AttentionGroup,
    ContractionGroup,
    ElementwiseGroup,
    Group,
    LibraryGroup,
    LoopGroup,
    RoutineGroup,
    RowGroup,
    RowScatterGroup,
    ScanGroup,
    ScatterGroup,
    SortedGroup,
    narrow_type,
)
from kernel_lsp.generate.ir.scalar import Access, Loop, accesses, nodes
from kernel_lsp.generate.ir.tensor import Tensor
from kernel_lsp.generate.ir.workload import HOPPER, Workload
from kernel_lsp.generate.library import library_step
from kernel_lsp.generate.schedule.attention_knobs import choose_attention, choose_gradient
from kernel_lsp.generate.schedule.box_knobs import choose_box, choose_box_blocks
from kernel_lsp.generate.schedule.column_knobs import (
    choose_column_sums,
    choose_lines,
    choose_side_sums,
    column_sum_comment,
    line_comment,
    side_sum_comment,
)
from kernel_lsp.generate.schedule.contraction_defaults import split_comment
from kernel_lsp.generate.schedule.contraction_knobs import (
    choose_register_tiles,
    choose_split,
    choose_thread_rows,
    choose_tiles,
)
from kernel_lsp.generate.schedule.depthwise_knobs import render_depthwise
from kernel_lsp.generate.schedule.element_knobs import ElementChooser, choose_row_scatter, element_comment
from kernel_lsp.generate.schedule.knobs import Choices
from kernel_lsp.generate.schedule.next_rows import for_other_lengths
from kernel_lsp.generate.schedule.row_comments import row_comment
from kernel_lsp.generate.schedule.row_knobs import RowChooser
from kernel_lsp.generate.schedule.selection_knobs import choose_selection
from kernel_lsp.generate.schedule.step_knobs import choose_recurrence, choose_scan, render_loop
from kernel_lsp.generate.schedule.tensor_core_knobs import (
    default_schedule,
    pick_schedule,
    render_windows,
    tensor_core_comment,
    with_strips,
)


@dataclass(frozen=True)
class RenderedGroup:
    """The kernels of a group, and the steps that precede them."""

    kernels: tuple[RenderedKernel, ...]
    library: tuple[LibraryStep, ...] = ()
    is_valid: bool = True


@dataclass(frozen=True)
class ContractionTemplate:
    """A template of contractions on CUDA cores. `choose` picks its schedule and returns True if that is the wanted one,
    `comment` describes it, and `renderer` writes the kernel."""

    local_names: tuple[str, ...]
    choose: Callable[[Choices, str, ContractionGroup, Workload, int | None], tuple[Any, bool]]
    comment: Callable[[Any, str, str], str]
    renderer: Callable[[KernelWriter, ContractionGroup, Any], Any]


CONTRACTIONS = {
    "tiled": ContractionTemplate(matmul.LOCAL_NAMES, choose_tiles, tile_comment, TiledRenderer),
    "split_warps": ContractionTemplate(split_matmul.LOCAL_NAMES, choose_split, split_comment, SplitRenderer),
    "register_tiles": ContractionTemplate(
        register_tiles.LOCAL_NAMES, choose_register_tiles, register_tile_comment, RegisterTileRenderer
    ),
    "thread_rows": ContractionTemplate(
        thread_rows.LOCAL_NAMES, choose_thread_rows, thread_row_comment, ThreadRowRenderer
    ),
}


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
            case LoopGroup():
                writer = self.new_kernel(name, step_loop.LOCAL_NAMES)
                return RenderedGroup((render_loop(writer, group, self.choices, self.workload),))
            case SortedGroup():
                return self._sorted(group, name)

    def _contraction(self, group: ContractionGroup, name: str) -> RenderedGroup:
        template = CONTRACTIONS[self._contraction_way(group)]
        kernel = self.new_kernel(name, template.local_names)
        used, is_valid = template.choose(self.choices, kernel.name, group, self.workload, self.threads)
        comment = template.comment(used, group.tensor.name, self._written(group))
        return RenderedGroup((template.renderer(kernel, group, used).render(comment),), is_valid=is_valid)

    def _contraction_way(self, group: ContractionGroup) -> str:
        """Return the template of a contraction on CUDA cores: the wanted one, if it can be used here."""
        if group.way == "register_tiles" and self.threads in (None, *REGISTER_TILE_THREADS):
            return "register_tiles"
        if group.way == "thread_rows" and self.threads is None and group.k.extent.constant is not None:
            return "thread_rows"
        # A shared launch may have too many threads for register tiles.
        return "split_warps" if group.way in ("split_warps", "register_tiles") else "tiled"

    def _on_tensor_cores(self, group: ContractionGroup, name: str) -> RenderedGroup:
        kernel = self.new_kernel(name, tensor_core.LOCAL_NAMES)
        if self.workload.capability == HOPPER:
            written = self._written(group)
            kernels = render_windows(self.choices, self.new_kernel, kernel, group, self.workload, written)
            if kernels:
                return RenderedGroup(kernels)
        default = default_schedule(group, self.workload)
        with_strip = with_strips(group, default, self.workload)
        if tensor_core_renderer(kernel, group, with_strip, self.workload).is_valid:
            default = with_strip
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
        used, is_valid = choose_scan(self.choices, kernel.name, group, self.workload)
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
        if group.routine.kind == depthwise_planes.KIND:
            writer = self.new_kernel(name, depthwise_gradients.LOCAL_NAMES)
            return RenderedGroup((render_depthwise(self.choices, writer, group, self.workload),))
        kernel = self.new_kernel(name, recurrence.LOCAL_NAMES)
        layer = Recurrence(group.tensor, group.routine)
        blocks, parts = choose_recurrence(self.choices, kernel.name, layer, self.workload)
        return RenderedGroup((render_recurrence(kernel, layer, blocks, parts),))

    def _sorted(self, rows: SortedGroup, name: str) -> RenderedGroup:
        if (schedule := choose_selection(self.choices, name, rows, self.workload)) is not None:
            return self._selected(rows, schedule, name)
        kernel = self.new_kernel(name, sorting.LOCAL_NAMES)
        capacity = sort_capacity(self.workload.size(rows.length), rows.source.dtype)
        default = 256 if capacity is None else max(32, min(512, capacity // 2))
        threads = self.choices.pick_int(f"{kernel.name}.threads", (32, 64, 128, 256, 512), default, "threads per block")
        leading = leading_capacity(rows.count.constant, rows.source.dtype, threads)
        renderer = SortRenderer(kernel, rows, threads)
        if capacity:
            return RenderedGroup((renderer.sorted(capacity),))
        return RenderedGroup((renderer.leading(leading) if leading else renderer.ranked(),))

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
        kernel.quick_type = narrow_type(group) if kernel.uses_intrinsics else None
        halves = by_halves(group) if self.threads is None else None
        if halves is not None and self.choices.pick_int(
            f"{kernel.name}.halves", (0, 1), 1, "threads have both halves of rows"
        ):
            group = halves
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
        if (box := choose_box(self.choices, name, group, boxes, self.workload)) is None:
            return None
        kernel = self.new_kernel(name, boxed.LOCAL_NAMES)
        kernel.quick_type = narrow_type(group) if kernel.uses_intrinsics else None
        blocks = choose_box_blocks(self.choices, kernel.name, group, box, self.workload, self.threads)
        comment = f"One thread per box of {' x '.join(map(str, box))} elements. {self._reads_and_writes(group)}"
        workload = self.workload if blocks.has_packs else None
        kernel.evicts_late = blocks.evicts_late
        planes, n_resident = blocks.in_planes, blocks.n_resident
        text = render_boxes(
            kernel, group, box, blocks.threads, comment, planes=planes, workload=workload, n_resident=n_resident
        )
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
        group, kernel = with_shared_reads(group), self.new_kernel(name, rows.LOCAL_NAMES)
        chooser = RowChooser(self.choices, self.workload, group, self.threads)
        chosen = chooser.choose(kernel.name)
        kernel.quick_type = narrow_type(group) if kernel.uses_intrinsics else None
        if chosen.schedule.vector > 1 and not group.is_column_contiguous:
            packed = PackedColumnRenderer(kernel, group, chosen.schedule, self.workload)
            return RenderedGroup((packed.render(row_comment(group, chosen.schedule)),), is_valid=chosen.is_valid)
        group = with_lines(group, chosen.schedule.vector, self.workload)
        comment = row_comment(group, chosen.schedule)
        whole = chooser.fit.for_whole_rows(chosen.schedule)
        if chosen.schedule.blocks == 1 and whole is None:
            text = OnlineRowRenderer(kernel, group, chosen.schedule, self.workload).render(comment)
            return RenderedGroup((text,), is_valid=chosen.is_valid)
        renderer = SharedRowRenderer if chosen.schedule.blocks > 1 else OnlineRowRenderer
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
        kernel.quick_type = narrow_type(group) if kernel.uses_intrinsics else None
        chosen = choose_lines(chooser, kernel.name)
        text = LineRowRenderer(kernel, group, chosen.schedule).render(line_comment(group, chosen.schedule))
        return RenderedGroup((text,), is_valid=chosen.is_valid)

    def _column_sums(self, group: RowGroup, name: str) -> RenderedGroup:
        chooser = RowChooser(self.choices, self.workload, group, self.threads)
        if not group.is_column_contiguous:
            kernel = self.new_kernel(name, (*rows.LOCAL_NAMES, *side_sums.LOCAL_NAMES))
            kernel.quick_type = narrow_type(group) if kernel.uses_intrinsics else None
            chosen = choose_side_sums(chooser, kernel.name)
            names = [self.tensor_names[entry.tensor] for entry in group.column_sums]
            comment = side_sum_comment(chosen.schedule, names)
            text = SideSumRenderer(kernel, group, chosen.schedule).render(comment)
            return RenderedGroup((text,), is_valid=chosen.is_valid)
        kernel = self.new_kernel(name, (*rows.LOCAL_NAMES, *column_sums.LOCAL_NAMES))
        kernel.quick_type = narrow_type(group) if kernel.uses_intrinsics else None
        chosen = choose_column_sums(chooser, kernel.name)
        comment = column_sum_comment(chosen.schedule, [self.tensor_names[entry.tensor] for entry in group.column_sums])
        text = ColumnSumRenderer(kernel, group, chosen.schedule).render(comment)
        return RenderedGroup((text,), is_valid=chosen.is_valid)
