"""Convolutions of f32 by `wgmma` over windows of the source: a window is copied once, in pieces of 16 bytes, and every
tap along the row multiplies it from where it lies.

A kernel of its own stages the weights in the order in which the steps read them.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.expression import Constant, Expression
from kernel_lsp.generate.codegen.kernel import (
    KernelWriter,
    RenderedKernel,
    blocks_of,
    divisible,
    name_coordinates,
    rendered,
)
from kernel_lsp.generate.codegen.scope import Scope
from kernel_lsp.generate.codegen.tensor_cores.epilogue import ResultText, RowPlaces
from kernel_lsp.generate.codegen.tensor_cores.source_windows import DEPTH, PIECE, WindowAxis, Windows
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_operands import open_rounds
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_schedule import (
    MAX_SHARED_BYTES,
    WARPGROUP_COLUMNS,
    TensorCoreSchedule,
)
from kernel_lsp.generate.codegen.tensor_cores.tensor_core_warpgroups import WarpgroupRenderer
from kernel_lsp.generate.fusion.groups import ContractionGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import ZERO, Index, as_index, product
from kernel_lsp.generate.ir.sizes import ravel, unravel_safe
from kernel_lsp.generate.ir.workload import Workload

TAKEN_REGISTERS, LEFT_REGISTERS = 184, 72
"""Registers per thread that multiplies, and that copies, of 128 each at first."""
MAX_FRAGMENT_SUMS = 160
"""Maximum registers of sums and fragments per thread that multiplies."""
STAGES = 4
"""Tiles of weights in shared memory."""
MIN_AHEAD = 3
"""Minimum steps between the last read of a window and the copies that replace it."""
STAGING_THREADS = 256
_NAMES = """
windows staged weights pitch place column row is_stored channel piece far window group tap taps shift from
first_channel is_inside high low fetch COPYING MULTIPLYING SPLIT_STAGES WINDOWS IS_THERE WAS_READ HALF CHANNELS
"""
LOCAL_NAMES = tuple(_NAMES.split())
ROW_SERIAL = 1 << 25


class WindowRenderer(WarpgroupRenderer):
    """Renders a convolution whose tile is a run of output places."""

    def __init__(
        self,
        kernel: KernelWriter,
        group: ContractionGroup,
        schedule: TensorCoreSchedule,
        workload: Workload,
        windows: Windows,
    ) -> None:
        super().__init__(kernel, group, schedule, workload)
        self.windows = windows
        self.n_columns = group.n.extent.constant or 0
        self._results.keep_packs(workload.size(windows.row.extent) % PIECE == 0, divisible(windows.row.extent, PIECE))

    @property
    def is_valid(self) -> bool:
        """Check that the tile fits `wgmma`, the results' layout and the hardware."""
        schedule, windows = self.schedule, self.windows
        is_known = schedule.tile_n in WARPGROUP_COLUMNS and self.n_columns % schedule.tile_n == 0
        has_rows = schedule.tile_m % 128 == 0 and schedule.warp_m in (16, 32) and schedule.warps_n == 1
        return (
            is_known
            and has_rows
            and self.is_m_inner
            and self._n_multiplying == schedule.n_copying
            and self._slices_at_once > 0
            and windows.channels * self._n_far <= schedule.n_copying
            and self.shared_bytes <= MAX_SHARED_BYTES
        )

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of the weights as copied and split, and of the windows; results replace them."""
        tiles = (STAGES + self._n_split) * self.schedule.tile_n * self._n_products * 4
        windows = self._n_windows * self.windows.channels * self._window_length * 4
        return max(tiles + windows, self._result_layout.n_bytes)

    def staging(self, kernel: KernelWriter) -> RenderedKernel:
        """Return the kernel that stages the weights: by steps, pieces of four products, and columns."""
        windows, group = self.windows, self.group
        n_elements = windows.n_steps * self._n_products * self.n_columns
        name = kernel.add_scratch("staged", DType.F32, (Constant(n_elements),))
        self.kernel.scratch["staged"] = kernel.scratch[name]
        scope, element = Scope(kernel), Variable("e", ROW_SERIAL, as_index(n_elements))
        scope.line(f"const int e = blockIdx.x * {STAGING_THREADS} + threadIdx.x;")
        scope.line(f"if (e >= {n_elements}) return;")
        scope.define(element, "e")
        flat = as_index(element)
        piece, column = flat // (PIECE * self.n_columns), flat // PIECE % self.n_columns
        place = piece % (self._n_products // PIECE) * PIECE + flat % PIECE
        step = piece // (self._n_products // PIECE)
        replaced = {group.k: self._product_at(step, place), group.n: column}
        scope.line(f"{name}[e] = {scope.value(group.unscaled[1].substitute(replaced)).text};")
        comment = f"Stages the {n_elements} factors of columns in the order in which the steps read them."
        grid = [Constant(-(-n_elements // STAGING_THREADS))]
        return rendered(kernel, comment, scope.lines, grid, (STAGING_THREADS,))

    def render(self, comment: str) -> RenderedKernel:
        """Return the kernel."""
        windows, group, schedule = self.windows, self.group, self.schedule
        self._declare_tiles()
        self._declare_places()
        self._write_steps()
        self._write_sums()
        self._write_results()
        grid = [blocks_of(windows.n_places, schedule.tile_m), blocks_of(group.n.extent, schedule.tile_n)]
        conditions: list[Expression] = [
            *group.conditions,
            *divisible(windows.row.size, PIECE),
            *self._results.conditions,
        ]
        return rendered(
            *(self.kernel, comment, self.scope.lines, grid, (schedule.n_threads,), conditions),
            min_blocks=2 if schedule.warps_m == 4 else 1,
            dynamic_bytes=self.shared_bytes,
        )

    @property
    def _n_products(self) -> int:
        return self.windows.channels * self.windows.taps

    @property
    def _window_length(self) -> int:
        return self.schedule.tile_m + (self.windows.padding or 0)

    @property
    def _n_windows(self) -> int:
        """Return the windows in shared memory: one is copied while another one is read."""
        return 1 + -(-MIN_AHEAD // self.windows.steps_per_window)

    @property
    def _slices_at_once(self) -> int:
        """Return how many fragments a thread loads before it multiplies them."""
        n_sums = self.schedule.warp_m * self.schedule.tile_n // 16
        return (MAX_FRAGMENT_SUMS - n_sums) // (self.schedule.warp_m // 2)

    @property
    def _splits_own_copies(self) -> bool:
        return True

    def _product_at(self, step: Index, place: Index) -> Index:
        """Return the k of a product: `place` counts the taps of a step, and the channels of each."""
        windows = self.windows
        per_window, n_parts = windows.steps_per_window, windows.n_channels // windows.channels
        tap = step % per_window * windows.taps + place // windows.channels
        window = step // per_window
        channel = window % n_parts * windows.channels + place % windows.channels
        outer = [as_index(axis.n_taps) for axis in windows.axes[:-1]]
        taps = (*unravel_safe(window // n_parts, outer), tap)
        position = [ZERO] * len(windows.shape)
        position[windows.channel] = channel
        for axis, number in zip(windows.axes, taps, strict=True):
            if axis.tap is not None:
                position[axis.tap] = number
        return ravel(position, [as_index(extent) for extent in windows.shape])

    def _declare_tiles(self) -> None:
        scope, schedule, windows = self.scope, self.schedule, self.windows
        scope.line(
            f"constexpr int COPYING = {self.schedule.n_copying}, MULTIPLYING = {self._n_multiplying};  // threads"
        )
        scope.line(
            f"constexpr int TM = {schedule.tile_m}, TN = {schedule.tile_n}, TK = {self._n_products};  // of a block"
        )
        scope.line(f"constexpr int WM = {schedule.warp_m}, WN = TN;  // of a warp")
        scope.line(f"constexpr int CHANNELS = {windows.channels};  // of a window")
        scope.line(f"constexpr int STAGES = {STAGES}, SPLIT_STAGES = {self._n_split}, WINDOWS = {self._n_windows};")
        scope.line(f"extern __shared__ __align__({self.alignment}) unsigned char shared[];")
        scope.line("// Weights in pieces of 4 products, as wgmma reads them without a swizzle.")
        scope.line("auto right_tiles = reinterpret_cast<float (*)[TK / 4][TN][4]>(shared);")
        scope.line("auto right_low = reinterpret_cast<float (*)[TK / 4][TN][4]>(right_tiles + STAGES);")
        scope.line("// Runs of the source, padded so that lanes read fragments from different banks.")
        length = f"TM + {windows.padding}"
        scope.line(f"auto windows = reinterpret_cast<float (*)[CHANNELS][{length}]>(right_low + SPLIT_STAGES);")
        scope.line("// Named barriers: of each split tile, that it is there and that it has been read; of one half.")
        scope.line("constexpr int IS_THERE = 1, WAS_READ = IS_THERE + SPLIT_STAGES, HALF = WAS_READ + SPLIT_STAGES;")

    def _declare_places(self) -> None:
        scope, kernel, type_ = self.scope, self.kernel, self.kernel.index_type
        scope.line(f"const {type_} m0 = blockIdx.x * TM, n0 = blockIdx.y * TN;")
        scope.line(f"const int lane = threadIdx.x % 32, warp = {self._warp};")
        scope.line("const int warp_m = warp * WM, warp_n = 0;")
        name_coordinates(kernel, as_index(self.group.m), self.group.row_shape)
        extents = [v.extent for v in self.group.reduced] if self.group.phases is None else self.group.phases.shape
        names = [variable.name for variable in self.group.reduced]
        name_coordinates(kernel, as_index(self.group.k), extents, names)
        pitch, n_places = self.windows.pitch, self.windows.n_places
        scope.line("// Output rows are a pitch apart: a row of the source and the zeros around it.")
        scope.line(f"const {type_} pitch = {scope.index(pitch).text}, n_places = {scope.index(n_places).text};")

    def _declare_steps(self) -> None:
        self.scope.line(f"constexpr int n_steps = {self.windows.n_steps};")

    def _take_registers(self, scope: Scope, how: str, count: int) -> None:
        count = TAKEN_REGISTERS if how == "inc" else LEFT_REGISTERS
        scope.line(f"{self.kernel.use(f'{how}_registers')}<{count}>();")

    def _prepare_loads(self) -> None:
        """Declare a thread's pieces of a window: one within the tile, and for some threads one beyond it."""
        scope, n_pieces = self.scope, self.schedule.tile_m // PIECE
        self._declare_piece("", f"threadIdx.x % {n_pieces}", f"threadIdx.x / {n_pieces}")
        if self._n_far:
            far = f"{n_pieces} + threadIdx.x % {self._n_far}"
            self._declare_piece("far_", far, f"threadIdx.x / {self._n_far}")
        scope.line()

    @property
    def _n_far(self) -> int:
        return (self.windows.before + self.windows.after) // PIECE

    def _declare_piece(self, prefix: str, piece: str, channel: str) -> None:
        """Declare a piece's place in the window, its channel, its position along each axis, and its address."""
        scope, windows, type_ = self.scope, self.windows, self.kernel.index_type
        scope.line(f"const int {prefix}piece = ({piece}) * {PIECE}, {prefix}channel = {channel};")
        before = f" - {windows.before}" if windows.before else ""
        scope.line(f"const {type_} {prefix}place = m0{before} + {prefix}piece;")
        scope.line(f"const {type_} {prefix}row = ({prefix}place + pitch) / pitch - 1;")
        scope.line(f"const {type_} {prefix}column = {prefix}place - {prefix}row * pitch;")
        row = Variable(f"{prefix}row", ROW_SERIAL, product([windows.n_images, *self._row_extents]))
        channel_of = Variable(f"{prefix}channel", ROW_SERIAL + 1, as_index(windows.channels))
        column = Variable(f"{prefix}column", ROW_SERIAL + 2, windows.row.size)
        for variable in (row, channel_of, column):
            scope.define(variable, variable.name)
        image, *places = unravel_safe(as_index(row), [windows.n_images, *self._row_extents])
        at = []
        for number, (axis, place) in enumerate(zip(windows.axes[:-1], places, strict=True)):
            index = place * axis.stride + axis.first
            name = f"{prefix}at_{number}"
            scope.line(f"const {type_} {name} = {scope.index(index).text};")
            at.append(Variable(name, ROW_SERIAL + 3 + number, axis.size))
            scope.define(at[-1], name)
        limit = self.kernel.size("row_length", windows.row.size)
        inside = f"{prefix}place >= 0 && {prefix}place < n_places && {prefix}column < {limit}"
        scope.line(f"const bool {prefix}is_inside = {inside};")
        tensor = windows.read.tensor
        position = [image, as_index(channel_of), *(as_index(each) for each in at), as_index(column)]
        pointer = self.kernel.pointer(tensor)
        offset = scope.index(ravel(position, tensor.shape)).text
        scope.line(f"const float* {prefix}from = {pointer} + ({offset});")

    @property
    def _row_extents(self) -> list[Index]:
        return [axis.extent for axis in self.windows.axes[:-1]]

    def _write_loads(self, scope: Scope) -> None:
        per_window = self.windows.steps_per_window
        window = scope.open(f"if (step % {per_window} == 0)") if per_window > 1 else scope
        self._write_window(window)
        if window is not scope:
            window.close()
        scope.line(f"const float* weights = staged + (step * (TK * {self.n_columns}) + n0 * 4);")
        with open_rounds(scope, self.schedule.tile_n * self._n_products // PIECE, self.schedule.n_copying) as pieces:
            address = f"weights + (e / TN * {4 * self.n_columns} + e % TN * 4)"
            pieces.line(f"copy_async<16>(right_tiles[stage][e / TN][e % TN], {address}, true);")

    def _write_window(self, scope: Scope) -> None:
        windows, tensor = self.windows, self.windows.read.tensor
        n_parts, n_taps = windows.n_channels // windows.channels, windows.n_row_taps
        scope.line(f"const int group = step / {windows.steps_per_window}, window = group % WINDOWS;")
        group = Variable("group", ROW_SERIAL + 10, as_index(n_parts * n_taps))
        scope.define(group, "group")
        outer = [as_index(axis.n_taps) for axis in windows.axes[:-1]]
        taps = unravel_safe(as_index(group) // n_parts, outer)
        shifts: list[Index] = [ZERO, as_index(group) % n_parts * windows.channels]
        tests: dict[str, list[str]] = {"": [], "far_": []}
        for number, (axis, tap) in enumerate(zip(windows.axes[:-1], taps, strict=True)):
            shifts.append(self._shift(scope, number, axis, tap))
            size = self.kernel.size(f"size_{number}", axis.size)
            for prefix, found in tests.items():
                at = f"{prefix}at_{number}" + (f" + shift_{number}" if shifts[-1] != ZERO else "")
                if axis.n_taps > 1 or axis.first:
                    found.append(f"{at} >= 0 && {at} < {size}")
        offset = scope.index(ravel([*shifts, ZERO], tensor.shape)).text
        scope.line(f"const {self.kernel.index_type} shift = {offset};")
        step = self.schedule.n_copying * PIECE // self.schedule.tile_m
        plane = scope.index(product(tensor.shape[2:])).text
        self._declare_inside(scope, "", tests[""])
        with scope.unroll(f"for (int i = 0; i < CHANNELS / {step}; ++i)") as pieces:
            to, source = f"&windows[window][channel + i * {step}][piece]", f"from + shift + i * {step} * ({plane})"
            pieces.line(f"copy_async<16>({to}, {source}, is_window_inside);")
        if self._n_far:
            with scope.open(f"if (threadIdx.x < CHANNELS * {self._n_far})") as far:
                self._declare_inside(far, "far_", tests["far_"])
                to = "&windows[window][far_channel][far_piece]"
                far.line(f"copy_async<16>({to}, far_from + shift, far_is_window_inside);")

    def _shift(self, scope: Scope, number: int, axis: WindowAxis, tap: Index) -> Index:
        if axis.n_taps == 1:
            return ZERO
        scope.line(f"const int shift_{number} = {scope.index(tap * axis.step).text};")
        shift = Variable(f"shift_{number}", ROW_SERIAL + 20 + number, axis.size)
        scope.define(shift, shift.name)
        return as_index(shift)

    def _declare_inside(self, scope: Scope, prefix: str, tests: Sequence[str]) -> None:
        scope.line(f"const bool {prefix}is_window_inside = {' && '.join([f'{prefix}is_inside', *tests])};")

    def _declare_first_term(self, scope: Scope) -> None:
        """Declare nothing: a window's place follows from the step."""

    def _write_splitting(self, scope: Scope) -> None:
        with open_rounds(scope, self.schedule.tile_n * self._n_products // PIECE, self.schedule.n_copying) as rows:
            rows.line("const Pack<float, 4> high = *packs<4>(right_tiles[stage][e / TN][e % TN]);")
            rows.line("Pack<float, 4> low;")
            rows.line("#pragma unroll")
            rows.line("for (int c = 0; c < 4; ++c) low.item[c] = low_tf32(high.item[c]);")
            rows.line("*packs<4>(right_low[split_stage][e / TN][e % TN]) = low;")

    def _write_left_fragments(self, scope: Scope) -> None:
        """Declare what the products of a step share."""
        per_window, windows = self.windows.steps_per_window, self.windows
        group = f"step / {per_window}" if per_window > 1 else "step"
        scope.line(f"const int window = {group} % WINDOWS;")
        tap = f"step % {per_window} * {windows.taps}" if windows.taps > 1 else f"step % {per_window}"
        first = windows.before + windows.row.first
        shift = f" + ({tap}) * {windows.row.step}" if per_window > 1 else ""
        scope.line(f"const int place = warp_m + lane / 4 + {first}{shift};  // of the step's first tap")

    def _write_group_products(self, scope: Scope) -> None:
        multiply = self.kernel.use(f"multiply_warpgroup_{self.schedule.tile_n}")
        scope.line("float parts[WM / 16][WN / 8][4];  // tensor cores cut sums off: they add up one step only")
        n_slices = self._n_products // DEPTH
        for first in range(0, n_slices, self._slices_at_once):
            self._write_slices(scope, multiply, first, min(self._slices_at_once, n_slices - first))
        scope.line("if (step + SPLIT_STAGES < n_steps) arrive(WAS_READ + split_stage, COPYING + MULTIPLYING);")
        with scope.unroll("for (int i = 0; i < WM / 16; ++i)", "for (int c = 0; c < WN / 2; ++c)") as words:
            words.line('asm volatile("" : "+f"(parts[i][c / 4][c % 4])::"memory");  // not to be read before')
            words.line("sums[i][c / 4][c % 4] += parts[i][c / 4][c % 4];")

    def _write_slices(self, scope: Scope, multiply: str, first: int, count: int) -> None:
        """Multiply some slices of 8 products. A slice is of one tap."""
        per_tap, step = self.windows.channels // DEPTH, self.windows.row.step
        with scope.open("") as block:
            block.line(f"unsigned left_high[{count}][WM / 16][4], left_low[{count}][WM / 16][4];")
            with block.unroll(f"for (int k = 0; k < {count}; ++k)") as slices:
                place = f"(k + {first})" if first else "k"
                shift = f" + {place} / {per_tap} * {step}" if self.windows.taps > 1 else ""
                with slices.unroll("for (int i = 0; i < WM / 16; ++i)", "for (int c = 0; c < 4; ++c)") as words:
                    channel = f"{place} % {per_tap} * {DEPTH} + lane % 4 + c / 2 * 4"
                    words.line(f"const float high = windows[window][{channel}][place{shift} + i * 16 + c % 2 * 8];")
                    words.line("left_high[k][i][c] = __float_as_uint(high);")
                    words.line("left_low[k][i][c] = __float_as_uint(low_tf32(high));")
            block.line("begin_products();")
            with block.unroll(f"for (int k = 0; k < {count}; ++k)") as slices:
                slices.line(f"const auto high = describe_pieces(right_tiles[stage][{place} * 2], TN);")
                slices.line(f"const auto low = describe_pieces(right_low[split_stage][{place} * 2], TN);")
                with slices.unroll("for (int i = 0; i < WM / 16; ++i)") as rows:
                    rows.line(f"{multiply}(parts[i], left_low[k][i], high, {place} > 0);")
                    rows.line(f"{multiply}(parts[i], left_high[k][i], low, true);")
                    rows.line(f"{multiply}(parts[i], left_high[k][i], high, true);")
            block.line("commit_products();")
            block.line("wait_for_products<0>();")

    def _write_results(self) -> None:
        rows = RowPlaces("place", self._declare_row, "is_stored")
        text = ResultText("", "", self._n_terms, self._is_split, rows)
        self._results.write(self.scope, text)

    def _declare_row(self, scope: Scope) -> None:
        """Declare the row of results at a place, and whether there is one."""
        type_ = self.kernel.index_type
        extent = scope.index(self.windows.row.extent).text
        scope.line(f"const {type_} row = place / pitch, column = place - row * pitch;")
        scope.line(f"const bool is_stored = place < n_places && column < {extent};")
        scope.line(f"const {type_} m = row * ({extent}) + column;")
