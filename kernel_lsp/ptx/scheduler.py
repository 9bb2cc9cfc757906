"""Runs the threads of blocks: each up to its next yield, then what warps and barriers wait for, and again.

Everything here is in the subset that `kernel_lsp.ptx.native` translates; `FUNCTIONS` is what gets compiled. Addresses
are host addresses of the records that `kernel_lsp.ptx.layout` describes.

Threads follow Volta's independent scheduling: a warp operation waits for the lanes its mask names, a barrier for its
count or for all threads that have not exited, and nothing else runs in lockstep.
"""

from __future__ import annotations

from collections.abc import Callable

from kernel_lsp.ptx.layout import (
    ENTRY_BYTES,
    FIRST_CLUSTER_WINDOW,
    LOCAL_WINDOW,
    N_BARRIERS,
    N_WINDOWS,
    WARP_SIZE,
    WINDOW_SHIFT,
    BlockStatus,
    Context,
    Entry,
    EntryFlag,
    FaultKind,
    Info,
    Launch,
    Operation,
    SiteTrace,
    Status,
    Thread,
)
from kernel_lsp.ptx.native import call_thread, count_trailing_zeros, fill, load8, load64, shift_right, store64
from kernel_lsp.ptx.races import is_race
from kernel_lsp.ptx.warp_matrices import perform_matrix

BLOCK_ID_MASK = (1 << 48) - 1
TRACE_BLOCK = 1 << 48
"""Set in an entry of the block queue when the block's accesses are to be traced."""
N_PASSES_BEFORE_PARKING = 8
"""A block that only spins is put aside after this many passes, so that the block it waits for can run."""
SHARED_POISON = 0xFF
"""Shared memory before its first store: NaN in every floating type, so that reading it shows."""
HASH_A = 0x9E3779B97F4A7C1
HASH_B = 0x2545F4914F6CDD1D
HASH_C = 0x27D4EB2F165667C5
"""Odd constants without structure, to mix keys."""
SECTOR_SHIFT = 5
"""Sectors of global memory have 32 bytes."""


def run_queue(context: int) -> int:
    """Run the queued blocks from the cursor on. Returns at the first that does not simply end, cursor still on it."""
    n_blocks = load64(context + Context.N_BLOCKS)
    queue = load64(context + Context.BLOCKS)
    while load64(context + Context.CURSOR) < n_blocks:
        start_block(context, load64(queue + 8 * load64(context + Context.CURSOR)))
        status = run_block(context)
        if status != BlockStatus.DONE:
            return status
        store64(context + Context.CURSOR, load64(context + Context.CURSOR) + 1)
    return BlockStatus.DONE


def start_block(context: int, entry: int) -> int:
    launch = load64(context + Context.LAUNCH)
    block = entry & BLOCK_ID_MASK
    grid_x = load64(launch + Launch.NCTAID_X)
    grid_y = load64(launch + Launch.NCTAID_Y)
    store64(context + Context.BLOCK, block)
    store64(launch + Launch.CTAID_X, block % grid_x)
    store64(launch + Launch.CTAID_Y, block // grid_x % grid_y)
    store64(launch + Launch.CTAID_Z, block // (grid_x * grid_y))
    n_shared = load64(launch + Launch.SHARED_BYTES)
    if n_shared > 0:
        fill(load64(launch + Launch.SHARED_HOST), SHARED_POISON, n_shared)
        fill(load64(launch + Launch.SHARED_SHADOW), 0, n_shared)
    fill(context + Context.BARRIER_ARRIVED, 0, 8 * N_BARRIERS)
    store64(context + Context.N_STALLED, 0)
    choose_table(context, entry)
    start_threads(context)
    return 0


def choose_table(context: int, entry: int) -> int:
    table = load64(context + Context.FAST_TABLE)
    if entry & TRACE_BLOCK:
        table = load64(context + Context.TRACED_TABLE)
        fill(load64(context + Context.OCCURRENCES), 0, load64(context + Context.OCCURRENCE_BYTES))
        if load64(context + Context.N_SEEN) * 4 > load64(context + Context.SEEN_MASK):
            fill(load64(context + Context.SEEN), 0, 8 * (load64(context + Context.SEEN_MASK) + 1))
            store64(context + Context.N_SEEN, 0)
    store64(context + Context.TABLE, table)
    return 0


def number_threads(context: int) -> int:
    """Write what stays the same in the threads' records for a whole launch."""
    thread = load64(context + Context.THREADS)
    stride = load64(context + Context.THREAD_STRIDE)
    width = load64(load64(context + Context.LAUNCH) + Launch.NTID_X)
    height = load64(load64(context + Context.LAUNCH) + Launch.NTID_Y)
    local = load64(context + Context.LOCAL_BASE)
    for index in range(load64(context + Context.N_THREADS)):
        store64(thread + Thread.TID_X, index % width)
        store64(thread + Thread.TID_Y, index // width % height)
        store64(thread + Thread.TID_Z, index // (width * height))
        store64(thread + Thread.INDEX, index)
        store64(thread + Thread.LOCAL_HOST, local)
        thread = thread + stride
        local = local + load64(context + Context.LOCAL_BYTES)
    return 0


def start_threads(context: int) -> int:
    thread = load64(context + Context.THREADS)
    stride = load64(context + Context.THREAD_STRIDE)
    fuel = load64(context + Context.SLICE)
    budget = load64(context + Context.BUDGET)
    if fuel > budget:
        fuel = budget
    for _ in range(load64(context + Context.N_THREADS)):
        store64(thread + Thread.RESUME, 0)
        store64(thread + Thread.STATUS, Status.RUNNABLE)
        store64(thread + Thread.FUEL, fuel)
        store64(thread + Thread.FUEL_GIVEN, fuel)
        thread = thread + stride
    return 0


def run_block(context: int) -> int:
    """Run the current block until it ends, fails, or spins too long. Returns a BlockStatus."""
    n_threads = load64(context + Context.N_THREADS)
    n_warps = (n_threads + WARP_SIZE - 1) // WARP_SIZE
    order = load64(context + Context.WARP_ORDER)
    stride = load64(context + Context.THREAD_STRIDE)
    threads = load64(context + Context.THREADS)
    can_wait = load64(context + Context.CAN_SPIN)
    while True:
        n_out_of_fuel = 0
        for position in range(n_warps):
            warp = load64(order + 8 * position)
            n_lanes = n_threads - warp * WARP_SIZE
            if n_lanes > WARP_SIZE:
                n_lanes = WARP_SIZE
            ran = run_warp(context, threads + warp * WARP_SIZE * stride, n_lanes)
            if ran < 0:
                return BlockStatus.FAULT
            n_out_of_fuel += ran
            if n_out_of_fuel > 0 and can_wait == 0:
                return BlockStatus.OUT_OF_BUDGET
        n_released = release_barriers(context)
        if n_released > 0:
            store64(context + Context.EPOCH, load64(context + Context.EPOCH) + 1)
        if load64(context + Context.N_LIVE) == 0:
            return finish_block(context)
        if n_out_of_fuel == 0:
            if n_released == 0:
                return BlockStatus.CLUSTER_WAIT if waits_for_cluster(context) else BlockStatus.DEADLOCK
        else:
            if refuel(context) == 0:
                return BlockStatus.OUT_OF_BUDGET
            if n_released == 0 and has_stalled(context):
                return BlockStatus.PARKED
    return BlockStatus.DONE


def waits_for_cluster(context: int) -> int:
    """Whether a thread is at the barrier of the cluster."""
    thread = load64(context + Context.THREADS)
    for _ in range(load64(context + Context.N_THREADS)):
        if load64(thread + Thread.STATUS) == Status.CLUSTER:
            return 1
        thread = thread + load64(context + Context.THREAD_STRIDE)
    return 0


def has_stalled(context: int) -> int:
    n_stalled = load64(context + Context.N_STALLED) + 1
    store64(context + Context.N_STALLED, n_stalled)
    return load64(context + Context.MAY_PARK) != 0 and n_stalled % N_PASSES_BEFORE_PARKING == 0


def refuel(context: int) -> int:
    """Give another slice to each thread that ran out. 0 when the budget is spent."""
    thread = load64(context + Context.THREADS)
    stride = load64(context + Context.THREAD_STRIDE)
    fuel = load64(context + Context.SLICE)
    spent = 0
    for _ in range(load64(context + Context.N_THREADS)):
        if load64(thread + Thread.STATUS) == Status.OUT_OF_FUEL:
            store64(thread + Thread.STATUS, Status.RUNNABLE)
            store64(thread + Thread.FUEL, load64(thread + Thread.FUEL) + fuel)
            store64(thread + Thread.FUEL_GIVEN, load64(thread + Thread.FUEL_GIVEN) + fuel)
            spent += fuel
        thread = thread + stride
    budget = load64(context + Context.BUDGET) - spent
    store64(context + Context.BUDGET, budget)
    return budget > 0


def finish_block(context: int) -> int:
    """Charge the launch for what the block ran, and note the longest thread."""
    thread = load64(context + Context.THREADS)
    stride = load64(context + Context.THREAD_STRIDE)
    longest = load64(context + Context.MAX_PER_THREAD)
    total = 0
    for _ in range(load64(context + Context.N_THREADS)):
        executed = load64(thread + Thread.FUEL_GIVEN) - load64(thread + Thread.FUEL)
        total += executed
        if executed > longest:
            longest = executed
        thread = thread + stride
    store64(context + Context.MAX_PER_THREAD, longest)
    budget = load64(context + Context.BUDGET) - total
    store64(context + Context.BUDGET, budget)
    if budget <= 0:
        return BlockStatus.OUT_OF_BUDGET
    return BlockStatus.DONE


def run_warp(context: int, first: int, n_lanes: int) -> int:
    """Run the lanes until none can go on. Returns how many ran out of fuel, or -1 after a fault. The first that does is
    the last to run where no thread waits for another: the others would each take as long."""
    function = load64(context + Context.FUNCTION)
    counts = load64(context + Context.COUNTS)
    table = load64(context + Context.TABLE)
    launch = load64(context + Context.LAUNCH)
    stride = load64(context + Context.THREAD_STRIDE)
    order = load64(context + Context.LANE_ORDER)
    can_wait = load64(context + Context.CAN_SPIN)
    local_host = table + LOCAL_WINDOW * ENTRY_BYTES + Entry.HOST
    while True:
        n_waiting = 0
        n_out_of_fuel = 0
        for position in range(WARP_SIZE):
            lane = load64(order + 8 * position)
            if lane >= n_lanes:
                continue
            thread = first + lane * stride
            status = load64(thread + Thread.STATUS)
            if status == Status.RUNNABLE:
                store64(local_host, load64(thread + Thread.LOCAL_HOST))
                status = call_thread(function, thread, counts, table, launch, context)
                store64(thread + Thread.STATUS, status)
                if status == Status.FAULT:
                    return -1
            if status == Status.WARP:
                n_waiting += 1
            if status == Status.OUT_OF_FUEL:
                n_out_of_fuel += 1
                if can_wait == 0:
                    return n_out_of_fuel
        if n_waiting == 0:
            return n_out_of_fuel
        n_performed = resolve_warp(context, first, n_lanes)
        if n_performed < 0:
            return -1
        if n_performed == 0:
            return n_out_of_fuel
        store64(context + Context.EPOCH, load64(context + Context.EPOCH) + 1)
    return 0


def resolve_warp(context: int, first: int, n_lanes: int) -> int:
    """Perform each warp operation whose lanes have all arrived. Returns how many were performed, -1 after a fault."""
    stride = load64(context + Context.THREAD_STRIDE)
    live = 0
    waiting = 0
    for lane in range(n_lanes):
        status = load64(first + lane * stride + Thread.STATUS)
        if status != Status.EXITED:
            live |= 1 << lane
        if status == Status.WARP:
            waiting |= 1 << lane
    n_performed = 0
    while waiting != 0:
        leader = first + count_trailing_zeros(waiting) * stride
        operation = load64(leader + Thread.OPERATION)
        mask = load64(leader + Thread.MASK)
        group = 0
        rest = waiting
        while rest != 0:
            lane = count_trailing_zeros(rest)
            thread = first + lane * stride
            if load64(thread + Thread.OPERATION) == operation and load64(thread + Thread.MASK) == mask:
                group |= 1 << lane
            rest &= rest - 1
        waiting &= ~group
        if operation == Operation.ACTIVE_MASK or (mask & live & ~group) == 0:
            if operation == Operation.MATRIX:
                kind = perform_matrix(first, stride, group)
                if kind != 0:
                    fault(context, leader, load64(leader + Thread.C), group, kind)
                    return -1
            perform(first, stride, group, operation)
            n_performed += 1
    return n_performed


def perform(first: int, stride: int, group: int, operation: int) -> int:
    """Give every lane of the group its result and make it runnable."""
    if operation <= Operation.SHFL_IDX:
        shuffle(first, stride, group, operation)
    elif operation <= Operation.VOTE_BALLOT:
        vote(first, stride, group, operation)
    elif operation <= Operation.MATCH_ALL:
        match_lanes(first, stride, group, operation)
    elif operation <= Operation.REDUX_XOR:
        reduce_lanes(first, stride, group, operation)
    elif operation != Operation.WARP_SYNC and operation != Operation.MATRIX:
        give_mask(first, stride, group)
    rest = group
    while rest != 0:
        store64(first + count_trailing_zeros(rest) * stride + Thread.STATUS, Status.RUNNABLE)
        rest &= rest - 1
    return 0


def shuffle(first: int, stride: int, group: int, operation: int) -> int:
    """PTX ISA, `shfl.sync`. A source lane that takes no part leaves the value as it is."""
    rest = group
    while rest != 0:
        lane = count_trailing_zeros(rest)
        thread = first + lane * stride
        b = load64(thread + Thread.B) & 31
        c = load64(thread + Thread.C)
        segment = (c >> 8) & 31
        clamp = c & 31
        last = (lane & segment) | (clamp & ~segment)
        source = lane - b
        is_inside = source >= last
        if operation == Operation.SHFL_DOWN:
            source = lane + b
            is_inside = source <= last
        elif operation == Operation.SHFL_BFLY:
            source = lane ^ b
            is_inside = source <= last
        elif operation == Operation.SHFL_IDX:
            source = (lane & segment) | (b & ~segment)
            is_inside = source <= last
        if is_inside == 0 or ((group >> source) & 1) == 0:
            source = lane
        store64(thread + Thread.RESULT, load64(first + source * stride + Thread.A))
        store64(thread + Thread.RESULT_PREDICATE, is_inside)
        rest &= rest - 1
    return 0


def vote(first: int, stride: int, group: int, operation: int) -> int:
    ballot = 0
    rest = group
    while rest != 0:
        lane = count_trailing_zeros(rest)
        if load64(first + lane * stride + Thread.A) != 0:
            ballot |= 1 << lane
        rest &= rest - 1
    result = ballot
    if operation == Operation.VOTE_ALL:
        result = ballot == group
    elif operation == Operation.VOTE_ANY:
        result = ballot != 0
    elif operation == Operation.VOTE_UNI:
        result = ballot == group or ballot == 0
    give(first, stride, group, result, 0)
    return 0


def give(first: int, stride: int, group: int, result: int, predicate: int) -> int:
    rest = group
    while rest != 0:
        thread = first + count_trailing_zeros(rest) * stride
        store64(thread + Thread.RESULT, result)
        store64(thread + Thread.RESULT_PREDICATE, predicate)
        rest &= rest - 1
    return 0


def match_lanes(first: int, stride: int, group: int, operation: int) -> int:
    rest = group
    while rest != 0:
        thread = first + count_trailing_zeros(rest) * stride
        same = 0
        others = group
        while others != 0:
            lane = count_trailing_zeros(others)
            if load64(first + lane * stride + Thread.A) == load64(thread + Thread.A):
                same |= 1 << lane
            others &= others - 1
        is_all = same == group
        if operation == Operation.MATCH_ALL and is_all == 0:
            same = 0
        store64(thread + Thread.RESULT, same)
        store64(thread + Thread.RESULT_PREDICATE, is_all)
        rest &= rest - 1
    return 0


def reduce_lanes(first: int, stride: int, group: int, operation: int) -> int:
    """`redux.sync` over sign- or zero-extended 32-bit values."""
    result = load64(first + count_trailing_zeros(group) * stride + Thread.A)
    rest = group & (group - 1)
    while rest != 0:
        value = load64(first + count_trailing_zeros(rest) * stride + Thread.A)
        if operation == Operation.REDUX_ADD:
            result += value
        elif operation == Operation.REDUX_AND:
            result &= value
        elif operation == Operation.REDUX_OR:
            result |= value
        elif operation == Operation.REDUX_XOR:
            result ^= value
        elif operation == Operation.REDUX_MIN_S32 or operation == Operation.REDUX_MIN_U32:
            result = value if value < result else result
        else:
            result = value if value > result else result
        rest &= rest - 1
    give(first, stride, group, result, 0)
    return 0


def give_mask(first: int, stride: int, group: int) -> int:
    """`activemask` wants the group; `elect.sync` its first lane, and a predicate that is true just there."""
    leader = count_trailing_zeros(group)
    rest = group
    while rest != 0:
        lane = count_trailing_zeros(rest)
        thread = first + lane * stride
        result = group
        if load64(thread + Thread.OPERATION) == Operation.ELECT:
            result = leader
        store64(thread + Thread.RESULT, result)
        store64(thread + Thread.RESULT_PREDICATE, lane == leader)
        rest &= rest - 1
    return 0


def release_barriers(context: int) -> int:
    """Let go the threads of every barrier that is complete. Returns how many threads can run again."""
    fill(context + Context.BARRIER_WAITING, 0, 8 * 3 * N_BARRIERS)
    n_live = count_waiting(context)
    store64(context + Context.N_LIVE, n_live)
    n_released = 0
    for barrier in range(N_BARRIERS):
        n_arrived = load64(context + Context.BARRIER_WAITING + 8 * barrier)
        n_arrived += load64(context + Context.BARRIER_ARRIVED + 8 * barrier)
        n_expected = load64(context + Context.BARRIER_EXPECTED + 8 * barrier)
        if n_expected == 0:
            n_expected = n_live
        if n_arrived > 0 and n_arrived >= n_expected:
            store64(context + Context.BARRIER_ARRIVED + 8 * barrier, 0)
            n_released += release(context, barrier, n_arrived)
    return n_released + let_arrivers_go(context)


def count_waiting(context: int) -> int:
    """Count the threads at each barrier. Returns how many threads have not exited."""
    thread = load64(context + Context.THREADS)
    stride = load64(context + Context.THREAD_STRIDE)
    n_live = 0
    for _ in range(load64(context + Context.N_THREADS)):
        status = load64(thread + Thread.STATUS)
        if status != Status.EXITED:
            n_live += 1
        if status == Status.BARRIER:
            barrier = context + 8 * load64(thread + Thread.MASK)
            if load64(thread + Thread.A) > 0:
                store64(barrier + Context.BARRIER_EXPECTED, load64(thread + Thread.A))
            if load64(thread + Thread.OPERATION) == Operation.BARRIER_ARRIVE:
                store64(barrier + Context.BARRIER_ARRIVED, load64(barrier + Context.BARRIER_ARRIVED) + 1)
            else:
                store64(barrier + Context.BARRIER_WAITING, load64(barrier + Context.BARRIER_WAITING) + 1)
                if load64(thread + Thread.B) != 0:
                    store64(barrier + Context.BARRIER_TRUE, load64(barrier + Context.BARRIER_TRUE) + 1)
        thread = thread + stride
    return n_live


def release(context: int, barrier: int, n_arrived: int) -> int:
    n_true = load64(context + Context.BARRIER_TRUE + 8 * barrier)
    thread = load64(context + Context.THREADS)
    stride = load64(context + Context.THREAD_STRIDE)
    n_released = 0
    for _ in range(load64(context + Context.N_THREADS)):
        if load64(thread + Thread.STATUS) == Status.BARRIER and load64(thread + Thread.MASK) == barrier:
            operation = load64(thread + Thread.OPERATION)
            if operation != Operation.BARRIER_ARRIVE:
                result = n_true
                if operation == Operation.BARRIER_AND:
                    result = n_true == n_arrived
                elif operation == Operation.BARRIER_OR:
                    result = n_true != 0
                store64(thread + Thread.RESULT, result)
                store64(thread + Thread.STATUS, Status.RUNNABLE)
                n_released += 1
        thread = thread + stride
    return n_released


def let_arrivers_go(context: int) -> int:
    """`bar.arrive` does not wait: those threads were counted, and run on."""
    thread = load64(context + Context.THREADS)
    stride = load64(context + Context.THREAD_STRIDE)
    n_released = 0
    for _ in range(load64(context + Context.N_THREADS)):
        is_waiting = load64(thread + Thread.STATUS) == Status.BARRIER
        if is_waiting and load64(thread + Thread.OPERATION) == Operation.BARRIER_ARRIVE:
            store64(thread + Thread.STATUS, Status.RUNNABLE)
            n_released += 1
        thread = thread + stride
    return n_released


def check(context: int, thread: int, info: int, address: int) -> int:
    """The closer look at a generic access. Returns 0 when it is allowed, 1 after it recorded a fault."""
    window = shift_right(address, WINDOW_SHIFT) & (N_WINDOWS - 1)
    entry = load64(context + Context.TABLE) + window * ENTRY_BYTES
    n_bytes = 1 << ((info >> Info.LOG2_SHIFT) & 7)
    offset = address - load64(entry + Entry.BASE)
    flags = load64(entry + Entry.FLAGS)
    if window >= FIRST_CLUSTER_WINDOW and (flags & (EntryFlag.NOT_STARTED | EntryFlag.ENDED)) != 0:
        is_ended = (flags & EntryFlag.ENDED) != 0
        return fault(context, thread, info, address, FaultKind.BLOCK_NOT_STARTED + is_ended)
    if offset < 0 or offset > load64(entry + Entry.N_BYTES) - n_bytes or (address & (n_bytes - 1)) != 0:
        return fault(context, thread, info, address, FaultKind.ACCESS)
    if (info & Info.WRITES) != 0 and (flags & EntryFlag.READ_ONLY) != 0:
        return fault(context, thread, info, address, FaultKind.ACCESS)
    if (info & Info.READS) != 0 and (flags & EntryFlag.CHECK_INITIALISED) != 0:
        shadow = load64(entry + Entry.SHADOW) + offset
        for index in range(n_bytes):
            if load8(shadow + index) == 0:
                if window >= FIRST_CLUSTER_WINDOW:
                    return warn(context, thread, info)
                return fault(context, thread, info, address, FaultKind.UNINITIALISED)
    if flags & EntryFlag.WATCHED:
        race = is_race(context, thread, info, entry, offset, n_bytes)
        if race != 0:
            return fault(context, thread, info, address, race)
    if flags & EntryFlag.TRACED:
        trace(context, thread, info, address, n_bytes)
    return 0


def check_shared(context: int, thread: int, info: int, offset: int) -> int:
    """The closer look at an access of shared memory by its own address. Reading bytes that were never written is noted
    and goes on: compilers may load early what they then do not use."""
    launch = load64(context + Context.LAUNCH)
    n_bytes = 1 << ((info >> Info.LOG2_SHIFT) & 7)
    if offset < 0 or offset > load64(launch + Launch.SHARED_BYTES) - n_bytes or (offset & (n_bytes - 1)) != 0:
        return fault(context, thread, info, offset, FaultKind.ACCESS)
    return warn(context, thread, info)


def warn(context: int, thread: int, info: int) -> int:
    """Note a read of shared memory that nothing has written."""
    site = 8 * (info & Info.SITE_MASK)
    counts = load64(context + Context.WARNING_COUNTS) + site
    if load64(counts) == 0:
        place = (load64(context + Context.BLOCK) << 16) | load64(thread + Thread.INDEX)
        store64(load64(context + Context.WARNING_PLACES) + site, place)
    store64(counts, load64(counts) + 1)
    return 0


def fault(context: int, thread: int, info: int, address: int, kind: int) -> int:
    store64(context + Context.FAULT_INFO, info)
    store64(context + Context.FAULT_KIND, kind)
    store64(context + Context.FAULT_ADDRESS, address)
    store64(context + Context.FAULT_THREAD, thread)
    return 1


def trace(context: int, thread: int, info: int, address: int, n_bytes: int) -> int:
    """Count the warp requests and the 32-byte sectors that they touch. A request is one execution of an instruction by
    a warp: the n-th executions of its lanes belong together."""
    if load64(context + Context.N_SEEN) * 2 > load64(context + Context.SEEN_MASK):
        store64(context + Context.N_UNTRACED, load64(context + Context.N_UNTRACED) + 1)
        return 0
    store64(context + Context.N_TRACED, load64(context + Context.N_TRACED) + 1)
    site = info & Info.SITE_MASK
    index = load64(thread + Thread.INDEX)
    counter = load64(context + Context.OCCURRENCES)
    counter = counter + 8 * (site * load64(context + Context.N_THREADS) + index)
    occurrence = load64(counter)
    store64(counter, occurrence + 1)
    traces = load64(context + Context.SITE_TRACES) + SiteTrace.N_BYTES * site
    store64(traces + SiteTrace.N_ACCESSES, load64(traces + SiteTrace.N_ACCESSES) + 1)
    request = ((site * WARP_SIZE + index // WARP_SIZE) << 32) + occurrence
    key = request * HASH_A + load64(context + Context.BLOCK) * HASH_C
    if add_to_seen(context, key):
        store64(context + Context.N_REQUESTS, load64(context + Context.N_REQUESTS) + 1)
        store64(traces + SiteTrace.N_REQUESTS, load64(traces + SiteTrace.N_REQUESTS) + 1)
    sector = address >> SECTOR_SHIFT
    if add_to_seen(context, key + (sector + 1) * HASH_B):
        store64(context + Context.N_SECTORS, load64(context + Context.N_SECTORS) + 1)
        store64(traces + SiteTrace.N_SECTORS, load64(traces + SiteTrace.N_SECTORS) + 1)
    return 0


def add_to_seen(context: int, key: int) -> int:
    """Whether the key is new in the hash set. Keys are 64-bit hashes: two that are equal by chance are very rare."""
    seen = load64(context + Context.SEEN)
    mask = load64(context + Context.SEEN_MASK)
    key = key ^ shift_right(key, 29)
    key = (key * HASH_B) | 1
    slot = shift_right(key, 20) & mask
    while load64(seen + 8 * slot) != 0:
        if load64(seen + 8 * slot) == key:
            return 0
        slot = (slot + 1) & mask
    store64(seen + 8 * slot, key)
    store64(context + Context.N_SEEN, load64(context + Context.N_SEEN) + 1)
    return 1


FUNCTIONS: tuple[Callable[..., int], ...] = (
    run_queue,
    start_block,
    choose_table,
    number_threads,
    start_threads,
    run_block,
    waits_for_cluster,
    has_stalled,
    refuel,
    finish_block,
    run_warp,
    resolve_warp,
    perform,
    shuffle,
    vote,
    give,
    match_lanes,
    reduce_lanes,
    give_mask,
    release_barriers,
    count_waiting,
    release,
    let_arrivers_go,
    check,
    check_shared,
    warn,
    fault,
    trace,
    add_to_seen,
)
