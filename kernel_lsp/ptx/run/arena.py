"""Allocate the memory of resident blocks: context, launch record, threads, local and shared memory."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from dataclasses import dataclass

from kernel_lsp.ptx.checks.livelock import BlockMemory
from kernel_lsp.ptx.compile.native import load64, store64
from kernel_lsp.ptx.races.layout import LaunchRaces, RaceBlock
from kernel_lsp.ptx.run.buffers import AddressTable, Region
from kernel_lsp.ptx.run.launch_counters import Tallies
from kernel_lsp.ptx.run.launch_setup import LaunchSetup
from kernel_lsp.ptx.run.layout import (
    LOCAL_WINDOW,
    N_ACCESS_SIZES,
    PARAM_WINDOW,
    SHARED_WINDOW,
    WARP_SIZE,
    Arrivals,
    Context,
    Launch,
    window_base,
)
from kernel_lsp.ptx.run.run_request import RunRequest

INTERRUPTIONS_OF_A_THREAD = 16
"""Average interruptions per thread of a block: enough for an update that gives up after a few attempts."""
SPINNING_SLICE = 4096
"""Instructions per time slice of a thread in a kernel that may wait for others."""
N_SEEN_SLOTS = 1 << 20
"""Requests and sectors that the trace of one block can distinguish. Beyond half of it, the rest is extrapolated."""


@dataclass(frozen=True)
class Arena:
    """Locate the state of one resident block: addresses in `region`."""

    region: Region
    context: int
    launch: int
    threads: int
    shared: int
    shadow: int

    def memory(self) -> BlockMemory:
        return BlockMemory(self.region, self.context, self.threads)


class Arenas:
    """Allocate the arenas of one launch, and the state that its blocks share: tables, orders, parameters, counters."""

    def __init__(
        self,
        setup: LaunchSetup,
        tallies: Tallies,
        table: AddressTable,
        parameters: bytes,
        orders: Orders,
        rank_order: Sequence[int],
        request: RunRequest,
        races: LaunchRaces | None,
        workspace_address: int,
    ) -> None:
        self.setup, self.tallies, self.table, self.parameters, self.orders = setup, tallies, table, parameters, orders
        self.request, self.races, self.workspace_address = request, races, workspace_address
        self.regions: list[Region] = []
        size = setup.cluster.n_blocks
        self.rank_order = (ctypes.c_int64 * size)(*rank_order)
        gaps = setup.emitted.shared.gaps
        self.gaps = (ctypes.c_int64 * (2 * len(gaps)))(*(number for gap in gaps for number in gap))
        self.scratch = self._region(setup.emitted.n_local_stride + 16)
        self.seen = [self._region(8 * N_SEEN_SLOTS) for _ in range(size)]
        n_occurrence_bytes = 8 * len(setup.emitted.sites) * setup.n_threads + 8
        self.occurrences = [self._region(n_occurrence_bytes) for _ in range(size)]

    def close(self) -> None:
        if self.setup.is_clustered:
            self.table.hide_cluster()
        for region in self.regions:
            region.close()

    def new_group(self) -> tuple[Arena, ...]:
        """Allocate the memory of a block, or of all blocks of a cluster. Its threads are not numbered yet."""
        size = self.setup.cluster.n_blocks
        arenas = tuple(self._new_arena(rank) for rank in range(size))
        lead = arenas[0].context
        contexts = self._region(8 * size)
        for rank, arena in enumerate(arenas):
            store64(contexts.address + 8 * rank, arena.context)
        store64(lead + Context.CLUSTER_CONTEXTS, contexts.address)
        store64(lead + Context.CLUSTER_N_BLOCKS, size)
        store64(lead + Context.CLUSTER_ORDER, ctypes.addressof(self.rank_order))
        return arenas

    def show(self, arena: Arena) -> None:
        """Map the block's shared, local and parameter memory in the address table."""
        shared = window_base(SHARED_WINDOW) + self._shared_start
        races = load64(arena.context + Context.RACES)
        records = load64(races + RaceBlock.SHARED_RECORDS) if races else 0
        self.table.set(SHARED_WINDOW, shared, arena.shared, arena.shadow, self.setup.n_shared, 0, records)
        n_local = self.setup.emitted.local.n_bytes
        self.table.set(LOCAL_WINDOW, window_base(LOCAL_WINDOW), 0, self.scratch.address, n_local, 0)
        parameters = arena.launch + Launch.PARAMETERS
        self.table.set(PARAM_WINDOW, window_base(PARAM_WINDOW), parameters, 0, len(self.parameters), 1)

    @property
    def _shared_start(self) -> int:
        return self.setup.emitted.shared.start(self.request.shared_start)

    def _region(self, n_bytes: int) -> Region:
        self.regions.append(Region(n_bytes))
        return self.regions[-1]

    def _new_arena(self, rank: int) -> Arena:
        """Lay out and initialise the memory of one resident block."""
        emitted, setup = self.setup.emitted, self.setup
        sizes = (
            int(Context.N_BYTES),
            Launch.PARAMETERS + len(self.parameters),
            emitted.n_frame_bytes * setup.n_threads,
            emitted.n_local_stride * setup.n_threads,
            setup.n_shared,
            setup.n_shared,
            int(Arrivals.N_BYTES),
        )
        starts, total = [], 0
        for size in sizes:
            starts.append(total)
            total += -(-size // 64) * 64 + 64
        region = self._region(total)
        context, launch, threads, local, shared, shadow, arrivals = (region.address + start for start in starts)
        arena = Arena(region, context, launch, threads, shared, shadow)
        self._write_context(arena, rank)
        store64(context + Context.LOCAL_BASE, local)
        store64(context + Context.ARRIVALS, arrivals)
        self._write_launch(arena, rank)
        return arena

    def _write_context(self, arena: Arena, rank: int) -> None:
        emitted, table = self.setup.emitted, self.table
        lanes, warps = self.orders
        values = {
            Context.FUNCTION: self.setup.kernel.address,
            Context.COUNTS: ctypes.addressof(self.tallies.counts),
            Context.LAUNCH: arena.launch,
            Context.THREADS: arena.threads,
            Context.THREAD_STRIDE: emitted.n_frame_bytes,
            Context.N_THREADS: self.setup.n_threads,
            Context.LANE_ORDER: ctypes.addressof(lanes),
            Context.WARP_ORDER: ctypes.addressof(warps),
            Context.FAST_TABLE: table.fast_address,
            Context.TRACED_TABLE: table.traced_address,
            Context.TABLE: table.fast_address,
            Context.SLICE: SPINNING_SLICE if emitted.can_spin else self.request.max_thread_instructions,
            Context.LOCAL_BYTES: emitted.n_local_stride,
            Context.CAN_SPIN: int(emitted.can_spin or self._n_interruptions() > 0),
            Context.TURNS_ROUND: int(self.request.interruptions == "in_turns"),
            Context.COMES_BACK: int(emitted.can_spin),
            Context.N_INTERRUPTIONS: self._n_interruptions(),
            Context.MAY_PARK: 1,
            Context.WARNING_COUNTS: ctypes.addressof(self.tallies.warnings),
            Context.WARNING_PLACES: self.tallies.warning_places,
            Context.OCCURRENCES: self.occurrences[rank].address,
            Context.OCCURRENCE_BYTES: self.occurrences[rank].n_bytes,
            Context.SEEN: self.seen[rank].address,
            Context.SITE_TRACES: ctypes.addressof(self.tallies.site_traces),
            Context.SEEN_MASK: N_SEEN_SLOTS - 1,
            Context.SHARED_POISON: self.request.shared_poison,
            Context.LOCAL_POISON: self.request.local_poison,
            Context.KEEPS_APART: int(self.request.keeps_lanes_apart),
            Context.SHARED_GAPS: ctypes.addressof(self.gaps),
            Context.N_SHARED_GAPS: len(self.gaps) // 2,
            Context.RACES: self.races.new_block(self.setup.n_shared) if self.races else 0,
        }
        for place, value in values.items():
            store64(arena.context + place, value)

    def _n_interruptions(self) -> int:
        """Return the interruptions of each block. The blocks of a cluster take turns by their own rules."""
        if self.request.interruptions == "none" or self.setup.is_clustered:
            return 0
        return INTERRUPTIONS_OF_A_THREAD * self.setup.n_threads

    def _write_launch(self, arena: Arena, rank: int) -> None:
        launch, setup = arena.launch, self.setup
        for axis in range(3):
            store64(launch + Launch.NCTAID_X + 8 * axis, setup.grid[axis])
            store64(launch + Launch.NTID_X + 8 * axis, setup.block[axis])
            store64(launch + Launch.CLUSTER_NCTAID_X + 8 * axis, setup.cluster.sizes[axis])
            store64(launch + Launch.NCLUSTERID_X + 8 * axis, setup.grid[axis] // setup.cluster.sizes[axis])
        store64(launch + Launch.CLUSTER_RANK, rank)
        store64(launch + Launch.CLUSTER_N_BLOCKS, setup.cluster.n_blocks)
        store64(launch + Launch.IS_EXPLICIT_CLUSTER, int(setup.cluster.is_explicit))
        store64(launch + Launch.IS_WATCHED, int(self.races is not None))
        store64(launch + Launch.GRID_WORKSPACE, self.workspace_address)
        store64(launch + Launch.SHARED_HOST, arena.shared)
        store64(launch + Launch.SHARED_SHADOW, arena.shadow)
        store64(launch + Launch.SHARED_BYTES, setup.n_shared)
        store64(launch + Launch.SHARED_START, self._shared_start)
        store64(launch + Launch.DYNAMIC_SHARED_BYTES, setup.step["shared_bytes"])
        for log2 in range(N_ACCESS_SIZES):
            limit = 0 if self.races else max(0, setup.n_shared - (1 << log2) + 1)
            store64(launch + Launch.SHARED_LIMITS + 8 * log2, limit)
        ctypes.memmove(launch + Launch.PARAMETERS, self.parameters, len(self.parameters))


Orders = tuple["ctypes.Array[ctypes.c_int64]", "ctypes.Array[ctypes.c_int64]"]
"""Scheduling order of the lanes of a warp, and of the warps of a block."""


def choose_groups(n_groups: int, group_size: int, request: RunRequest) -> Sequence[int]:
    """Return all groups of blocks, or a sample: the groups of the named blocks, or the first, the last and random ones
    between, as many as the sample needs."""
    if request.blocks:
        return sorted({block // group_size for block in request.blocks if block // group_size < n_groups})
    wanted = -(-request.sample[0] // group_size) if request.sample else n_groups
    if request.sample is None or wanted >= n_groups:
        return range(n_groups)
    chosen = {0, n_groups - 1}
    for first in random.Random(request.sample[1]).sample(range(n_groups), wanted):
        # Sample in pairs: two adjacent blocks that both write the same range would otherwise look like disjoint ones.
        for group in (first, min(first + 1, n_groups - 1)):
            if len(chosen) < wanted:
                chosen.add(group)
    return sorted(chosen)


def in_order(blocks: Sequence[int], request: RunRequest) -> Sequence[int]:
    """Return the blocks in the requested order. A GPU guarantees none."""
    if request.thread_order == "reverse":
        return blocks[::-1]
    if request.thread_order == "random":
        return random.Random(request.seed).sample(blocks, len(blocks))
    return blocks


def thread_orders(request: RunRequest, n_threads: int) -> Orders:
    """Return the scheduling order of the lanes of a warp, and of the warps of a block."""
    n_warps = -(-n_threads // WARP_SIZE)
    lanes, warps = list(range(WARP_SIZE)), list(range(n_warps))
    if request.thread_order == "reverse":
        lanes.reverse()
        warps.reverse()
    elif request.thread_order == "random":
        shuffler = random.Random(request.seed)
        shuffler.shuffle(lanes)
        shuffler.shuffle(warps)
    return (ctypes.c_int64 * WARP_SIZE)(*lanes), (ctypes.c_int64 * n_warps)(*warps)
