"""Memory layout that compiled kernels, the scheduler and Python share. Every field is 8 bytes.

Generic addresses are synthetic: bits 40 and up select an entry of the address table, so that a stray pointer is caught
and attributed. Address 0 and everything near it belongs to entry 0, which has no bytes: null pointers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

WINDOW_SHIFT = 40
"""Base-2 logarithm of a window's bytes. A buffer may hold 2^39 bytes.
The room below its first byte catches negative indices."""
WINDOW_HALF = 1 << (WINDOW_SHIFT - 1)
MAX_PLACE = 1 << (WINDOW_SHIFT - 2)
"""Usual maximum distance in bytes between the start of a tensor and the middle of its window.
A tensor must lie in its window."""
N_WINDOWS = 1024
ENTRY_BYTES = 128
TABLE_BYTES = N_WINDOWS * ENTRY_BYTES
N_ACCESS_SIZES = 5
"""Number of access sizes: 1, 2, 4, 8 and 16 bytes."""

NULL_WINDOW = 0
SHARED_WINDOW = 1
LOCAL_WINDOW = 2
PARAM_WINDOW = 3
FIRST_BUFFER_WINDOW = 4
LAST_USUAL_WINDOW = 127
"""Last window of buffers, unless there are very many.
Their addresses have 47 bits with the highest bit set, as on most GPUs."""
MAX_CLUSTER_BLOCKS = 16
"""Maximum blocks per cluster on Hopper, for a kernel that opts in to a non-portable size."""
FIRST_CLUSTER_WINDOW = N_WINDOWS - MAX_CLUSTER_BLOCKS - 1
"""First window of the shared memory of the running cluster's blocks, by rank.
The last window is for ranks out of range."""
GRID_WORKSPACE_WINDOW = FIRST_CLUSTER_WINDOW - 1
"""Window of the driver's workspace for a cooperative launch."""
CLUSTER_RANK_SHIFT = 24
"""Bit position of rank plus 1 in a cluster's shared-memory address, as `mapa` gives it. The bits below hold an offset,
which may be negative. An address without a rank is the block's own."""
CLUSTER_OFFSET_HALF = 1 << (CLUSTER_RANK_SHIFT - 1)

INITIALISED = 1
WRITTEN_BY_KERNEL = 2
WRITTEN_SUFFIX = ".written"
"""Suffix of an output's shadow file: one byte per byte, `INITIALISED` (by a fill) and `WRITTEN_BY_KERNEL`."""
SHADOW_STORE = INITIALISED | WRITTEN_BY_KERNEL
"""Shadow flags that a store sets for each byte."""
IN_FLIGHT = 4
"""Shadow flag of shared memory: an asynchronous copy may not have written the byte yet."""
BETWEEN_VARIABLES = 8
"""Shadow flag of shared memory: the byte belongs to no variable and is not written yet."""

MAX_PARAMETER_BYTES = 32764  # sm_70 and newer, PTX ISA 8.1
N_BARRIERS = 16
WARP_SIZE = 32
MATRIX_STRIDE_BYTES = 16
"""Granularity in bytes of a matrix's row or column stride (programming guide, `load_matrix_sync`). Where one lane holds
less, that is the granularity (PTX ISA, "Matrix Storage")."""


def window_base(window: int) -> int:
    """Return the generic address of the first byte of a window's memory."""
    return (window << WINDOW_SHIFT) + WINDOW_HALF


def first_buffer_window(n_buffers: int, n_variables: int) -> int:
    """Return the window of the first of that many tensors, behind the module's variables; the others follow."""
    return max(FIRST_BUFFER_WINDOW + n_variables, LAST_USUAL_WINDOW + 1 - n_buffers)


SHARED_POISON = 0xFF
"""Default poison byte of shared memory before its first store: NaN in every floating type, so reads show."""


SHARED_START = 1024
"""Default address in bytes of a block's first byte of shared memory, as on a GPU from sm_80 on, which reserves the
bytes below (programming guide, compute capability 8.x and 9.0). A run may request another multiple of it."""


class Entry(IntEnum):
    """Layout of one window: memory at `HOST`, visible at generic address `BASE`. `READ_LIMITS` and `WRITE_LIMITS` hold,
    per access size, one more than the last offset that needs no slow path. 0 sends every access there."""

    BASE = 0
    HOST = 8
    SHADOW = 16
    FLAGS = 24
    N_BYTES = 32
    READ_LIMITS = 40
    WRITE_LIMITS = 80
    RECORDS = 120
    """Address of the race records of a watched window (`kernel_lsp.ptx.races.layout`), else 0."""


class EntryFlag(IntEnum):
    READ_ONLY = 1
    CHECK_INITIALISED = 2
    TRACED = 4
    NOT_STARTED = 8
    """Shared memory of a cluster's block that has not started."""
    ENDED = 16
    """Shared memory of a block that has exited."""
    WATCHED = 32
    """The race check records and compares every access."""


class Thread(IntEnum):
    """Layout of a thread's record; its frame follows at `FRAME`."""

    RESUME = 0
    STATUS = 8
    FUEL = 16
    FUEL_GIVEN = 24
    POLLED = 32
    """Instructions that the thread spent on polling (`kernel_lsp.ptx.analysis.kernel_traits.polling_blocks`)."""
    TID_X = 40
    TID_Y = 48
    TID_Z = 56
    INDEX = 64
    LOCAL_HOST = 72
    OPERATION = 80
    """Operation requested from the warp. For a thread that may not wait and is out of fuel, its basic block."""
    MASK = 88
    A = 96
    B = 104
    C = 112
    RESULT = 120
    RESULT_PREDICATE = 128
    MATRIX_AREA = 120
    """Address of the thread's area for operands and results of a matrix instruction, which has no `RESULT`."""
    WARP_FUNCTION = 128
    """Address of the function that the warp then calls (`kernel_lsp.ptx.compile.warp_functions`)."""
    CLUSTER_STEP = 136
    """Twice the number of cluster barriers passed by the thread, plus one between its arrival and the end of its
    wait."""
    WAY = 144
    """Hash of the branches taken since the thread was last certainly converged with its warp.
    Only in kernels with `activemask`."""
    FRAME = 160


class CopyQueue(IntEnum):
    """Layout of a thread's asynchronous copies that it has not waited for (`kernel_lsp.ptx.run.async_copies`)."""

    N_GROUPS = 0
    """Number of committed groups."""
    HEAD = 8
    TAIL = 16
    COPIES = 24
    N_COPIES = 64
    """Capacity in copies. Exceeds the pipeline depth of any one thread."""
    N_BYTES = 24 + 8 * 64


class StoreQueue(IntEnum):
    """Layout of a thread's bulk copies from shared memory that it has not waited for
    (`kernel_lsp.ptx.run.async_copies`)."""

    N_GROUPS = 0
    """Number of committed groups."""
    N_COPIES = 8
    COPIES = 16
    SOURCE = 0
    """Host address of the source. Offset within a copy, like those below."""
    TARGET = 8
    SIZE = 16
    GROUP = 24
    INFO = 32
    TIME = 40
    """Time of the copy in the race check, or 0 without one."""
    COPY_BYTES = 48
    MAX_COPIES = 32
    N_BYTES = 16 + 48 * 32


class Arrivals(IntEnum):
    """Layout of a block's bulk copies to shared memory that have not arrived (`kernel_lsp.ptx.run.async_copies`)."""

    N_COPIES = 0
    N_LOOKS = 8
    """Number of unsuccessful polls since a copy arrived."""
    COPIES = 16
    PLACE = 0
    """Host address of the barrier object. Offset within a copy, like those below."""
    SOURCE = 8
    TARGET = 16
    SIZE = 24
    INFO = 32
    THREAD = 40
    COPY_BYTES = 48
    MAX_COPIES = 64
    N_BYTES = 16 + 48 * 64


class Launch(IntEnum):
    """Layout of the launch record: constants of the running block, read-only for kernels."""

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
    """Flag: the race check watches the launch."""
    GRID_WORKSPACE = 272
    """Generic address of the driver's workspace for a cooperative launch, else 0."""
    SHARED_START = 280
    """Address of the first byte of shared memory."""
    PARAMETERS = 288


Interruptions = Literal["none", "in_order", "in_turns"]
"""Policy for yields before communicating accesses.
Threads do not yield, or resume in the same or in alternating order."""


class Context(IntEnum):
    """Layout of the scheduler's state."""

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
    """Contexts of the cluster's blocks, by rank. This field and the next four are set in the first block only."""
    CLUSTER_N_BLOCKS = 840
    CLUSTER_ORDER = 848
    CLUSTER_PHASE = 856
    """Number of complete cluster barriers."""
    CLUSTER_FAILED = 864
    """Context of the block that stopped the cluster."""
    CLUSTER_N_STALLED = 872
    CLUSTER_STATE = 880
    """State of each block: `EntryFlag.NOT_STARTED`, 0 while it runs, `EntryFlag.ENDED`."""
    RACES = 888
    """Address of the block's `RaceBlock`, or 0 without a race check."""
    SHARED_POISON = 896
    """Poison byte of shared memory before its first store."""
    SHARED_GAPS = 904
    """Start and bytes of each gap between shared variables, one after the other."""
    N_SHARED_GAPS = 912
    LOCAL_POISON = 920
    """Poison byte of local memory when a block starts."""
    KEEPS_APART = 928
    """Flag: diverged lanes have not reconverged at an `activemask`."""
    INTERRUPTIONS = 936
    """Remaining forced yields before accesses through which threads of the block communicate."""
    N_INTERRUPTIONS = 944
    """Value of `INTERRUPTIONS` when a block starts; 0 for no interruptions."""
    COMES_BACK = 952
    """Flag: a thread that has used up its fuel can resume."""
    TURNS_ROUND = 960
    """Flag: interrupted threads resume in alternating order."""
    ARRIVALS = 968
    """Address of the block's `Arrivals`."""
    N_BYTES = 976


class SiteTrace(IntEnum):
    """Layout of the trace counters of one access site."""

    N_REQUESTS = 0
    N_SECTORS = 8
    N_ACCESSES = 16
    N_BYTES = 24


class Status(IntEnum):
    """Status of a thread, which a compiled kernel returns."""

    RUNNABLE = 0
    EXITED = 1
    BARRIER = 2
    WARP = 3
    OUT_OF_FUEL = 4
    FAULT = 5
    CLUSTER = 6
    """Waits at the cluster barrier."""


class BlockStatus(IntEnum):
    """Reason why the scheduler returned."""

    DONE = 0
    FAULT = 1
    DEADLOCK = 2
    OUT_OF_BUDGET = 3
    PARKED = 4
    CLUSTER_WAIT = 5
    """No thread can proceed before the cluster barrier is complete."""
    CLUSTER_DEADLOCK = 6


class FaultKind(IntEnum):
    ACCESS = 1
    """An access that is out of bounds, misaligned or a write to read-only memory: the address distinguishes them."""
    UNINITIALISED = 2
    TRAP = 3
    ASSERT = 4
    BLOCK_NOT_STARTED = 5
    BLOCK_ENDED = 6
    CLUSTER_STEP = 7
    """A thread that arrives at the cluster barrier twice without a wait, or waits without having arrived."""
    RACE_OF_BLOCKS = 8
    RACE_OF_THREADS = 9
    """A data race between threads of one block."""
    WARP_INCOMPLETE = 16
    """A matrix instruction in which not all 32 lanes take part."""
    WARP_DISAGREES = 17
    """A matrix instruction whose addresses or strides are not uniform across the warp."""
    MATRIX_ADDRESS = 18
    """A misaligned matrix address."""
    MATRIX_STRIDE = 19
    """A matrix stride that is no multiple of 16 bytes. The fault's address is the stride in bytes."""
    BARRIER_MISSING = 20
    """An operation on an uninitialised `mbarrier`."""
    BARRIER_COUNT = 21
    """An `mbarrier` with a count of zero or above the limit.
    The fault's address is the count, as for the three below."""
    BARRIER_ARRIVALS = 22
    """More arrivals than the phase of an `mbarrier` expects."""
    BARRIER_BYTES = 23
    """More bytes than an `mbarrier` can count."""
    STALE_READ = 26
    """A read through the read-only cache of data that the same launch wrote."""
    COPY_IN_FLIGHT = 25
    """A read of bytes that `cp.async` may not have written yet."""
    BARRIER_DIVERGES = 27
    """A divergent block barrier: part of a warp waits at it, the rest at another place."""
    SHARED_GAP = 28
    """A shared-memory access between two variables: past the end of the first, or before the second."""
    COPY_LEFT = 29
    """A thread that exits while one of its bulk copies may still read shared memory."""
    PROXY = 30
    """An access of the async proxy that no proxy fence orders after a generic one."""
    SOURCE_IN_USE = 31
    """A write of bytes that a bulk copy may still read."""
    BULK_SIZE = 24
    """A bulk copy of a size that is no multiple of 16 bytes."""


class Operation(IntEnum):
    """Operation that a thread requests from its warp or block when it yields."""

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
    """Description of an access for the slow path: ``site | log2(bytes) << LOG2_SHIFT | kind << KIND_SHIFT``."""

    SITE_MASK = (1 << 24) - 1
    LOG2_SHIFT = 24
    READS = 1 << 28
    WRITES = 1 << 29
    STRONG = 1 << 30
    """An access through which threads may communicate."""
    ACQUIRES = 1 << 31
    RELEASES = 1 << 32
    IN_BLOCK = 1 << 33
    """A communication within the block only."""
    UNUSED = 1 << 34
    """A load whose value does not matter."""
    NEARBY = 1 << 35
    """An access that bypasses the L1 cache of the multiprocessor."""
    READ_ONLY_CACHE = 1 << 36
    """A load through the read-only cache."""
    DATA = 1 << 37
    """A volatile or relaxed load of global memory that reads data, not a flag. Its write must happen before it."""
    LATE_USE = 1 << 38
    """A load whose thread may synchronise before it uses the value."""
    ASYNC_PROXY = 1 << 39
    """An access of the async proxy."""
    BULK = 1 << 40
    """An access of a bulk copy."""
