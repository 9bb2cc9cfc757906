"""Memory layout of the happens-before check: records per word of memory, thread, block and launch.

Every field is 8 bytes. Times are logical clocks: each block counts the synchronisations and fences of its threads.

Allocate the memory of the race check: per launch and per resident block.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from kernel_lsp.ptx.compile.emitter import EmittedKernel, Site
from kernel_lsp.ptx.compile.native import store64
from kernel_lsp.ptx.races.sites import has_polls, may_signal
from kernel_lsp.ptx.run.buffers import Region
from kernel_lsp.ptx.run.layout import MAX_CLUSTER_BLOCKS, N_BARRIERS, WARP_SIZE

N_WARPS = 32
"""Warps of the largest block."""
TIME_BITS = 28
TIME_MASK = (1 << TIME_BITS) - 1
THREAD_MASK = (1 << 10) - 1
BLOCK_SHIFT = TIME_BITS + 10
BLOCK_BITS = 20
BLOCK_MASK = (1 << BLOCK_BITS) - 1
WARP_IN_STAMP = ((1 << BLOCK_BITS + 5) - 1) << (TIME_BITS + 5)
"""Mask of the bits of a stamp that identify the warp."""
NOT_THREAD = ~(THREAD_MASK << TIME_BITS)
"""Mask of the bits of a stamp that identify time and block."""
SILENT = 1 << (BLOCK_SHIFT + BLOCK_BITS)
"""Flag in the stamp of a write: it did not change the value."""
STRONG = 1 << (BLOCK_SHIFT + BLOCK_BITS + 1)
"""Flag in a stamp: the access is atomic, volatile or relaxed."""
IN_BLOCK = 1 << (BLOCK_SHIFT + BLOCK_BITS + 2)
"""Flag in a stamp: the access has block scope, so it is strong only for threads of that block."""
LATE_USE = 1 << (BLOCK_SHIFT + BLOCK_BITS + 3)
"""Flag in the stamp of a read: the thread may synchronise before it uses the value."""
BULK = 1 << (BLOCK_SHIFT + BLOCK_BITS + 4)
"""Flag in a stamp: a bulk copy, which accesses memory in the async proxy."""
SITE_BITS = 21
STAMP_SITE_MASK = (1 << SITE_BITS) - 1
MAX_RECORDS = 16
"""Maximum records of one 16-byte access, with one record per byte."""
ANYBODY = -1
"""Stand-in for the thread that saw a signal, where several threads saw it."""


class Record(IntEnum):
    """Record the accesses of a word, or of a byte or half where a kernel accesses those. A stamp packs a time, a thread
    and a block into one number; 0 is no access."""

    WRITE = 0
    """Stamp of the last write."""
    READ = 8
    OTHER_READ = 16
    """Two unordered reads, of different warps where possible."""
    SAME_WRITERS = 24
    """One bit per thread, modulo 61, that rewrote the value of the last write with no access between."""
    SITES = 32
    """Sites of the three accesses, `SITE_BITS` each."""
    SYNC = 40
    """Address of the `Sync` that a reader of the word's value acquires, or 0."""
    WEAK_WRITE = 48
    """Stamp of the last plain write before later strong ones.
    The strong writes do not race with each other, but may race with it."""
    OTHER_WRITE = 56
    """Stamp of a strong write by another thread, before the last strong write and unordered with it."""
    N_BYTES = 64


class Sync(IntEnum):
    """Record the vectors that the last write of a word published, and those of earlier atomic updates."""

    OWNER = 0
    """Block of the last write."""
    VECTOR = 8
    """Vector clock of that block: per thread, the time up to which other blocks may know its accesses. 0 for
    nothing."""
    BLOCK_VECTOR = 16
    """Vector clock for threads of the block itself, where a block-scope fence suffices."""
    TABLE = 24
    """Table of that block: its knowledge of other blocks."""
    OTHERS = 32
    """Vectors that earlier atomic updates published, by block; 0 for none."""
    VERSION = 40
    WRITER = 48
    """Stamp of the write, which identifies a plain store of a flag."""
    N_BYTES = 56


class Known(IntEnum):
    """Describe an entry of a block's table of other blocks."""

    VECTOR = 0
    ACQUIRER = 8
    """Thread and time of the acquisition, or `ANYBODY`."""
    N_BYTES = 16


class Fence(IntEnum):
    """Describe a thread's last fence, or the one before, relative to its place in `RaceThread`."""

    TIME = 0
    WARP = 8
    """Time up to which the thread knew its warp."""
    REST = 16
    """Time up to which the thread knew the rest of its block."""
    N_BYTES = 24


class RaceThread(IntEnum):
    """Record the happens-before state of a thread of the running block.
    State shared by its warp or block is elsewhere."""

    LANES = 0
    WARPS = 8 * WARP_SIZE
    FENCE = WARPS + 8 * N_WARPS
    """Two fences of device scope or wider: the last, and an earlier one that others may have waited for."""
    BLOCK_FENCE = FENCE + 2 * Fence.N_BYTES
    """Two fences of any scope."""
    LAST_SYNC = BLOCK_FENCE + 2 * Fence.N_BYTES
    LAST_VERSION = LAST_SYNC + 8
    LAST_BLOCK = LAST_VERSION + 8
    """Last lookup, cached because a polling thread repeats the same lookup."""
    PROMOTED = LAST_BLOCK + 8
    """Number of signals that the block had seen when its last fence made them order later accesses."""
    CLUSTER_TIME = PROMOTED + 8
    """Time up to which the cluster knows the thread, once its last arrival at the cluster barrier takes effect."""
    PROXY_TIME = CLUSTER_TIME + 8
    """Times up to which proxy fences cover the thread's accesses of shared memory, and of tensors."""
    COPIES_READ = PROXY_TIME + 16
    """Time up to which the thread has waited for its bulk copies, and that of the wait before."""
    COPIES_READ_BEFORE = COPIES_READ + 8
    COPY_WAIT = COPIES_READ_BEFORE + 8
    """Time of the last wait for bulk copies."""
    N_BYTES = COPY_WAIT + 8


class Peer(IntEnum):
    """Describe a block of the cluster, as seen by another."""

    BLOCK = 0
    STATE = 8
    """Address of its `RaceBlock`."""
    VECTOR = 16
    """Vector clock of its threads at the last cluster barrier: the time up to which each is known. 0 before the
    first."""
    N_BYTES = 24


class RaceBlock(IntEnum):
    """Record the happens-before state of the block that runs in an arena."""

    LAUNCH = 0
    NOW = 8
    START = 16
    """Time at which the block started."""
    FLOOR = 24
    """Time up to which every thread knows every other."""
    BLOCK = 32
    N_THREADS = 40
    THREADS = 48
    TABLE = 56
    """Table of other blocks, by block, in effect after a fence; 0 for nothing."""
    PENDING = 64
    """Table of signals that were seen but not yet followed by a fence."""
    N_SEEN = 72
    """Number of signals seen."""
    HAS_LANES = 80
    HAS_WARPS = 88
    """Flag: lanes or warps waited for a subset of the others."""
    HAS_FENCES = 96
    SHARED_RECORDS = 104
    SHARED_RECORD_BYTES = 112
    CACHED_VECTOR = 120
    CACHED_THREAD = 128
    CACHED_TIME = 136
    CACHED_PLACE = 144
    """Vector of fences built last, with its thread, time and scope."""
    STORE_THREAD = 152
    """Thread of the store whose value is not yet known, or 0."""
    STORE_INFO = 160
    STORE_ADDRESS = 168
    STORE_HOST = 176
    STORE_RECORD = 184
    STORE_GRAIN = 192
    STORE_N_RECORDS = 200
    STORE_CONFLICTS = 208
    """One bit per record in which the store is a race if it changes the value."""
    OTHER_STAMP = 216
    OTHER_SITE = 224
    OTHER_IS_READ = 232
    SEES_SIGNAL = 240
    """Description of the race found: the other thread, its place, its access, and whether its signal had been seen."""
    OLD_BYTES = 248
    """Bytes before the store."""
    OLD_WRITES = OLD_BYTES + 16
    OLD_SITES = OLD_WRITES + 8 * MAX_RECORDS
    WARP_FLOORS = OLD_SITES + 8 * MAX_RECORDS
    """Per warp, the time up to which its lanes know each other."""
    BARRIERS = WARP_FLOORS + 8 * N_WARPS
    """Per barrier and warp, the time known by the threads that have arrived."""
    JOINED = BARRIERS + 8 * N_WARPS * N_BARRIERS
    """Scratch space for one row."""
    CLUSTER_VECTOR = JOINED + 8 * N_WARPS
    """Vector clock of this block's threads at the last cluster barrier: the time up to which this block and the others
    know each. 0 before the first."""
    CLUSTER_LATEST = CLUSTER_VECTOR + 8
    """Maximum of these times."""
    CLUSTER_FENCED = CLUSTER_LATEST + 8
    """Time up to which threads that arrived at the cluster barrier knew all others of the block."""
    HAS_NEW_PEERS = CLUSTER_FENCED + 8
    """Flag: the block passed a cluster barrier since its last fence.
    The next fence makes its peers' times publishable."""
    PROXY_FLOOR = HAS_NEW_PEERS + 8
    """Times up to which proxy fences cover all threads' accesses of shared memory, and of tensors."""
    N_PEERS = PROXY_FLOOR + 16
    """Number of blocks of the cluster, this one included; 0 where blocks do not run together."""
    PEERS = N_PEERS + 8
    N_BYTES = PEERS + Peer.N_BYTES * MAX_CLUSTER_BLOCKS


class RaceLaunch(IntEnum):
    """Record the state that the blocks of a launch share."""

    IS_ON = 0
    BUDGET = 8
    """Steps left before the check gives up, which bounds the cost of a long run."""
    NEXT = 16
    END = 24
    """End of the memory for vectors and tables."""
    N_BLOCKS = 32
    FOLLOWS_BLOCKS = 40
    """Flag: the grid is small enough to track happens-before between blocks."""
    SHARED_GRAIN_SHIFT = 48
    GRAIN_SHIFT = 56
    """Base-2 logarithm of the bytes per record, in shared memory and in tensors."""
    VERSION = 64
    HAS_POLLS = 72
    """Flag: the kernel has accesses that may see the signal of a store. Waits for an `mbarrier` do not count."""
    N_BYTES = 80


MAX_GRAIN_BYTES = 4
"""Maximum bytes per record; fewer if a kernel has narrower accesses."""
MAX_FOLLOWED_BLOCKS = 1024
"""Maximum blocks per grid whose signals are tracked.
In larger grids with signals, accesses of other blocks count as ordered."""
MAX_STEPS = 500_000
"""Maximum words checked per launch, at about 50 ns each. Beyond it the check gives up."""
ROOM_BYTES = 64 << 20
"""Bytes reserved for vectors and tables. Untouched memory costs nothing."""


class LaunchRaces:
    """Hold the race records of one watched launch."""

    def __init__(self, kernel: EmittedKernel, n_blocks: int, n_threads: int) -> None:
        self.n_threads = n_threads
        self.shared_shift = _grain_shift(kernel.sites, ("shared", "cluster"))
        self.shift = _grain_shift(kernel.sites, ("global",))
        self.regions = [Region(RaceLaunch.N_BYTES), Region(ROOM_BYTES)]
        launch, room = self.regions
        values = {
            RaceLaunch.IS_ON: int(n_blocks <= BLOCK_MASK),
            RaceLaunch.BUDGET: MAX_STEPS,
            RaceLaunch.NEXT: room.address,
            RaceLaunch.END: room.address + room.n_bytes,
            RaceLaunch.N_BLOCKS: n_blocks,
            RaceLaunch.FOLLOWS_BLOCKS: int(n_blocks <= MAX_FOLLOWED_BLOCKS or not may_signal(kernel.blocks)),
            RaceLaunch.HAS_POLLS: int(has_polls(kernel.blocks)),
            RaceLaunch.SHARED_GRAIN_SHIFT: self.shared_shift,
            RaceLaunch.GRAIN_SHIFT: self.shift,
        }
        for place, value in values.items():
            store64(launch.address + place, value)

    def new_block(self, n_shared_bytes: int) -> int:
        """Allocate empty race records for a new arena, and return their address."""
        n_record_bytes = Record.N_BYTES * ((n_shared_bytes >> self.shared_shift) + 1)
        n_thread_bytes = RaceThread.N_BYTES * self.n_threads
        region = Region(RaceBlock.N_BYTES + n_thread_bytes + n_record_bytes)
        self.regions.append(region)
        state = region.address
        values = {
            RaceBlock.LAUNCH: self.regions[0].address,
            RaceBlock.NOW: 1,
            RaceBlock.N_THREADS: self.n_threads,
            RaceBlock.THREADS: state + RaceBlock.N_BYTES,
            RaceBlock.SHARED_RECORDS: state + RaceBlock.N_BYTES + n_thread_bytes,
            RaceBlock.SHARED_RECORD_BYTES: n_record_bytes,
        }
        for place, value in values.items():
            store64(state + place, value)
        return state

    def record_bytes(self, n_bytes: int) -> int:
        """Return the bytes of memory that the records of a tensor take."""
        return Record.N_BYTES * -(-n_bytes >> self.shift)

    def close(self) -> None:
        for region in self.regions:
            region.close()


def _grain_shift(sites: Iterable[Site], spaces: tuple[str, ...]) -> int:
    """Return the base-2 logarithm of the bytes per record: the width of the narrowest access."""
    sizes = (site.n_bytes for site in sites if site.n_bytes and site.space in (*spaces, "generic"))
    return min(MAX_GRAIN_BYTES, *sizes, MAX_GRAIN_BYTES).bit_length() - 1
