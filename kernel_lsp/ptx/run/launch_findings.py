"""Turn the faults that stopped the blocks of a launch into findings: thread, place and message."""

from __future__ import annotations

from collections.abc import Sequence

from kernel_lsp.ptx.analysis.kernel_traits import waits_for_grid
from kernel_lsp.ptx.checks.findings import (
    ERROR,
    WARNING,
    Fault,
    FindingLog,
    MemoryMap,
    Other,
    Place,
    Position,
    describe,
)
from kernel_lsp.ptx.compile.native import load64
from kernel_lsp.ptx.races.layout import BLOCK_MASK, BLOCK_SHIFT, THREAD_MASK, TIME_BITS, Peer, RaceBlock
from kernel_lsp.ptx.run.arena import Arena
from kernel_lsp.ptx.run.launch_counters import Tallies
from kernel_lsp.ptx.run.launch_setup import LaunchSetup
from kernel_lsp.ptx.run.layout import WARP_SIZE, BlockStatus, Context, FaultKind, Info, Status, Thread
from kernel_lsp.ptx.run.scheduler import BLOCK_ID_MASK
from kernel_lsp.ptx.text.flow import Block
from kernel_lsp.ptx.text.syntax import Instruction, Location

RACES = (
    *(FaultKind.RACE_OF_BLOCKS, FaultKind.RACE_OF_THREADS, FaultKind.STALE_READ),
    *(FaultKind.PROXY, FaultKind.SOURCE_IN_USE),
)
"""Faults that involve two threads."""


class LaunchFindings:
    """Write the findings of one launch to the log of its run."""

    def __init__(self, log: FindingLog, setup: LaunchSetup) -> None:
        self.log, self.setup, self.emitted = log, setup, setup.emitted

    def note_invalid(self, problem: str) -> None:
        """Report a launch that a GPU would refuse."""
        place = Place(self.setup.name, (0, 0, 0), (0, 0, 0))
        self.log.add("invalid-launch", problem, None, place, severity=ERROR)

    def note_end(self, group: tuple[Arena, ...], status: int, memory: MemoryMap, *, was_sampled: bool) -> int:
        """Report why a group of blocks stopped. Returns the number of groups without a verdict: 1 when the group read
        uninitialised memory and earlier launches were sampled."""
        if status == BlockStatus.CLUSTER_DEADLOCK:
            self._note_deadlock(group)
        elif status in (BlockStatus.FAULT, BlockStatus.DEADLOCK):
            failed = load64(group[0].context + Context.CLUSTER_FAILED)
            arena = next((arena for arena in group if arena.context == failed), group[0])
            if status == BlockStatus.DEADLOCK:
                self._note_deadlock((arena,))
            elif was_sampled and load64(arena.context + Context.FAULT_KIND) == FaultKind.UNINITIALISED:
                # The read may depend on a block outside the sample, so this group gives no verdict.
                return 1
            else:
                self._note_fault(arena, memory)
        return 0

    def note_still(self, parked: Sequence[tuple[Arena, ...]], n_of: int) -> None:
        """Report a livelock: all live threads wait for an event that none of them will cause. In a grid of `n_of`
        blocks others have not started; 0 if all have."""
        waiting = [
            (arena, thread)
            for group in parked
            for arena in group
            for thread in self._threads(arena)
            if _status(thread) == Status.RUNNABLE  # they have been given more fuel
        ]
        if waiting:
            arena, thread = waiting[0]
            message = (
                f"waits forever: {len(waiting)} threads of {len(parked)} blocks look for a change that nobody makes"
            )
            if n_of:
                message += (
                    f": the others of its {n_of} start when these end. A grid that is larger than what a GPU runs at"
                    " once may only wait for blocks that have started before, by a ticket or by their number"
                )
            self.log.add("endless-wait", message, self._stopped_at(thread), self._place(arena, thread))

    def note_endless(self, group: tuple[Arena, ...], allowed: int) -> None:
        """Report the thread that reached its instruction limit, if that limit stopped the launch."""
        for arena in () if self.emitted.can_spin else group:
            for thread in self._threads(arena):
                # A late thread had less fuel, because little of the launch's budget was left.
                if _status(thread) == Status.OUT_OF_FUEL and load64(thread + Thread.FUEL_GIVEN) == allowed:
                    location = _last_location(self.emitted.blocks[load64(thread + Thread.OPERATION)])
                    message = f"one thread has run {allowed} instructions and finds no end"
                    self.log.add("no-end", message, location, self._place(arena, thread))
                    return

    def note_warnings(self, tallies: Tallies) -> None:
        """Report reads of uninitialised shared memory."""
        for index, site in enumerate(self.emitted.sites):
            count = tallies.warnings[index]
            if count:
                packed = tallies.first_reader(index)
                place = Place(self.setup.name, self._block_position(packed >> 16), self._tid(packed & 0xFFFF))
                message = f"reads {site.n_bytes} bytes of shared memory that nothing has written"
                location = site.instruction.location
                self.log.add("uninitialized-read", message, location, place, severity=WARNING, n_occurrences=count)

    def user_line(self, instruction: Instruction | None) -> int | None:
        location = instruction.location if instruction is not None else None
        return self.log.user_line(location)[0]

    def _note_fault(self, arena: Arena, memory: MemoryMap) -> None:
        context = arena.context
        kind = FaultKind(load64(context + Context.FAULT_KIND))
        site = self.emitted.sites[load64(context + Context.FAULT_INFO) & Info.SITE_MASK]
        other = self._other(context) if kind in RACES else None
        code, message = describe(Fault(kind, site, load64(context + Context.FAULT_ADDRESS), other), memory)
        if kind == FaultKind.TRAP and not self.setup.is_cooperative and waits_for_grid(self.emitted.blocks):
            message += "; this_grid().sync() does in a launch without cooperative=1"
        place = self._place(arena, load64(context + Context.FAULT_THREAD))
        self.log.add(code, message, site.instruction.location, place)

    def _other(self, context: int) -> Other:
        """Return the other side of a race."""
        races = load64(context + Context.RACES)
        stamp = load64(races + RaceBlock.OTHER_STAMP)
        site = self.emitted.sites[load64(races + RaceBlock.OTHER_SITE)]
        thread = stamp >> TIME_BITS & THREAD_MASK
        own = load64(load64(context + Context.FAULT_THREAD) + Thread.INDEX)
        return Other(
            block=self._block_position(stamp >> BLOCK_SHIFT & BLOCK_MASK),
            thread=self._tid(thread),
            line=self.user_line(site.instruction),
            verb="read" if load64(races + RaceBlock.OTHER_IS_READ) else "wrote",
            is_of_warp=thread // WARP_SIZE == own // WARP_SIZE,
            sees_signal=load64(races + RaceBlock.SEES_SIGNAL) != 0,
            is_of_cluster=(stamp >> BLOCK_SHIFT & BLOCK_MASK) in _blocks_of_cluster(races),
        )

    def _note_deadlock(self, arenas: tuple[Arena, ...]) -> None:
        """Report a deadlock: no thread of these blocks can proceed.
        The place is that of a thread at the cluster barrier, if any."""
        threads = [(arena, thread, _status(thread)) for arena in arenas for thread in self._threads(arena)]
        waiting = [one for one in threads if one[2] in (Status.CLUSTER, Status.BARRIER, Status.WARP)]
        arena, first, _ = next((one for one in waiting if one[2] == Status.CLUSTER), waiting[0])
        message = _describe_deadlock([status for *_, status in threads], len(arenas))
        self.log.add("barrier-deadlock", message, self._stopped_at(first), self._place(arena, first))

    def _threads(self, arena: Arena) -> range:
        """Return the addresses of the threads' records."""
        stride = self.emitted.n_frame_bytes
        return range(arena.threads, arena.threads + stride * self.setup.n_threads, stride)

    def _stopped_at(self, thread: int) -> Location | None:
        instruction = self.emitted.yields[load64(thread + Thread.RESUME) - 1]
        return instruction.location if instruction is not None else None

    def _place(self, arena: Arena, thread: int) -> Place:
        block = self._block_position(load64(arena.context + Context.BLOCK))
        return Place(self.setup.name, block, self._tid(load64(thread + Thread.INDEX)))

    def _block_position(self, block: int) -> Position:
        block &= BLOCK_ID_MASK
        grid = self.setup.grid
        return block % grid[0], block // grid[0] % grid[1], block // (grid[0] * grid[1])

    def _tid(self, index: int) -> Position:
        width, height = self.setup.block[0], self.setup.block[1]
        return index % width, index // width % height, index // (width * height)


def _blocks_of_cluster(races: int) -> set[int]:
    """Return the numbers of the cluster's blocks; none where blocks do not run together."""
    peers = range(load64(races + RaceBlock.N_PEERS))
    return {load64(races + RaceBlock.PEERS + Peer.N_BYTES * nth + Peer.BLOCK) for nth in peers}


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
