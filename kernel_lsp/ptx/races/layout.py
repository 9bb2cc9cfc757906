"""Where the happens-before check keeps what it knows: of each word of memory, of each thread, block and launch.

Every field is 8 bytes. Times count, in each block, how often its threads waited for each other or had a fence.
"""

from __future__ import annotations

from enum import IntEnum

from kernel_lsp.ptx.run.layout import MAX_CLUSTER_BLOCKS, N_BARRIERS, WARP_SIZE

N_WARPS = 32
"""Of the largest block."""
TIME_BITS = 30
TIME_MASK = (1 << TIME_BITS) - 1
THREAD_MASK = (1 << 10) - 1
BLOCK_SHIFT = TIME_BITS + 10
BLOCK_BITS = 20
BLOCK_MASK = (1 << BLOCK_BITS) - 1
WARP_IN_STAMP = ((1 << BLOCK_BITS + 5) - 1) << (TIME_BITS + 5)
"""The bits of a stamp that tell warps apart."""
NOT_THREAD = ~(THREAD_MASK << TIME_BITS)
"""The bits of a stamp that say when and in which block."""
SILENT = 1 << (BLOCK_SHIFT + BLOCK_BITS)
"""In a stamp of a write: it left the value that was there."""
STRONG = 1 << (BLOCK_SHIFT + BLOCK_BITS + 1)
"""In a stamp: by an atomic, volatile or relaxed access."""
IN_BLOCK = 1 << (BLOCK_SHIFT + BLOCK_BITS + 2)
"""In a stamp: of the scope of the block, so that it is strong to that block's threads alone."""
SITE_BITS = 21
STAMP_SITE_MASK = (1 << SITE_BITS) - 1
MAX_RECORDS = 16
"""That one access of 16 bytes touches, when each is of one byte."""
ANYBODY = -1
"""In place of the thread that saw a signal: more than one did."""


class Record(IntEnum):
    """What is remembered of a word, or of a byte or half where a kernel accesses those. A stamp is a time, a thread
    and a block in one number; 0 stands for nobody."""

    WRITE = 0
    """The last write."""
    READ = 8
    OTHER_READ = 16
    """Reads that nothing orders, of two warps where there are two."""
    SAME_WRITERS = 24
    """A bit for each thread that wrote the same value over the last write with nothing between, threads modulo 61."""
    SITES = 32
    """Of the three accesses, `SITE_BITS` each."""
    SYNC = 40
    """The address of what a thread that reads the word's value gets to know (`Sync`), or 0."""
    WEAK_WRITE = 48
    """The last plain write, where strong ones came after it, to which each other is no race."""
    OTHER_WRITE = 56
    """A strong write of another thread, before the last strong one and not ordered with it."""
    N_BYTES = 64


class Sync(IntEnum):
    """What the last write of a word published, and the atomic updates before it."""

    OWNER = 0
    """The block that wrote last."""
    VECTOR = 8
    """Per thread of that block, the time up to which other blocks may know its accesses. 0 for nothing."""
    BLOCK_VECTOR = 16
    """The same for threads of the block itself, for which a fence of its scope is enough."""
    TABLE = 24
    """The table of that block: what it knows of others."""
    OTHERS = 32
    """By block, the vectors that earlier atomic updates published; 0 for none."""
    VERSION = 40
    WRITER = 48
    """The stamp of the write, so that a plain store of a flag is known as one."""
    N_BYTES = 56


class Known(IntEnum):
    """An entry of a block's table of others."""

    VECTOR = 0
    ACQUIRER = 8
    """The thread and the time of who got to know it, or `ANYBODY`."""
    N_BYTES = 16


class Fence(IntEnum):
    """A thread's last fence, or the one before, relative to its place in `RaceThread`."""

    TIME = 0
    WARP = 8
    """Up to when the thread knew of its warp."""
    REST = 16
    """Up to when it knew of the rest of its block."""
    N_BYTES = 24


class RaceThread(IntEnum):
    """What a thread of the running block knows of others, beside what all threads of its warp or block know."""

    LANES = 0
    WARPS = 8 * WARP_SIZE
    FENCE = WARPS + 8 * N_WARPS
    """Two of device scope or wider, the last and one before it that others may have waited for."""
    BLOCK_FENCE = FENCE + 2 * Fence.N_BYTES
    """Two of any scope."""
    LAST_SYNC = BLOCK_FENCE + 2 * Fence.N_BYTES
    LAST_VERSION = LAST_SYNC + 8
    LAST_BLOCK = LAST_VERSION + 8
    """What it looked at last: one that polls looks at the same over and over."""
    PROMOTED = LAST_BLOCK + 8
    """The number of signals seen in the block when its last fence made them order what follows."""
    CLUSTER_TIME = PROMOTED + 8
    """Up to when the others of the cluster know the thread once its last arrival at their barrier counts."""
    N_BYTES = CLUSTER_TIME + 8


class Peer(IntEnum):
    """A block of the cluster, as one of them sees it."""

    BLOCK = 0
    STATE = 8
    """Its `RaceBlock`."""
    VECTOR = 16
    """Per thread of it, the time up to which it is known by the last barrier of the cluster, or 0 before the first."""
    N_BYTES = 24


class RaceBlock(IntEnum):
    """What is known of the block that runs in an arena."""

    LAUNCH = 0
    NOW = 8
    START = 16
    """The time at which the block started."""
    FLOOR = 24
    """Every thread knows what every other did up to this time."""
    BLOCK = 32
    N_THREADS = 40
    THREADS = 48
    TABLE = 56
    """What is known of other blocks, by block, after a fence; 0 for nothing."""
    PENDING = 64
    """The same of signals that were seen, before a fence."""
    N_SEEN = 72
    """How many signals were."""
    HAS_LANES = 80
    HAS_WARPS = 88
    """Whether lanes or warps waited for some of the others only."""
    HAS_FENCES = 96
    SHARED_RECORDS = 104
    SHARED_RECORD_BYTES = 112
    CACHED_VECTOR = 120
    CACHED_THREAD = 128
    CACHED_TIME = 136
    CACHED_PLACE = 144
    """The vector of fences that was made last, for whom, when, and of which scope."""
    STORE_THREAD = 152
    """Who made the store whose value is not yet known, or 0."""
    STORE_INFO = 160
    STORE_ADDRESS = 168
    STORE_HOST = 176
    STORE_RECORD = 184
    STORE_GRAIN = 192
    STORE_N_RECORDS = 200
    STORE_CONFLICTS = 208
    """A bit for each record in which the store is a race if it changes the value."""
    OTHER_STAMP = 216
    OTHER_SITE = 224
    OTHER_IS_READ = 232
    SEES_SIGNAL = 240
    """Of the race that was found: with whom, where that was, what it did, and whether its signal had been seen."""
    OLD_BYTES = 248
    """What was there before the store."""
    OLD_WRITES = OLD_BYTES + 16
    OLD_SITES = OLD_WRITES + 8 * MAX_RECORDS
    WARP_FLOORS = OLD_SITES + 8 * MAX_RECORDS
    """Per warp, up to when its lanes know of each other."""
    BARRIERS = WARP_FLOORS + 8 * N_WARPS
    """Per barrier and warp, what those that have arrived knew."""
    JOINED = BARRIERS + 8 * N_WARPS * N_BARRIERS
    """Room for a row."""
    CLUSTER_VECTOR = JOINED + 8 * N_WARPS
    """What the last barrier of the cluster told this block and the others of its threads: the time up to which each is
    known. 0 before the first."""
    CLUSTER_LATEST = CLUSTER_VECTOR + 8
    """The latest of these times."""
    CLUSTER_FENCED = CLUSTER_LATEST + 8
    """Up to when threads that arrived at the barrier of the cluster knew all others of the block."""
    HAS_NEW_PEERS = CLUSTER_FENCED + 8
    """Whether the block has passed a barrier of the cluster since the last fence, which lets it tell others of that."""
    N_PEERS = HAS_NEW_PEERS + 8
    """The blocks of the cluster, this one among them; 0 where blocks do not run together."""
    PEERS = N_PEERS + 8
    N_BYTES = PEERS + Peer.N_BYTES * MAX_CLUSTER_BLOCKS


class RaceLaunch(IntEnum):
    """What the blocks of a launch share."""

    IS_ON = 0
    BUDGET = 8
    """Steps left before the check gives up, so that a long run does not get longer."""
    NEXT = 16
    END = 24
    """Of the room for vectors and tables."""
    N_BLOCKS = 32
    FOLLOWS_BLOCKS = 40
    """Whether the grid is small enough for what blocks know of each other."""
    SHARED_GRAIN_SHIFT = 48
    GRAIN_SHIFT = 56
    """The logarithm of how many bytes a record is for, in shared memory and in tensors."""
    VERSION = 64
    N_BYTES = 72
