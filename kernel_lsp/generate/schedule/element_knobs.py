"""Choose the threads, packs and lines of an elementwise kernel, and the threads of one that gathers the updates of
rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kernel_lsp.generate.codegen.elements.elementwise import ElementwiseSchedule
from kernel_lsp.generate.codegen.elements.lines import (
    MANY_LINES,
    PACK_OF_16_BITS,
    line_axis,
    rotation_axis,
    shared_axis,
)
from kernel_lsp.generate.codegen.elements.packs import MAX_PACK_BYTES, Packing, find_packed
from kernel_lsp.generate.codegen.elements.scatter import RowScatterSchedule
from kernel_lsp.generate.codegen.kernel import MAX_GRID_YZ
from kernel_lsp.generate.fusion.groups import ElementwiseGroup, RowScatterGroup
from kernel_lsp.generate.ir.atoms import Variable
from kernel_lsp.generate.ir.index import ZERO, as_index, product, substitute
from kernel_lsp.generate.ir.scalar import Access, Loop, Operation, accesses, indirect_scalars, nodes
from kernel_lsp.generate.ir.sizes import divides, ravel
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.schedule.knobs import Choices
from kernel_lsp.generate.schedule.row_limits import LARGE_BYTES, LATE

WINDOW_UNROLL = 8
"""Windows per thread of a large tensor: average pooling of 8 elements took 991 us on an H100 with one, 876 us so;
maximum pooling of 3 x 3 x 3 took 1117 us and 932 us."""
MAX_WINDOW = 32
"""Maximum elements of a window of which a thread takes several."""
MAX_UNROLLED_TENSORS = 4
"""Maximum tensors of an elementwise kernel whose threads take several packs of 8."""
FEW_THREADS = 128
"""Threads of a block that takes packs of 8 of more tensors than those: gradients of GELU's gates took 209.9 us in bf16
and 210.8 us in f16 on an H200 by 256 threads of two packs, 208.8 and 208.6 us so."""
ROTATED_LINES = 2
"""Lines per thread, and threads across lines, where lines of 16 bits read as much of shared operands as they write:
rotary embeddings took 43.2 us on an H200 by single lines, 42.5 us by 128 threads of them, and 41.9 us so."""
ROTATED_WAVES = 4
"""Minimum times that these threads fill the GPU, else single lines: 17 MB took 14.1 us in bf16 on an H200 by two lines,
which fill it twice, and 12.7 by single ones."""
MAX_UNROLLED_BYTES = 16
"""Maximum bytes that a pack reads for its thread to take a second one. On an H200 softplus of 6.4 GB took 3150 us with
one and 3004 us with two, a product of int8 and a scale 59.6 and 56.5 us."""
MIN_GATHERED = 2
"""Minimum reads of an element that packs do not serve for a thread to take few elements."""
STRIDES = range(4, 33)
"""Distances, in elements, of reads by neighbouring elements that count as far apart: a warp's still share sectors."""
MAX_GATHERED_WIDTH = 2
"""Maximum elements of a thread that gathers them."""
MAX_SMALL_SHARE = 16
"""Tensors smaller than the result by this factor stay in caches, however they are read."""
LOOKUP_THREADS = 64
"""Threads of a block that reads an index first, and then a row: an embedding in bf16 took 35.8 us on an H200 with 256,
33.6 us so, in f32 65.0 and 64.0. Where an element takes several reads, more threads share what lies in L1: samples of
a grid took 127.0 us in f32 on an H200 with 64, 103.4 with 256."""
PROBE_SERIAL = 1 << 20
SHARED_LINES = 8
"""Lines per thread that share a pack of an operand: a layer norm of 16 rows of 16 MB took 310 us on an H200 with one,
229 us with four and 217 us so."""


@dataclass(frozen=True)
class ElementChooser:
    """Chooses the schedule of one elementwise group. `threads` is the size of every block where groups share
    a launch."""

    choices: Choices
    workload: Workload
    group: ElementwiseGroup
    threads: int | None = None

    def choose(self, kernel: str) -> ElementwiseSchedule:
        """Read the knobs of `kernel`; return its schedule."""
        group, pick = self.group, self.choices.pick_int
        widths = [1, *(width for width in (2, 4, 8) if self._can_pack(width))]
        default_width = self._default_width(widths)
        threads = self.threads or pick(
            f"{kernel}.threads", (64, 128, 256, 512, 1024), self._default_threads(default_width), "threads per block"
        )
        vector = pick(f"{kernel}.vector", widths, default_width, "neighbouring elements per thread")
        if vector > 1 and (shared := self._shared_lines(kernel, threads, vector)) is not None:
            return shared
        axis = line_axis(group, self.workload, vector)
        default_unroll = self._default_unroll(vector)
        if axis is not None and self.workload.size(product(group.shape[axis:])) < threads * vector * default_unroll:
            default_unroll = 1
        unroll = pick(f"{kernel}.unroll", (1, 2, 4, 8), default_unroll, "elements or packs per thread")
        eviction = pick(
            f"{kernel}.streaming", (0, 1, LATE), self._eviction(vector), "evict once-used data early; 2: late"
        )
        if axis is not None and not pick(f"{kernel}.lines", (0, 1), 1, "a block has one line"):
            axis = None
        has_many = axis is not None and self.workload.size(product(group.shape[:axis])) >= MANY_LINES
        schedule = ElementwiseSchedule(threads, vector, unroll, eviction == 1, axis, has_many)
        return replace(schedule, evicts_late=eviction == LATE, has_whole_packs=vector > 1 and self._is_large())

    def _is_large(self) -> bool:
        """Return True if packs of a result are worth a contract of their own."""
        return self.workload.size(self.group.position.extent) >= self._n_large

    @property
    def _n_large(self) -> int:
        """Return the elements of a large result: loads of single 16-bit elements cost as many instructions as those of
        32 bits."""
        widest = max(store.tensor.dtype.itemsize for store in self.group.stores)
        return -(-LARGE_BYTES // max(widest, 4))

    def _eviction(self, width: int) -> int:
        """Return the default of `streaming`: late where large tensors of bytes become larger ones of 16 bits. A product
        of int8 and a scale took 34.9 us on an H200 in bf16, and 33.8 us so, with its scale loaded first."""
        is_large = self.workload.size(self.group.position.extent) >= LARGE_BYTES
        return LATE if is_large and width == PACK_OF_16_BITS and self._element_bytes() == 1 else 0

    def _default_threads(self, width: int) -> int:
        if width > 1 and self._looks_up() and not self._is_gathered():
            return LOOKUP_THREADS
        return FEW_THREADS if width == PACK_OF_16_BITS and self._n_tensors() > MAX_UNROLLED_TENSORS else 256

    def _shared_lines(self, kernel: str, threads: int, vector: int) -> ElementwiseSchedule | None:
        """Return the schedule of threads that take several lines, which share the packs of an operand; None where the
        knob has one line, or none share any."""
        far = shared_axis(self.group, self.workload, vector) if self.threads is None else None
        axis = far if far is not None or vector != PACK_OF_16_BITS else rotation_axis(self.group, self.workload)
        if axis is None:
            return None
        pick, default = self.choices.pick_int, self._default_lines(axis, vector)
        default = default if far is not None else self._rotated_lines(default)
        what = "lines per thread, which share the packs of an operand"
        lines = pick(f"{kernel}.shared_lines", (1, 2, 4, 8), default, what)
        if lines == 1:
            return None
        side_by_side = ROTATED_LINES if far is None else 1
        block_lines = pick(f"{kernel}.block_lines", (1, 2, 4), side_by_side, "threads of a block across lines")
        streaming = pick(f"{kernel}.streaming", (0, 1), 0, "evict early what is used once")
        has_many = far is not None and self._fits_height(axis, threads // block_lines * vector)
        return ElementwiseSchedule(threads, vector, lines, bool(streaming), axis, has_many, True, block_lines)

    def _rotated_lines(self, most: int) -> int:
        """Return the lines per thread of a rotation, with enough threads for several blocks one after the other."""
        n_packs = self.workload.size(self.group.position.extent) // PACK_OF_16_BITS
        return min(most, ROTATED_LINES) if n_packs >= ROTATED_WAVES * ROTATED_LINES * self._n_filling else 1

    def _looks_up(self) -> bool:
        """Return True if an index is read from memory."""
        reads = accesses(*(store.scalar for store in self.group.stores))
        return any(True for access in reads for index in access.index for _ in indirect_scalars(index))

    def _fits_height(self, axis: int, per_block: int) -> bool:
        """Return True if a grid's height has room for the blocks of a line. The blocks that share an operand then run
        one after the other: a layer norm of 16 rows of 16 MB took 218 us on an H200 line after line, 212 us so."""
        return self.workload.size(product(self.group.shape[axis:])) <= per_block * MAX_GRID_YZ

    def _default_lines(self, axis: int, vector: int) -> int:
        """Return the lines per thread that leave the GPU enough threads."""
        shape = self.group.shape
        n_lines, length = self.workload.size(product(shape[:axis])), self.workload.size(product(shape[axis:]))
        lines = SHARED_LINES
        while lines > 1 and (n_lines < lines or length // vector * -(-n_lines // lines) < self._n_filling):
            lines //= 2
        return lines

    @property
    def _n_filling(self) -> int:
        """Return the number of threads that fill the GPU."""
        return self.workload.n_multiprocessors * 2048

    def _default_unroll(self, vector: int) -> int:
        """Return the default unroll. Several independent loads per thread keep the memory busy; many tensors at once do
        so without (AdamW of bf16, four inputs and three results: 245 us with packs alone, 293 us with two each).
        Indices precede what is read there: an embedding of (16, 1024) by 512 with positions took 20.9 us on an H200
        with one, 19.2 with two. Quotients that all elements share, and conditions, are found once for both."""
        loops = [node for node in nodes(*(store.scalar for store in self.group.stores)) if isinstance(node, Loop)]
        is_large = self.workload.size(self.group.position.extent) >= 4 * self._n_filling
        if vector > 1:
            reads = list(accesses(*(store.scalar for store in self.group.stores)))
            is_packed = all(access.mask is None for access in reads)
            is_light = vector * self._element_bytes() <= MAX_UNROLLED_BYTES
            is_few = is_light or (vector == PACK_OF_16_BITS and self._n_tensors() <= MAX_UNROLLED_TENSORS)
            is_few = is_few or self._looks_up()
            return 2 if is_large and ((is_packed and is_few) or (not is_packed and self._shares_quotients())) else 1
        taps = {loop.loop_variables for loop in loops}
        if not is_large or len(taps) > 1:
            return 1
        n_terms = self.workload.size(product(variable.extent for variables in taps for variable in variables))
        if not loops:
            return MAX_GATHERED_WIDTH if self._is_gathered() else 4
        return WINDOW_UNROLL if n_terms <= MAX_WINDOW else 1

    def _shares_quotients(self) -> bool:
        """Return True if each thread divides numbers that are the same for all elements."""
        found = nodes(*(store.scalar for store in self.group.stores))
        quotients = (node for node in found if isinstance(node, Operation) and node.name == "div")
        return any(self.group.position not in quotient.variables for quotient in quotients)

    def _element_bytes(self) -> int:
        """Return the bytes that each element reads of tensors as large as the result."""
        n_results = self.workload.size(self.group.position.extent)
        read = {access.tensor for store in self.group.stores for access in accesses(store.scalar)}
        large = (tensor for tensor in read if self.workload.size(tensor.n_elements) * MAX_SMALL_SHARE >= n_results)
        return sum(tensor.dtype.itemsize for tensor in large)

    def _n_tensors(self) -> int:
        read = {access.tensor for store in self.group.stores for access in accesses(store.scalar)}
        return len(read | {store.tensor for store in self.group.stores})

    def _can_pack(self, width: int) -> bool:
        """Return True if packs divide the captured size and fit a vector access."""
        scalars = [store.scalar for store in self.group.stores]
        if any(isinstance(node, Loop) for node in nodes(*scalars)):
            return False
        size = self.workload.size(self.group.position.extent)
        narrowest = min(store.tensor.dtype.itemsize for store in self.group.stores)
        return size > 0 and size % width == 0 and narrowest * width <= MAX_PACK_BYTES

    def _default_width(self, widths: Sequence[int]) -> int:
        """Return 16 bytes' worth where the work fills the GPU, and no contract is needed or memory sets the pace."""
        if self._is_strided():
            return 1
        widest = max(store.tensor.dtype.itemsize for store in self.group.stores)
        n_threads, size = self.workload.n_multiprocessors * 512, self.workload.size(self.group.position.extent)
        most = MAX_GATHERED_WIDTH if self._is_gathered() else MAX_PACK_BYTES
        fitting = [
            width
            for width in widths
            if widest * width <= MAX_PACK_BYTES
            and width <= most
            and (divides(width, self.group.position.extent) or size >= self._n_large)
            and size >= n_threads * width
        ]
        return max(fitting, default=1)

    def _is_gathered(self) -> bool:
        """Return True if an element takes several reads that are no part of a pack, as of an interpolation: the lanes
        of a warp then read nearer to each other with few elements each. Bilinear (32, 3, 512, 512) to 224 x 224 took
        30.7 us on an H200 with packs of 4, 27.7 us with 2, and 18.3 and 17.7 us in bf16."""
        single = [access for access in self._single_reads()[0] if not _is_clamped(access)]
        n_results = self.workload.size(self.group.position.extent)
        large = [a for a in single if self.workload.size(a.tensor.n_elements) * MAX_SMALL_SHARE >= n_results]
        return len(large) >= MIN_GATHERED

    def _is_strided(self) -> bool:
        """Return True if neighbouring elements read numbers far apart: packs would spread a warp's reads further.
        Ratios of areas of 4096 by 4096 boxes took 138 us on an H200 with packs of 4, 75 with 2, and 54 without."""
        single, packing = self._single_reads()
        direct = (a for a in single if a.variables <= {packing.pack, packing.lane} and not _is_indirect(a))
        return sum(self._step(access, packing) in STRIDES for access in direct) >= MIN_GATHERED

    def _step(self, access: Access, packing: Packing) -> int:
        """Return the distance of what the first two elements read, at the captured sizes."""
        flat = ravel(access.index, access.tensor.shape)
        first, second = (
            self.workload.size(substitute(flat, {packing.pack: ZERO, packing.lane: as_index(place)}))
            for place in (0, 1)
        )
        return abs(second - first)

    def _single_reads(self) -> tuple[list[Access], Packing]:
        """Return the reads by packs of two that differ within one and are no part of a pack, and the packing."""
        pack = Variable("pack", PROBE_SERIAL, self.group.position.extent)
        packing = Packing(pack, Variable("v", PROBE_SERIAL + 1, as_index(2)), 2)
        scalars = [store.scalar for store in packing.substituted(self.group.stores, self.group.position)]
        packed = set(find_packed(scalars, packing))
        found = [a for a in accesses(*scalars) if packing.lane in a.variables and a.mask is None and a not in packed]
        return found, packing


def _is_indirect(access: Access) -> bool:
    return any(True for index in access.index for _ in indirect_scalars(index))


def _is_clamped(access: Access) -> bool:
    """Return True for a read at a position that whole numbers find, such as that of an interpolation by a power of two:
    neighbours then share their reads, and packs of 4 take 28 instructions for each result, those of 2 take 43."""
    found = [scalar for index in access.index for scalar in indirect_scalars(index)]
    parts = list(nodes(*found))
    return bool(parts) and not any(isinstance(part, Access) or part.dtype.is_floating for part in parts)


def element_comment(schedule: ElementwiseSchedule) -> str:
    """Return the first sentence of the comment above the kernel."""
    if schedule.shares_lines:
        return f"One thread per pack of {schedule.vector} neighbouring elements of {schedule.unroll} lines."
    if schedule.vector == 1:
        return "One thread per element."
    return f"One thread per pack of {schedule.vector} neighbouring elements."


MAX_THREADS = 256


def choose_row_scatter(choices: Choices, kernel: str, group: RowScatterGroup, workload: Workload) -> RowScatterSchedule:
    """Read the knobs of `kernel`: packs of 16 bytes, and as many threads as a row has packs, by default."""
    n_columns = workload.size(group.column.extent)
    read = [a.dtype.itemsize for a in accesses(group.value) if group.column in a.variables]
    widest = max([*read, *(store.tensor.dtype.itemsize for store in group.stores)])
    widths = [width for width in (1, 2, 4, 8) if n_columns % width == 0 and width * widest <= MAX_PACK_BYTES]
    vector = choices.pick_int(f"{kernel}.vector", widths, max(widths), "neighbouring elements per load")
    threads = 32
    while threads < MAX_THREADS and threads * vector < n_columns:
        threads *= 2
    threads = choices.pick_int(f"{kernel}.threads", (32, 64, 128, 256, 512), threads, "threads per block")
    return RowScatterSchedule(threads, vector)
