"""Pick the box of elements of each thread, for elementwise work with loops and for interleaved pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.generate.codegen.elements.boxes import fits_planes, whole_sizes
from kernel_lsp.generate.codegen.kernel import REGISTERS_PER_BLOCK
from kernel_lsp.generate.fusion.groups import ElementwiseGroup
from kernel_lsp.generate.ir.workload import Workload
from kernel_lsp.generate.schedule.box_defaults import default_box
from kernel_lsp.generate.schedule.knobs import Choices
from kernel_lsp.generate.schedule.row_limits import LATE

MIN_PACKED_BOXES = 1 << 19
"""Minimum results of boxes for packs that need a contract: smaller ones take as long as their launch."""
FLAT_THREADS = 256
"""Threads of a block whose boxes need one division, wherever planes begin: in planes a fourth of them is idle. With
constant sizes a convolution of (64, 1, 28, 28) with its pooling took 4.0 us on an H200 in planes, 3.6 so."""

RESIDENT_REGISTERS = 64
"""Minimum registers of a thread for a kernel to name its resident blocks. With that, ptxas has all 18 loads of a
convolution with its pooling in flight, in 62 registers; without, five wait for the others, with 50 registers."""


@dataclass(frozen=True)
class BoxBlocks:
    """Threads of a block of boxes, blocks within planes of the last two axes, packs that need a contract, late eviction
    of what they load, and the minimum resident blocks per SM that the compiler is told, if any."""

    threads: int
    in_planes: bool
    has_packs: bool
    evicts_late: bool
    n_resident: int | None


def choose_box(
    choices: Choices, name: str, group: ElementwiseGroup, boxes: Sequence[tuple[int, ...]], workload: Workload
) -> tuple[int, ...] | None:
    """Pick the elements of a thread, by axis; None where the schedule wants an element per thread."""
    single = (1,) * len(group.shape)
    default = default_box(group, workload, boxes, is_large=_is_large(group, workload)) or single
    by_name = {"x".join(map(str, box)): box for box in (single, *boxes)}
    wanted = "x".join(map(str, default))
    box = by_name[str(choices.pick(f"{name}.box", tuple(by_name), wanted, "elements per thread, by axis"))]
    if box != single:
        return box
    values = (0, 1) if _fitting_threads(group, box, workload) else (0,)
    return box if choices.pick_int(f"{name}.planes", values, 0, "blocks in planes") else None


def choose_box_blocks(
    choices: Choices,
    name: str,
    group: ElementwiseGroup,
    box: tuple[int, ...],
    workload: Workload,
    shared_threads: int | None,
) -> BoxBlocks:
    """Pick the blocks of the kernel `name`. `shared_threads` is their size where groups share a launch."""
    pick, fitting, is_large = choices.pick_int, _fitting_threads(group, box, workload), _is_large(group, workload)
    is_constant = all(size.constant is not None for size in group.shape)
    is_flat = is_constant or (is_large and bool(whole_sizes(group, workload)))
    default = 128 if is_constant else FLAT_THREADS if is_flat else (fitting or [128])[0]
    threads = shared_threads or pick(f"{name}.threads", (64, 128, 256, 512, 1024), default, "per block")
    in_planes = int(threads in fitting and not is_flat)
    planes = pick(f"{name}.planes", (0, 1) if len(box) > 2 else (0,), in_planes, "blocks in planes")
    packs = pick(f"{name}.packs", (0, 1), int(is_large), "rows of boxes and windows are loads of packs")
    evictions = (0, LATE) if is_large and packs else (0,)
    eviction = pick(f"{name}.streaming", evictions, 0, "2: evict packs of windows late")
    fitting_resident = _resident(group, box, workload, threads) if shared_threads is None else 0
    what = "resident blocks per SM; 0: as the compiler likes"
    n_resident = pick(f"{name}.resident", (0, fitting_resident), fitting_resident, what) if fitting_resident else 0
    return BoxBlocks(threads, bool(planes), bool(packs), eviction == LATE, n_resident or None)


def _resident(group: ElementwiseGroup, box: tuple[int, ...], workload: Workload, threads: int) -> int:
    """Return the blocks per SM of a grid of constant size that runs at once with `RESIDENT_REGISTERS` per thread; 0 for
    any other grid."""
    if any(size.constant is None for size in group.shape):
        return 0
    counts = [-(-workload.size(size) // factor) for size, factor in zip(group.shape, box, strict=True)]
    n_blocks = -(-math.prod(counts) // threads)
    n_resident = -(-n_blocks // workload.n_multiprocessors)
    return n_resident if n_resident * threads * RESIDENT_REGISTERS <= REGISTERS_PER_BLOCK else 0


def _is_large(group: ElementwiseGroup, workload: Workload) -> bool:
    return workload.size(group.position.extent) >= MIN_PACKED_BOXES


def _fitting_threads(group: ElementwiseGroup, box: tuple[int, ...], workload: Workload) -> list[int]:
    return [threads for threads in (128, 64) if fits_planes(group, box, workload, threads)]
