"""Schedule the threads of blocks: run each to its next yield, resolve warp operations and barriers, and repeat.

Written in the subset that `ptx.compile.native` translates. Addresses are host
addresses of the records that `kernel_lsp.ptx.run.layout` describes.

Threads follow Volta's independent scheduling. A warp operation waits for the lanes in its mask. A barrier waits for its
count, or for all threads that have not exited. Nothing else runs in lockstep.
"""

from __future__ import annotations

from kernel_lsp.ptx.compile.native import call_thread, fill, load64, store64
from kernel_lsp.ptx.races.order import start_races
from kernel_lsp.ptx.races.watch import settle_store
from kernel_lsp.ptx.run.async_copies import look_for_copies
from kernel_lsp.ptx.run.block_barriers import release_barriers
from kernel_lsp.ptx.run.layout import (
    BETWEEN_VARIABLES,
    ENTRY_BYTES,
    LOCAL_WINDOW,
    N_BARRIERS,
    WARP_SIZE,
    Arrivals,
    BlockStatus,
    Context,
    Entry,
    Launch,
    Status,
    Thread,
)
from kernel_lsp.ptx.run.warp_operations import resolve_warp

BLOCK_ID_MASK = (1 << 48) - 1
TRACE_BLOCK = 1 << 48
"""Flag in an entry of the block queue: the block's accesses are traced."""
MAX_POISONED_BYTES = 1 << 20
"""Maximum bytes of a block's local memory that are poisoned.
Larger memory keeps its content, because filling it takes longer than running most blocks."""
N_PASSES_BEFORE_PARKING = 8
"""Maximum passes of a block that only spins. It is then parked, so that the block it waits for can run."""


def run_queue(context: int) -> int:
    """Run the queued blocks from the cursor on.
    Returns at the first that does not end normally, with the cursor on it."""
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
        fill(load64(launch + Launch.SHARED_HOST), load64(context + Context.SHARED_POISON), n_shared)
        fill(load64(launch + Launch.SHARED_SHADOW), 0, n_shared)
        mark_gaps(context, load64(launch + Launch.SHARED_SHADOW))
    n_local = load64(context + Context.LOCAL_BYTES) * load64(context + Context.N_THREADS)
    if n_local <= MAX_POISONED_BYTES:
        fill(load64(context + Context.LOCAL_BASE), load64(context + Context.LOCAL_POISON), n_local)
    fill(context + Context.BARRIER_ARRIVED, 0, 8 * N_BARRIERS)
    store64(context + Context.N_STALLED, 0)
    store64(context + Context.INTERRUPTIONS, load64(context + Context.N_INTERRUPTIONS))
    store64(load64(context + Context.ARRIVALS) + Arrivals.N_COPIES, 0)
    if load64(context + Context.RACES) != 0:
        start_races(context)
    choose_table(context, entry)
    start_threads(context)
    return 0


def mark_gaps(context: int, shadow: int) -> int:
    """Mark the gaps between shared variables."""
    gap = load64(context + Context.SHARED_GAPS)
    for _ in range(load64(context + Context.N_SHARED_GAPS)):
        fill(shadow + load64(gap), BETWEEN_VARIABLES, load64(gap + 8))
        gap = gap + 16
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
    """Write the fields of the threads' records that are constant for a launch."""
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
        store64(thread + Thread.WAY, 0)
        store64(thread + Thread.FUEL, fuel)
        store64(thread + Thread.FUEL_GIVEN, fuel)
        store64(thread + Thread.POLLED, 0)
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
        is_turned = is_turned_round(context)
        for position in range(n_warps):
            warp = load64(order + 8 * (n_warps - 1 - position if is_turned else position))
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
        if n_released < 0:
            return BlockStatus.FAULT
        if load64(context + Context.N_LIVE) == 0:
            return finish_block(context)
        if n_out_of_fuel == 0:
            if n_released == 0:
                return BlockStatus.CLUSTER_WAIT if waits_for_cluster(context) else BlockStatus.DEADLOCK
        else:
            if refuel(context) == 0:
                return BlockStatus.OUT_OF_BUDGET
            if n_released == 0:
                if look_for_copies(context) != 0:
                    return BlockStatus.FAULT
                if has_stalled(context):
                    return BlockStatus.PARKED
    return BlockStatus.DONE


def waits_for_cluster(context: int) -> int:
    """Check whether a thread is at the cluster barrier."""
    thread = load64(context + Context.THREADS)
    for _ in range(load64(context + Context.N_THREADS)):
        if load64(thread + Thread.STATUS) == Status.CLUSTER:
            return 1
        thread = thread + load64(context + Context.THREAD_STRIDE)
    return 0


def has_stalled(context: int) -> int:
    n_stalled = load64(context + Context.N_STALLED) + 1
    store64(context + Context.N_STALLED, n_stalled)
    if load64(context + Context.MAY_PARK) == 0:
        return 0
    return load64(context + Context.INTERRUPTIONS) > 0 or n_stalled % N_PASSES_BEFORE_PARKING == 0


def is_turned_round(context: int) -> int:
    """Check whether threads run in reverse order: the first to read is then the last to write."""
    return load64(context + Context.TURNS_ROUND) != 0 and load64(context + Context.N_STALLED) % 2 == 1


def refuel(context: int) -> int:
    """Refuel each thread that has used up its time slice. Returns 0 when the budget is spent."""
    thread = load64(context + Context.THREADS)
    stride = load64(context + Context.THREAD_STRIDE)
    fuel = load64(context + Context.SLICE)
    spent = 0
    for _ in range(load64(context + Context.N_THREADS)):
        if load64(thread + Thread.STATUS) == Status.OUT_OF_FUEL:
            # A thread that yielded to wait has fuel left.
            left = load64(thread + Thread.FUEL)
            given = fuel - left if left > 0 else fuel
            if load64(context + Context.COMES_BACK) == 0:
                if left < 0:
                    return 0
                given = 0  # it was interrupted, and already has its full allowance
            store64(thread + Thread.STATUS, Status.RUNNABLE)
            store64(thread + Thread.FUEL, left + given)
            store64(thread + Thread.FUEL_GIVEN, load64(thread + Thread.FUEL_GIVEN) + given)
            spent += given
        thread = thread + stride
    budget = load64(context + Context.BUDGET) - spent
    store64(context + Context.BUDGET, budget)
    return budget > 0


def finish_block(context: int) -> int:
    """Charge the block's instructions to the launch, and record the longest thread."""
    thread = load64(context + Context.THREADS)
    stride = load64(context + Context.THREAD_STRIDE)
    longest = load64(context + Context.MAX_PER_THREAD)
    total = 0
    for _ in range(load64(context + Context.N_THREADS)):
        executed = load64(thread + Thread.FUEL_GIVEN) - load64(thread + Thread.FUEL)
        total += executed
        worked = executed - load64(thread + Thread.POLLED)
        if worked > longest:
            longest = worked
        thread = thread + stride
    store64(context + Context.MAX_PER_THREAD, longest)
    budget = load64(context + Context.BUDGET) - total
    store64(context + Context.BUDGET, budget)
    if budget <= 0:
        return BlockStatus.OUT_OF_BUDGET
    return BlockStatus.DONE


def run_warp(context: int, first: int, n_lanes: int) -> int:
    """Run the lanes until none can proceed. Returns how many ran out of fuel, or -1 after a fault. Where no thread
    waits for another, the first lane out of fuel ends the pass: each other lane would take as long."""
    function = load64(context + Context.FUNCTION)
    counts = load64(context + Context.COUNTS)
    table = load64(context + Context.TABLE)
    launch = load64(context + Context.LAUNCH)
    stride = load64(context + Context.THREAD_STRIDE)
    order = load64(context + Context.LANE_ORDER)
    can_wait = load64(context + Context.CAN_SPIN)
    is_turned = is_turned_round(context)
    races = load64(context + Context.RACES)
    local_host = table + LOCAL_WINDOW * ENTRY_BYTES + Entry.HOST
    while True:
        n_waiting = 0
        n_out_of_fuel = 0
        for position in range(WARP_SIZE):
            lane = load64(order + 8 * (WARP_SIZE - 1 - position if is_turned else position))
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
                if races != 0 and settle_store(context) != 0:
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
    return 0
