"""Where things lie in the memory that compiled kernels, the scheduler and Python share. Every field is 8 bytes.

Generic addresses are made up: bits 40 and up select an entry of the address table, so that a stray pointer is caught
and named. Address 0 and everything near it belongs to entry 0, which has no bytes: null pointers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

WINDOW_SHIFT = 40
"""A buffer may hold 2^39 bytes; its window also has room below its first byte, to catch negative indices."""
WINDOW_HALF = 1 << (WINDOW_SHIFT - 1)
MAX_PLACE = 1 << (WINDOW_SHIFT - 2)
"""Tensors mostly begin less than this many bytes before or behind the middle of their window; they must lie in it."""
N_WINDOWS = 1024
ENTRY_BYTES = 128
TABLE_BYTES = N_WINDOWS * ENTRY_BYTES
N_ACCESS_SIZES = 5
"""Accesses of 1, 2, 4, 8 and 16 bytes."""

NULL_WINDOW = 0
SHARED_WINDOW = 1
LOCAL_WINDOW = 2
PARAM_WINDOW = 3
FIRST_BUFFER_WINDOW = 4
LAST_USUAL_WINDOW = 127
"""Of buffers, unless there are very many: their addresses have 47 bits, the highest of them set, as on most GPUs."""
MAX_CLUSTER_BLOCKS = 16
"""Of Hopper, when the kernel asks for a size that is not portable."""
FIRST_CLUSTER_WINDOW = N_WINDOWS - MAX_CLUSTER_BLOCKS - 1
"""The shared memory of each block of the running cluster, by rank. The last window stands for ranks that none has."""
GRID_WORKSPACE_WINDOW = FIRST_CLUSTER_WINDOW - 1
"""What the driver keeps for a cooperative launch."""
CLUSTER_RANK_SHIFT = 24
"""An address of shared memory in a cluster, as `mapa` gives it: the rank plus 1 in these bits and up, and an offset
that may be negative. Addresses that name no rank are the block's own."""
CLUSTER_OFFSET_HALF = 1 << (CLUSTER_RANK_SHIFT - 1)

INITIALISED = 1
WRITTEN_BY_KERNEL = 2
WRITTEN_SUFFIX = ".written"
"""Of the file with the shadow of an output: one byte per byte, `INITIALISED` (by a fill) and `WRITTEN_BY_KERNEL`."""
SHADOW_STORE = INITIALISED | WRITTEN_BY_KERNEL
"""What a store leaves in each shadow byte."""
IN_FLIGHT = 4
"""In a shadow byte of shared memory: an asynchronous copy may not have brought it yet."""
BETWEEN_VARIABLES = 8
"""In a shadow byte of shared memory: it is no variable's, until something writes it."""

MAX_PARAMETER_BYTES = 32764  # sm_70 and newer, PTX ISA 8.1
N_BARRIERS = 16
WARP_SIZE = 32
MATRIX_STRIDE_BYTES = 16
"""The distance between rows or columns of a matrix is a multiple of this (programming guide, `load_matrix_sync`), or
of what one lane holds where that is less (PTX ISA, "Matrix Storage")."""


def window_base(window: int) -> int:
    """The generic address of the first byte of a window's memory."""
    return (window << WINDOW_SHIFT) + WINDOW_HALF


def first_buffer_window(n_buffers: int, n_variables: int) -> int:
    """That of the first of so many tensors, behind those of the module's variables; the others follow."""
    return max(FIRST_BUFFER_WINDOW + n_variables, LAST_USUAL_WINDOW + 1 - n_buffers)


SHARED_POISON = 0xFF
"""The byte of which shared memory is full before its first store, unless a run asks for another: NaN in every floating
type, so that reading it shows."""


SHARED_START = 1024
"""The address of a block's first byte of shared memory on a GPU from sm_80 on, which has so many bytes of its own below
(programming guide, compute capability 8.x and 9.0). A run may ask for another multiple of it."""
SHARED_UNIT_BYTES = 128
"""In multiples of which shared memory is given out, and `%total_smem_size` tells it, from sm_80 on (PTX ISA 9.0)."""


N_MULTIPROCESSORS, N_WARP_SLOTS = 132, 64
"""Of an H200, and of each of its multiprocessors, unless a run asks for others."""


class Entry(IntEnum):
    """One window: memory at `HOST`, seen at generic address `BASE`. `READ_LIMITS` and `WRITE_LIMITS` hold, per access
    size, one more than the last offset that needs no closer look; 0 sends every access to the slow check."""

    BASE = 0
    HOST = 8
    SHADOW = 16
    FLAGS = 24
    N_BYTES = 32
    READ_LIMITS = 40
    WRITE_LIMITS = 80
    RECORDS = 120
    """Of what is watched: who accessed it (`kernel_lsp.ptx.races.layout`)."""


class EntryFlag(IntEnum):
    READ_ONLY = 1
    CHECK_INITIALISED = 2
    TRACED = 4
    NOT_STARTED = 8
    """Of a block's shared memory, seen from its cluster: the block has not run yet."""
    ENDED = 16
    """The block has exited, and its shared memory went with it."""
    WATCHED = 32
    """Who accesses it is noted, and looked at when others do."""


class Thread(IntEnum):
    """A thread's record; its frame follows at `FRAME`."""

    RESUME = 0
    STATUS = 8
    FUEL = 16
    FUEL_GIVEN = 24
    TID_X = 32
    TID_Y = 40
    TID_Z = 48
    INDEX = 56
    LOCAL_HOST = 64
    OPERATION = 72
    """What it asks of its warp; of a thread that may not wait and is out of fuel, the basic block it is in."""
    MASK = 80
    A = 88
    B = 96
    C = 104
    RESULT = 112
    RESULT_PREDICATE = 120
    MATRIX_AREA = 112
    """Of a matrix instruction, which gives no `RESULT`: the address of what the thread gives to its warp, and gets."""
    WARP_FUNCTION = 120
    """The address of what the warp then calls (`kernel_lsp.ptx.compile.warp_functions`)."""
    CLUSTER_STEP = 128
    """Twice the cluster barriers that the thread has passed, and one more from its arrival to the end of its wait."""
    WAY = 136
    """Which branches it took since it last was with its warp for sure, as a number; of kernels that ask for
    `activemask`."""
    FRAME = 144


class CopyQueue(IntEnum):
    """A thread's asynchronous copies that it has not waited for (`kernel_lsp.ptx.run.copies_in_flight`)."""

    N_GROUPS = 0
    """Committed so far."""
    HEAD = 8
    TAIL = 16
    COPIES = 24
    N_COPIES = 64
    """More than any pipeline has in flight in one thread."""
    N_BYTES = 24 + 8 * 64


class StoreQueue(IntEnum):
    """A thread's bulk copies from shared memory that it has not waited for (`kernel_lsp.ptx.run.bulk_stores`)."""

    N_GROUPS = 0
    """Committed so far."""
    N_COPIES = 8
    COPIES = 16
    SOURCE = 0
    """Of each copy, as are those below: a host address."""
    TARGET = 8
    SIZE = 16
    GROUP = 24
    INFO = 32
    COPY_BYTES = 40
    MAX_COPIES = 32
    N_BYTES = 16 + 40 * 32


class Arrivals(IntEnum):
    """A block's bulk copies to shared memory that have not arrived (`kernel_lsp.ptx.run.bulk_arrivals`)."""

    N_COPIES = 0
    N_LOOKS = 8
    """How often threads have looked in vain since a copy arrived."""
    COPIES = 16
    PLACE = 0
    """Of each copy, as are those below: the host address of its barrier object."""
    SOURCE = 8
    TARGET = 16
    SIZE = 24
    INFO = 32
    THREAD = 40
    COPY_BYTES = 48
    MAX_COPIES = 64
    N_BYTES = 16 + 48 * 64


class Launch(IntEnum):
    """What is constant while one block runs; read-only for kernels."""

    CTAID_X = 0
    CTAID_Y = 8
    CTAID_Z = 16
    NCTAID_X = 24
    NCTAID_Y = 32
    NCTAID_Z = 40
    NTID_X = 48
    NTID_Y = 56
    NTID_Z = 64
    SHARED_HOST = 72
    SHARED_SHADOW = 80
    SHARED_BYTES = 88
    DYNAMIC_SHARED_BYTES = 96
    SHARED_LIMITS = 104
    CLUSTER_CTAID_X = 144
    CLUSTER_CTAID_Y = 152
    CLUSTER_CTAID_Z = 160
    CLUSTER_NCTAID_X = 168
    CLUSTER_NCTAID_Y = 176
    CLUSTER_NCTAID_Z = 184
    CLUSTERID_X = 192
    CLUSTERID_Y = 200
    CLUSTERID_Z = 208
    NCLUSTERID_X = 216
    NCLUSTERID_Y = 224
    NCLUSTERID_Z = 232
    CLUSTER_RANK = 240
    CLUSTER_N_BLOCKS = 248
    IS_EXPLICIT_CLUSTER = 256
    IS_WATCHED = 264
    """Whether the launch is watched for races."""
    GRID_WORKSPACE = 272
    """The generic address of the driver's memory for a cooperative launch, else 0."""
    TOTAL_SHARED_BYTES = 280
    """As a GPU has it: `SHARED_BYTES` are with the gaps between variables."""
    N_MULTIPROCESSORS = 288
    N_WARP_SLOTS = 296
    """Of a multiprocessor."""
    SHARED_START = 304
    """The address of the first byte of shared memory."""
    PARAMETERS = 312


Interruptions = Literal["none", "in_order", "in_turns"]
"""Whether threads give way to others before accesses by which they may talk, and in which order they then go on: the
same one, or the other way round every second time."""


class Context(IntEnum):
    """What the scheduler works on."""

    FUNCTION = 0
    COUNTS = 8
    TABLE = 16
    LAUNCH = 24
    THREADS = 32
    THREAD_STRIDE = 40
    N_THREADS = 48
    LANE_ORDER = 56
    WARP_ORDER = 64
    BLOCKS = 72
    N_BLOCKS = 80
    CURSOR = 88
    FAST_TABLE = 96
    TRACED_TABLE = 104
    SLICE = 112
    """Instructions a thread may run before it must yield."""
    CAN_SPIN = 120
    BUDGET = 128
    """Instructions left for the whole launch."""
    MAX_PER_THREAD = 136
    FAULT_INFO = 144
    FAULT_KIND = 152
    FAULT_ADDRESS = 160
    FAULT_THREAD = 168
    N_LIVE = 176
    WARNING_COUNTS = 184
    WARNING_PLACES = 192
    BLOCK = 200
    OCCURRENCES = 208
    SEEN = 216
    SEEN_MASK = 224
    N_SEEN = 232
    N_REQUESTS = 240
    N_SECTORS = 248
    N_TRACED = 256
    N_UNTRACED = 264
    MAY_PARK = 272
    N_STALLED = 280
    OCCURRENCE_BYTES = 800
    BARRIER_ARRIVED = 288
    BARRIER_WAITING = 416
    BARRIER_EXPECTED = 544
    BARRIER_TRUE = 672
    LOCAL_BASE = 808
    LOCAL_BYTES = 816
    SITE_TRACES = 824
    """Per site: requests, sectors, accesses."""
    CLUSTER_CONTEXTS = 832
    """Of a cluster's first block: the contexts of all, by rank. So are the four below."""
    CLUSTER_N_BLOCKS = 840
    CLUSTER_ORDER = 848
    CLUSTER_PHASE = 856
    """How many cluster barriers are complete."""
    CLUSTER_FAILED = 864
    """The context of the block that made the cluster stop."""
    CLUSTER_N_STALLED = 872
    CLUSTER_STATE = 880
    """Of each block: `EntryFlag.NOT_STARTED`, 0 while it runs, `EntryFlag.ENDED`."""
    RACES = 888
    """What the block's threads know of each other, where races are looked for; else 0."""
    SHARED_POISON = 896
    """The byte of which shared memory is full before its first store."""
    SHARED_GAPS = 904
    """Start and bytes of what lies between shared variables, one after the other."""
    N_SHARED_GAPS = 912
    LOCAL_POISON = 920
    """The byte of which local memory is full when a block starts."""
    KEEPS_APART = 928
    """Whether lanes that have gone different ways are not together again at an `activemask`."""
    INTERRUPTIONS = 936
    """How often a thread of the block may yet be made to give way before an access by which threads talk."""
    N_INTERRUPTIONS = 944
    """The same when a block starts; 0 where none is."""
    COMES_BACK = 952
    """Whether a thread that has used up its fuel can go on."""
    TURNS_ROUND = 960
    """Whether interrupted threads go on from the other end every second time."""
    ARRIVALS = 968
    """The block's bulk copies that have not arrived."""
    N_BYTES = 976


class SiteTrace(IntEnum):
    """What tracing counts at one access in the code."""

    N_REQUESTS = 0
    N_SECTORS = 8
    N_ACCESSES = 16
    N_BYTES = 24


class Status(IntEnum):
    """Of a thread; a compiled kernel returns one."""

    RUNNABLE = 0
    EXITED = 1
    BARRIER = 2
    WARP = 3
    OUT_OF_FUEL = 4
    FAULT = 5
    CLUSTER = 6
    """Waits at the barrier of the cluster."""


class BlockStatus(IntEnum):
    """Why the scheduler came back."""

    DONE = 0
    FAULT = 1
    DEADLOCK = 2
    OUT_OF_BUDGET = 3
    PARKED = 4
    CLUSTER_WAIT = 5
    """Nothing goes on before the barrier of the cluster is complete."""
    CLUSTER_DEADLOCK = 6


class FaultKind(IntEnum):
    ACCESS = 1
    """Out of bounds, misaligned or to read-only memory: the address says which."""
    UNINITIALISED = 2
    TRAP = 3
    ASSERT = 4
    BLOCK_NOT_STARTED = 5
    BLOCK_ENDED = 6
    CLUSTER_STEP = 7
    RACE_OF_BLOCKS = 8
    RACE_OF_THREADS = 9
    """Arrives at the barrier of the cluster twice without a wait, or waits without having arrived."""
    WARP_INCOMPLETE = 16
    """A matrix instruction in which not all 32 lanes take part."""
    WARP_DISAGREES = 17
    """A matrix instruction whose lanes give different addresses or strides."""
    MATRIX_ADDRESS = 18
    """Not aligned."""
    MATRIX_STRIDE = 19
    """Not a multiple of 16 bytes; the fault's address is the stride in bytes."""
    BARRIER_MISSING = 20
    """An `mbarrier` where nothing made one."""
    BARRIER_COUNT = 21
    """An `mbarrier` for no threads, or too many; the fault's address is the count. So it is of the three below."""
    BARRIER_ARRIVALS = 22
    """More arrivals than the phase of an `mbarrier` expects."""
    BARRIER_BYTES = 23
    """More bytes than an `mbarrier` can count."""
    STALE_READ = 26
    """A read, through the read-only cache, of what the same launch wrote."""
    COPY_IN_FLIGHT = 25
    """A read of bytes that `cp.async` may not have brought yet."""
    BARRIER_DIVERGES = 27
    """A barrier of the block to which only a part of a warp has come, while the rest of it waits at another place."""
    SHARED_GAP = 28
    """An access of shared memory between two of its variables: past the end of the first, or before the second."""
    COPY_LEFT = 29
    """A thread that ends while a bulk copy of its own may still read shared memory."""
    BULK_SIZE = 24
    """A bulk copy of a size that is no multiple of 16 bytes."""


class Operation(IntEnum):
    """What a thread that yielded asks of its warp or block."""

    SHFL_UP = 1
    SHFL_DOWN = 2
    SHFL_BFLY = 3
    SHFL_IDX = 4
    VOTE_ALL = 5
    VOTE_ANY = 6
    VOTE_UNI = 7
    VOTE_BALLOT = 8
    MATCH_ANY = 9
    MATCH_ALL = 10
    REDUX_ADD = 11
    REDUX_MIN_S32 = 12
    REDUX_MAX_S32 = 13
    REDUX_MIN_U32 = 14
    REDUX_MAX_U32 = 15
    REDUX_AND = 16
    REDUX_OR = 17
    REDUX_XOR = 18
    WARP_SYNC = 19
    ACTIVE_MASK = 20
    ELECT = 21
    MATRIX = 22
    BARRIER_SYNC = 32
    BARRIER_ARRIVE = 33
    BARRIER_POPC = 34
    BARRIER_AND = 35
    BARRIER_OR = 36


class Info(IntEnum):
    """How an access describes itself to the slow check: ``site | log2(bytes) << LOG2_SHIFT | kind << KIND_SHIFT``."""

    SITE_MASK = (1 << 24) - 1
    LOG2_SHIFT = 24
    READS = 1 << 28
    WRITES = 1 << 29
    STRONG = 1 << 30
    """An access by which threads may talk to each other."""
    ACQUIRES = 1 << 31
    RELEASES = 1 << 32
    IN_BLOCK = 1 << 33
    """It does so for threads of its block only."""
    UNUSED = 1 << 34
    """A load whose value may be any."""
    NEARBY = 1 << 35
    """An access that does not use what a multiprocessor may have kept from earlier."""
    READ_ONLY_CACHE = 1 << 36
    """A load by way of the cache for what a launch does not write."""
    DATA = 1 << 37
    """A volatile or relaxed load of global memory that is no flag: its value counts, and must be there."""
