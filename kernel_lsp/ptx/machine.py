"""Runs the steps of a plan on the CPU: fills, and launches block by block."""

from __future__ import annotations

import ctypes
import math
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kernel_lsp.ptx.buffers import AddressTable, Buffer, BufferRequest, Region, open_buffers
from kernel_lsp.ptx.census import Census, LineCensus, census_of
from kernel_lsp.ptx.cluster_shape import cluster_shape, invalid_cluster
from kernel_lsp.ptx.clusters import mapped_registers
from kernel_lsp.ptx.findings import ERROR, WARNING, Fault, FindingLog, MemoryMap, Place, Position, describe
from kernel_lsp.ptx.flow import Block
from kernel_lsp.ptx.jit import CompiledKernel, Compiler, LoadedModule
from kernel_lsp.ptx.layout import (
    FIRST_BUFFER_WINDOW,
    LOCAL_WINDOW,
    MAX_PARAMETER_BYTES,
    N_ACCESS_SIZES,
    PARAM_WINDOW,
    SHARED_WINDOW,
    WARP_SIZE,
    BlockStatus,
    Context,
    EntryFlag,
    FaultKind,
    Info,
    Launch,
    SiteTrace,
    Status,
    Thread,
    window_base,
)
from kernel_lsp.ptx.native import load64, store64
from kernel_lsp.ptx.races import watch_flags
from kernel_lsp.ptx.scheduler import BLOCK_ID_MASK, TRACE_BLOCK
from kernel_lsp.ptx.stillness import BlockMemory, Stillness
from kernel_lsp.ptx.syntax import Instruction, Location, UnsupportedPtxError

ThreadOrder = Literal["forward", "reverse", "random"]
MAX_THREADS_PER_BLOCK = 1024  # every GPU since Fermi
MAX_GRID = (2**31 - 1, 65535, 65535)
MAX_SHARED_BYTES = 227 * 1024  # sm_90
SPINNING_SLICE = 4096
"""Instructions before a thread of a kernel that may wait for others gives way."""
N_SEEN_SLOTS = 1 << 20
"""Requests and sectors that tracing one block can tell apart; past half of it the rest is extrapolated."""
MAX_RESIDENT_BLOCKS = 512
"""Blocks that wait for each other at once; more than any GPU holds of a cooperative launch."""
_SCALAR_FORMATS = {"float": "f", "double": "d", "bool": "?"}


@dataclass(frozen=True)
class RunRequest:
    """One run. `sample` is (number of blocks per launch, seed), or None for all blocks."""

    buffers: tuple[BufferRequest, ...]
    steps: tuple[dict[str, Any], ...]
    sample: tuple[int, int] | None = None
    thread_order: ThreadOrder = "forward"
    seed: int = 0
    n_traced_blocks: int = 2
    max_instructions: int = 10**10
    max_thread_instructions: int = 10**10
    max_findings: int = 20
    may_write_variables: bool = True
    watches_races: bool = False


@dataclass
class LaunchResult:
    """What a launch did. `counters` has the fields of `LaunchCounters`."""

    counters: dict[str, Any]
    n_blocks_run: int
    is_out_of_budget: bool = False


@dataclass
class RunResult:
    """What a run did. `timed_out` says why it was stopped, or is empty."""

    findings: list[dict[str, object]] = field(default_factory=list)
    launches: list[LaunchResult] = field(default_factory=list)
    timed_out: str = ""


class InvalidRequestError(Exception):
    """The request does not fit the module that is loaded. A bug of the caller."""


def run_steps(compiler: Compiler, loaded: LoadedModule, file_name: str, request: RunRequest) -> RunResult:
    """Run every step in order. Raises OSError for buffers that cannot be mapped, InvalidRequestError, and
    UnsupportedPtxError for a library step."""
    first_window = FIRST_BUFFER_WINDOW + len(loaded.windows)
    keep_written = request.sample is not None
    with open_buffers(list(request.buffers), first_window, keep_written=keep_written) as buffers:
        run = _Run(compiler, loaded, file_name, request, buffers)
        try:
            return run.all_steps()
        finally:
            run.close()


class _Run:
    """The memory of one run: module variables, tensors, and the table of all."""

    def __init__(
        self,
        compiler: Compiler,
        loaded: LoadedModule,
        file_name: str,
        request: RunRequest,
        buffers: dict[str, Buffer],
    ) -> None:
        self.compiler, self.loaded, self.request, self.buffers = compiler, loaded, request, buffers
        self.log = FindingLog(loaded.module, file_name, request.max_findings)
        self.table = AddressTable()
        self.regions: list[Region] = []
        self.variables: dict[int, tuple[str, int]] = {}
        self.has_sampled = False
        self.budget = request.max_instructions
        self._place_variables()

    def all_steps(self) -> RunResult:
        result = RunResult()
        for step in self.request.steps:
            if step["kind"] == "fill":
                self.buffers[step["tensor"]].fill(step["value"])
            elif step["kind"] == "launch":
                launch = _Launch(self, step)
                try:
                    result.launches.append(launch.run())
                finally:
                    launch.close()
                if result.launches[-1].is_out_of_budget:
                    n_allowed = self.request.max_instructions
                    result.timed_out = f"{step['kernel']} did not end within {n_allowed} instructions"
                    break
            else:
                raise UnsupportedPtxError(f"a step of kind '{step['kind']}'")
        result.findings = self.log.as_json()
        return result

    def new_region(self, n_bytes: int) -> Region:
        self.regions.append(Region(n_bytes))
        return self.regions[-1]

    def close(self) -> None:
        for region in self.regions:
            region.close()
        self.table.close()

    def show_buffers(self, watch: int) -> None:
        """Bring the table up to date with what is initialised. `watch` are the flags of what is watched for races."""
        for buffer in self.buffers.values():
            self.table.set_buffer(buffer, is_initialised=buffer.look_whether_initialised(), watch=watch)

    def _place_variables(self) -> None:
        """Module variables start each run with their initial values."""
        for variable in self.loaded.module.variables:
            if variable.name not in self.loaded.windows:
                continue
            window = self.loaded.windows[variable.name]
            data, shadow = self.new_region(variable.n_bytes), self.new_region(variable.n_bytes)
            data.memory[: len(variable.initial)] = variable.initial
            for offset, symbol in variable.references:
                address = window_base(self.loaded.windows[symbol.name]) + symbol.offset
                data.memory[offset : offset + 8] = struct.pack("<Q", address)
            flags = 0 if self.request.may_write_variables else int(EntryFlag.READ_ONLY)
            self.table.set(window, window_base(window), data.address, shadow.address, variable.n_bytes, flags)
            self.variables[window] = (variable.name, variable.n_bytes)


@dataclass
class _Arena:
    """The memory of one resident block: context, launch record, threads, local and shared memory."""

    region: Region
    context: int
    launch: int
    threads: int
    shared: int
    shadow: int


class _Launch:
    """One launch. Blocks run one after the other in one arena; a block that only spins is parked with its arena. The
    blocks of a cluster run together, each in an arena of its own: a *group* is a block, or a cluster."""

    def __init__(self, run: _Run, step: dict[str, Any]) -> None:
        self.run_state, self.step = run, step
        self.kernel = _find_kernel(run.loaded, step)
        self.emitted = self.kernel.emitted
        self.grid, self.block = tuple(step["grid"]), tuple(step["block"])
        self.n_threads = math.prod(self.block)
        self.n_blocks = math.prod(self.grid)
        self.function = run.loaded.module.functions[self.emitted.name]
        self.attributes = dict(step.get("attributes") or {})
        self.cluster = cluster_shape(self.function, self.attributes)
        self.is_clustered = self.emitted.uses_clusters or self.cluster.n_blocks > 1
        self.n_shared = self.emitted.shared.n_static_bytes + step["shared_bytes"]
        self.counts = (ctypes.c_int64 * len(self.emitted.blocks))()
        self.warnings = (ctypes.c_int64 * (2 * len(self.emitted.sites) + 2))()
        self.site_traces = (ctypes.c_int64 * (SiteTrace.N_BYTES // 8 * (len(self.emitted.sites) + 1)))()
        self.regions: list[Region] = []
        self.n_skipped = 0
        self.max_per_thread = 0
        self.n_traced_blocks = 0
        self.trace_totals = [0, 0, 0, 0]

    def run(self) -> LaunchResult:
        problem = _invalid_launch(self)
        if problem:
            self._note_invalid(problem)
            return LaunchResult(self._counters(0), 0)
        if self.n_blocks == 0 or self.n_threads == 0:
            return LaunchResult(self._counters(0), 0)
        self._prepare()
        size = self.cluster.n_blocks
        chosen = _choose_groups(self.n_blocks // size, size, self.run_state.request)
        if not self.emitted.can_spin:  # a block may wait for one with a lower number, which GPUs start first
            chosen = _in_order(chosen, self.run_state.request)
        is_over = self._run_groups(self._queue(chosen))
        self._note_warnings()
        n_run = (len(chosen) - self.n_skipped) * size
        self.run_state.has_sampled |= len(chosen) * size < self.n_blocks
        return LaunchResult(self._counters(n_run), n_run, is_over)

    def close(self) -> None:
        if self.is_clustered:
            self.run_state.table.hide_cluster()
        for region in self.regions:
            region.close()

    # memory

    def _prepare(self) -> None:
        run = self.run_state
        is_watched = run.request.watches_races and not self.is_clustered
        run.show_buffers(watch_flags(self.emitted.blocks) if is_watched else 0)
        size = self.cluster.n_blocks
        self.parameters = _pack_parameters(self.kernel, self.step, run.buffers)
        self.orders = _orders(run.request, self.n_threads)
        self.scratch = self._region(self.emitted.n_local_bytes + 16)
        self.rank_order = (ctypes.c_int64 * size)(*_in_order(range(size), run.request))
        self.seen = [self._region(8 * N_SEEN_SLOTS) for _ in range(size)]
        n_occurrence_bytes = 8 * len(self.emitted.sites) * self.n_threads + 8
        self.occurrences = [self._region(n_occurrence_bytes) for _ in range(size)]
        self.memory_map = MemoryMap(
            {buffer.window: buffer for buffer in run.buffers.values()},
            run.variables,
            self.n_shared,
            self.emitted.n_local_bytes,
            size if self.is_clustered else 0,
        )

    def _region(self, n_bytes: int) -> Region:
        self.regions.append(Region(n_bytes))
        return self.regions[-1]

    def _new_group(self) -> tuple[_Arena, ...]:
        """The memory of a block, or of all blocks of a cluster."""
        size = self.cluster.n_blocks
        arenas = tuple(self._new_arena(rank) for rank in range(size))
        lead = arenas[0].context
        contexts = self._region(8 * size)
        for rank, arena in enumerate(arenas):
            store64(contexts.address + 8 * rank, arena.context)
        store64(lead + Context.CLUSTER_CONTEXTS, contexts.address)
        store64(lead + Context.CLUSTER_N_BLOCKS, size)
        store64(lead + Context.CLUSTER_ORDER, ctypes.addressof(self.rank_order))
        return arenas

    def _new_arena(self, rank: int) -> _Arena:
        """Lay out and initialise the memory of one resident block."""
        emitted = self.emitted
        sizes = (
            int(Context.N_BYTES),
            Launch.PARAMETERS + len(self.parameters),
            emitted.n_frame_bytes * self.n_threads,
            emitted.n_local_bytes * self.n_threads,
            self.n_shared,
            self.n_shared,
        )
        starts, total = [], 0
        for size in sizes:
            starts.append(total)
            total += -(-size // 64) * 64 + 64
        region = self._region(total)
        context, launch, threads, local, shared, shadow = (region.address + start for start in starts)
        arena = _Arena(region, context, launch, threads, shared, shadow)
        self._write_context(arena, rank)
        store64(context + Context.LOCAL_BASE, local)
        self._write_launch(arena, rank)
        _native(self.run_state.compiler.number_threads)(context)
        return arena

    def _write_context(self, arena: _Arena, rank: int) -> None:
        run, context = self.run_state, arena.context
        lanes, warps = self.orders
        warning_places = ctypes.addressof(self.warnings) + 8 * (len(self.emitted.sites) + 1)
        values = {
            Context.FUNCTION: self.kernel.address,
            Context.COUNTS: ctypes.addressof(self.counts),
            Context.LAUNCH: arena.launch,
            Context.THREADS: arena.threads,
            Context.THREAD_STRIDE: self.emitted.n_frame_bytes,
            Context.N_THREADS: self.n_threads,
            Context.LANE_ORDER: ctypes.addressof(lanes),
            Context.WARP_ORDER: ctypes.addressof(warps),
            Context.FAST_TABLE: run.table.fast_address,
            Context.TRACED_TABLE: run.table.traced_address,
            Context.TABLE: run.table.fast_address,
            Context.SLICE: SPINNING_SLICE if self.emitted.can_spin else run.request.max_thread_instructions,
            Context.LOCAL_BYTES: self.emitted.n_local_bytes,
            Context.CAN_SPIN: int(self.emitted.can_spin),
            Context.MAY_PARK: 1,
            Context.WARNING_COUNTS: ctypes.addressof(self.warnings),
            Context.WARNING_PLACES: warning_places,
            Context.OCCURRENCES: self.occurrences[rank].address,
            Context.OCCURRENCE_BYTES: self.occurrences[rank].n_bytes,
            Context.SEEN: self.seen[rank].address,
            Context.SITE_TRACES: ctypes.addressof(self.site_traces),
            Context.SEEN_MASK: N_SEEN_SLOTS - 1,
        }
        for place, value in values.items():
            store64(context + place, value)

    def _write_launch(self, arena: _Arena, rank: int) -> None:
        launch = arena.launch
        for axis in range(3):
            store64(launch + Launch.NCTAID_X + 8 * axis, self.grid[axis])
            store64(launch + Launch.NTID_X + 8 * axis, self.block[axis])
            store64(launch + Launch.CLUSTER_NCTAID_X + 8 * axis, self.cluster.sizes[axis])
            store64(launch + Launch.NCLUSTERID_X + 8 * axis, self.grid[axis] // self.cluster.sizes[axis])
        store64(launch + Launch.CLUSTER_RANK, rank)
        store64(launch + Launch.CLUSTER_N_BLOCKS, self.cluster.n_blocks)
        store64(launch + Launch.IS_EXPLICIT_CLUSTER, int(self.cluster.is_explicit))
        store64(launch + Launch.SHARED_HOST, arena.shared)
        store64(launch + Launch.SHARED_SHADOW, arena.shadow)
        store64(launch + Launch.SHARED_BYTES, self.n_shared)
        store64(launch + Launch.DYNAMIC_SHARED_BYTES, self.step["shared_bytes"])
        for log2 in range(N_ACCESS_SIZES):
            store64(launch + Launch.SHARED_LIMITS + 8 * log2, max(0, self.n_shared - (1 << log2) + 1))
        ctypes.memmove(launch + Launch.PARAMETERS, self.parameters, len(self.parameters))

    def _enter(self, group: tuple[_Arena, ...]) -> None:
        """Make the memory of the group's first block what the table shows."""
        arena = group[0]
        table = self.run_state.table
        table.set(SHARED_WINDOW, window_base(SHARED_WINDOW), arena.shared, arena.shadow, self.n_shared, 0)
        n_local, scratch = self.emitted.n_local_bytes, self.scratch.address
        table.set(LOCAL_WINDOW, window_base(LOCAL_WINDOW), 0, scratch, n_local, 0)
        parameters = arena.launch + Launch.PARAMETERS
        table.set(PARAM_WINDOW, window_base(PARAM_WINDOW), parameters, 0, len(self.parameters), 1)
        store64(arena.context + Context.BUDGET, self.run_state.budget)

    def _leave(self, group: tuple[_Arena, ...]) -> None:
        self.run_state.budget = load64(group[0].context + Context.BUDGET)
        for arena in group:
            self.max_per_thread = max(self.max_per_thread, load64(arena.context + Context.MAX_PER_THREAD))
            for index, place in enumerate(_TRACE_COUNTERS):
                self.trace_totals[index] += load64(arena.context + place)
                store64(arena.context + place, 0)

    # blocks

    def _queue(self, chosen: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
        """The groups to run; those to trace are marked."""
        n_wanted = -(-self.run_state.request.n_traced_blocks // self.cluster.n_blocks)
        wanted = min(n_wanted, len(chosen))
        traced = {index * len(chosen) // wanted for index in range(wanted)} if wanted else set()
        self.n_traced_blocks = len(traced) * self.cluster.n_blocks
        entries = [block | (TRACE_BLOCK if index in traced else 0) for index, block in enumerate(chosen)]
        return (ctypes.c_int64 * len(entries))(*entries)

    def _run_groups(self, queue: ctypes.Array[ctypes.c_int64]) -> bool:
        """Run them all. Returns whether the instruction budget ran out."""
        compiler = self.run_state.compiler
        run_queue = _native(compiler.run_cluster_queue if self.is_clustered else compiler.run_queue)
        parked: list[tuple[_Arena, ...]] = []
        group = self._new_group()
        cursor = 0
        while cursor < len(queue) and not self.run_state.log.is_full:
            lead = group[0].context
            store64(lead + Context.BLOCKS, ctypes.addressof(queue))
            store64(lead + Context.N_BLOCKS, len(queue))
            store64(lead + Context.CURSOR, cursor)
            self._enter(group)
            status = run_queue(lead)
            self._leave(group)
            if status == BlockStatus.OUT_OF_BUDGET:
                self._note_endless(group)
                return True
            cursor = load64(lead + Context.CURSOR) + (status != BlockStatus.DONE)
            if status == BlockStatus.PARKED:
                parked.append(group)
                if len(parked) * len(group) >= MAX_RESIDENT_BLOCKS and self._run_parked(parked):
                    return True
                group = self._new_group()
            else:
                self._note(group, status)
        self.n_skipped += len(queue) - cursor if cursor < len(queue) else 0
        stillness = Stillness(tuple(self.run_state.buffers.values()), self.n_threads, self.emitted.n_frame_bytes)
        while parked and not self.run_state.log.is_full:
            if self._run_parked(parked):
                return True
            if not self.is_clustered and stillness.has_come_back(_memories(parked)):
                self._note_still(parked)
                return False
        return False

    def _run_parked(self, parked: list[tuple[_Arena, ...]]) -> bool:
        """Give each parked group a turn. Returns whether the budget ran out."""
        compiler = self.run_state.compiler
        run_group = _native(compiler.run_cluster if self.is_clustered else compiler.run_block)
        for group in list(parked):
            self._enter(group)
            status = run_group(group[0].context)
            self._leave(group)
            if status == BlockStatus.OUT_OF_BUDGET:
                return True
            if status != BlockStatus.PARKED:
                parked.remove(group)
                self._note(group, status)
        return False

    # findings

    def _note(self, group: tuple[_Arena, ...], status: int) -> None:
        if status == BlockStatus.CLUSTER_DEADLOCK:
            self._note_deadlock(group)
        elif status in (BlockStatus.FAULT, BlockStatus.DEADLOCK):
            failed = load64(group[0].context + Context.CLUSTER_FAILED)
            arena = next((arena for arena in group if arena.context == failed), group[0])
            if status == BlockStatus.FAULT:
                self._note_fault(arena)
            else:
                self._note_deadlock((arena,))

    def _note_fault(self, arena: _Arena) -> None:
        context = arena.context
        kind = FaultKind(load64(context + Context.FAULT_KIND))
        if kind == FaultKind.UNINITIALISED and self.run_state.has_sampled:
            # What it reads may be the work of a block that was not chosen to run: nothing can be said of this block.
            self.n_skipped += 1
            return
        site = self.emitted.sites[load64(context + Context.FAULT_INFO) & Info.SITE_MASK]
        code, message = describe(Fault(kind, site, load64(context + Context.FAULT_ADDRESS)), self.memory_map)
        place = self._place(load64(context + Context.BLOCK), load64(context + Context.FAULT_THREAD))
        self.run_state.log.add(code, message, site.instruction.location, place)

    def _note_still(self, parked: Sequence[tuple[_Arena, ...]]) -> None:
        """All that have not ended wait for what none of them will do."""
        if self.run_state.request.sample is not None:
            # It may be the work of a block that was not chosen to run: nothing can be said of these.
            self.n_skipped += sum(map(len, parked))
            return
        waiting = [
            (arena, thread)
            for group in parked
            for arena in group
            for thread in self._threads(arena)
            if _status(thread) == Status.RUNNABLE  # they have been given more fuel
        ]
        if waiting:
            arena, thread = waiting[0]
            instruction = self.emitted.yields[load64(thread + Thread.RESUME) - 1]
            message = (
                f"waits forever: {len(waiting)} threads of {len(parked)} blocks look for a change that nobody makes"
            )
            place = self._place(load64(arena.context + Context.BLOCK), thread)
            self.run_state.log.add("endless-wait", message, instruction.location if instruction else None, place)

    def _note_endless(self, group: tuple[_Arena, ...]) -> None:
        """The thread that has run as much as one may, if that is why the launch was stopped."""
        allowed = self.run_state.request.max_thread_instructions
        for arena in () if self.emitted.can_spin else group:
            for thread in self._threads(arena):
                # One that came late, when little was left for the launch, was given less.
                if _status(thread) == Status.OUT_OF_FUEL and load64(thread + Thread.FUEL_GIVEN) == allowed:
                    location = _last_location(self.emitted.blocks[load64(thread + Thread.OPERATION)])
                    place = self._place(load64(arena.context + Context.BLOCK), thread)
                    message = f"one thread has run {allowed} instructions and finds no end"
                    self.run_state.log.add("no-end", message, location, place)
                    return

    def _threads(self, arena: _Arena) -> range:
        """The addresses of their records."""
        stride = self.emitted.n_frame_bytes
        return range(arena.threads, arena.threads + stride * self.n_threads, stride)

    def _note_deadlock(self, arenas: tuple[_Arena, ...]) -> None:
        """No thread of these blocks can go on. The place is that of one at the barrier of the cluster, if any is."""
        threads = [(arena, thread, _status(thread)) for arena in arenas for thread in self._threads(arena)]
        waiting = [one for one in threads if one[2] in (Status.CLUSTER, Status.BARRIER, Status.WARP)]
        arena, first, _ = next((one for one in waiting if one[2] == Status.CLUSTER), waiting[0])
        instruction = self.emitted.yields[load64(first + Thread.RESUME) - 1]
        message = _describe_deadlock([status for *_, status in threads], len(arenas))
        place = self._place(load64(arena.context + Context.BLOCK), first)
        location = instruction.location if instruction is not None else None
        self.run_state.log.add("barrier-deadlock", message, location, place)

    def _note_warnings(self) -> None:
        """Reads of shared memory that nothing had written."""
        n_sites = len(self.emitted.sites)
        for index, site in enumerate(self.emitted.sites):
            count = self.warnings[index]
            if count:
                packed = self.warnings[n_sites + 1 + index]
                place = Place(self.step["kernel"], self._block_position(packed >> 16), self._tid(packed & 0xFFFF))
                message = f"reads {site.n_bytes} bytes of shared memory that nothing has written"
                location = site.instruction.location
                self.run_state.log.add(
                    "uninitialized-read", message, location, place, severity=WARNING, n_occurrences=count
                )

    def _note_invalid(self, problem: str) -> None:
        place = Place(self.step["kernel"], (0, 0, 0), (0, 0, 0))
        self.run_state.log.add("invalid-launch", problem, None, place, severity=ERROR)

    def _place(self, block: int, thread: int) -> Place:
        return Place(self.step["kernel"], self._block_position(block), self._tid(load64(thread + Thread.INDEX)))

    def _block_position(self, block: int) -> Position:
        block &= BLOCK_ID_MASK
        return block % self.grid[0], block // self.grid[0] % self.grid[1], block // (self.grid[0] * self.grid[1])

    def _tid(self, index: int) -> Position:
        width, height = self.block[0], self.block[1]
        return index % width, index // width % height, index // (width * height)

    # counters

    def _counters(self, n_run: int) -> dict[str, Any]:
        total, mapped = Census(), mapped_registers(self.emitted.blocks)
        for block, count in zip(self.emitted.blocks, self.counts, strict=True):
            if count:
                total.add(census_of(block, mapped), count)
        n_requests, n_sectors, n_traced, n_untraced = self.trace_totals
        scale = (n_traced + n_untraced) / n_traced if n_traced else 1.0
        return {
            "kernel": self.step["kernel"],
            "n_blocks": self.n_blocks,
            "n_blocks_run": n_run,
            "n_blocks_traced": self.n_traced_blocks,
            "n_threads_per_block": self.n_threads,
            **vars(total),
            "n_global_requests": round(n_requests * scale),
            "n_global_sectors": round(n_sectors * scale),
            "max_instructions_per_thread": self.max_per_thread,
            "lines": self._line_counters() if self.n_traced_blocks else [],
        }

    def _line_counters(self) -> list[dict[str, int]]:
        """What each line of the user's file did, in its order. What was inlined counts where it was called."""
        counters: dict[int, LineCensus] = {}
        for block, count in zip(self.emitted.blocks, self.counts, strict=True):
            for instruction in (*block.instructions, block.terminator) if count else ():
                line = self._user_line(instruction)
                if line is not None:
                    counters.setdefault(line, LineCensus()).n_instructions += count
        for index, site in enumerate(self.emitted.sites):
            line = self._user_line(site.instruction)
            if line is not None and line in counters:
                counters[line].add_site(self.site_traces[3 * index : 3 * index + 3], site.n_bytes)
        return [{"line": line, **vars(census)} for line, census in sorted(counters.items())]

    def _user_line(self, instruction: Instruction | None) -> int | None:
        location = instruction.location if instruction is not None else None
        return self.run_state.log.user_line(location)[0]


# --- below


def _native(address: int) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)


_TRACE_COUNTERS = (Context.N_REQUESTS, Context.N_SECTORS, Context.N_TRACED, Context.N_UNTRACED)


def _memories(groups: Sequence[tuple[_Arena, ...]]) -> list[BlockMemory]:
    return [BlockMemory(arena.region, arena.context, arena.threads) for group in groups for arena in group]


def _status(thread: int) -> Status:
    return Status(load64(thread + Thread.STATUS))


def _last_location(block: Block) -> Location | None:
    instructions = (*block.instructions, block.terminator)[::-1]
    return next((one.location for one in instructions if one is not None and one.location is not None), None)


def _describe_deadlock(statuses: Sequence[Status], n_blocks: int) -> str:
    n_at_barrier, n_at_cluster = statuses.count(Status.BARRIER), statuses.count(Status.CLUSTER)
    n_in_warp = statuses.count(Status.WARP)
    whose = f" of {n_blocks} blocks" if n_blocks > 1 else ""
    parts = [f"waits forever: of {len(statuses)} threads{whose}, {n_at_barrier} are at a barrier"]
    if n_at_cluster:
        parts.append(f"{n_at_cluster} at the barrier of the cluster")
    if n_in_warp:
        parts.append(f"{n_in_warp} wait for lanes of their warp")
    n_ended = len(statuses) - n_at_barrier - n_at_cluster - n_in_warp
    return f"{', '.join(parts)} and {n_ended} have ended"


def _find_kernel(loaded: LoadedModule, step: dict[str, Any]) -> CompiledKernel:
    symbol = step.get("symbol") or step["kernel"]
    if symbol not in loaded.kernels:
        raise InvalidRequestError(f"no kernel '{symbol}' in the module; it has {', '.join(loaded.kernels) or 'none'}")
    return loaded.kernels[symbol]


def _invalid_launch(launch: _Launch) -> str:
    """Why the GPU would refuse the launch, or nothing."""
    allowed = launch.function.max_threads or MAX_THREADS_PER_BLOCK
    if launch.n_threads > min(allowed, MAX_THREADS_PER_BLOCK):
        return f"a block of {launch.n_threads} threads; this kernel allows {min(allowed, MAX_THREADS_PER_BLOCK)}"
    if any(size > limit for size, limit in zip(launch.grid, MAX_GRID, strict=True)):
        return f"a grid of {launch.grid} blocks; the limit is {MAX_GRID}"
    if launch.n_shared > MAX_SHARED_BYTES:
        return f"{launch.n_shared} bytes of shared memory; a block can have {MAX_SHARED_BYTES}"
    return invalid_cluster(launch.function, launch.attributes, launch.grid)


def _choose_groups(n_groups: int, group_size: int, request: RunRequest) -> Sequence[int]:
    """All groups of blocks, or the first, the last, and random ones between them: as many as hold the sample."""
    wanted = -(-request.sample[0] // group_size) if request.sample else n_groups
    if request.sample is None or wanted >= n_groups:
        return range(n_groups)
    chosen = {0, n_groups - 1}
    for first in random.Random(request.sample[1]).sample(range(n_groups), wanted):
        # In pairs: neighbours that write the same would look like two that do their work.
        for group in (first, min(first + 1, n_groups - 1)):
            if len(chosen) < wanted:
                chosen.add(group)
    return sorted(chosen)


def _in_order(blocks: Sequence[int], request: RunRequest) -> Sequence[int]:
    """Nothing says in which order blocks run."""
    if request.thread_order == "reverse":
        return blocks[::-1]
    if request.thread_order == "random":
        return random.Random(request.seed).sample(blocks, len(blocks))
    return blocks


def _orders(request: RunRequest, n_threads: int) -> tuple[ctypes.Array[ctypes.c_int64], ctypes.Array[ctypes.c_int64]]:
    """The order in which lanes of a warp, and warps of a block, get their turns."""
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


def _pack_parameters(kernel: CompiledKernel, step: dict[str, Any], buffers: dict[str, Buffer]) -> bytes:
    """The parameter memory of a launch. Raises InvalidRequestError when the arguments do not fit."""
    expected = kernel.emitted.parameters
    if len(expected) != len(step["arguments"]):
        raise InvalidRequestError(f"{step['kernel']} has {len(expected)} parameters, not {len(step['arguments'])}")
    packed = bytearray(max(16, kernel.emitted.n_parameter_bytes))
    if len(packed) > MAX_PARAMETER_BYTES:
        raise InvalidRequestError(f"more than {MAX_PARAMETER_BYTES} bytes of parameters")
    for (offset, variable), argument in zip(expected, step["arguments"], strict=True):
        data = _encode_argument(argument, variable.n_bytes, buffers)
        if len(data) != variable.n_bytes:
            raise InvalidRequestError(f"{argument} has {len(data)} bytes; the parameter has {variable.n_bytes}")
        packed[offset : offset + len(data)] = data
    return bytes(packed)


def _encode_argument(argument: dict[str, Any], n_bytes: int, buffers: dict[str, Buffer]) -> bytes:
    if argument["kind"] == "tensor":
        return struct.pack("<Q", buffers[argument["tensor"]].base)
    value = argument["value"]
    code = _SCALAR_FORMATS.get(argument["cuda_type"].replace("const ", "").strip())
    if code == "f" and abs(value) > 3.4028235677973366e38 and math.isfinite(value):
        value = math.copysign(math.inf, value)
    if code is not None:
        return struct.pack("<" + code, value)
    return (int(value) & ((1 << 8 * n_bytes) - 1)).to_bytes(n_bytes, "little")
