"""Run the blocks of a cluster together: each until it waits for the others, then the cluster barrier.

Written in the subset that `ptx.compile.native` translates, like `ptx.run.scheduler`. `lead` is the context of the
cluster's first block.
"""

from __future__ import annotations

from kernel_lsp.ptx.checks.access_faults import fault
from kernel_lsp.ptx.compile.native import fill, load64, store64
from kernel_lsp.ptx.races.clusters import order_cluster, start_cluster_races
from kernel_lsp.ptx.races.layout import RaceBlock
from kernel_lsp.ptx.run.layout import (
    ENTRY_BYTES,
    FIRST_CLUSTER_WINDOW,
    MAX_CLUSTER_BLOCKS,
    N_ACCESS_SIZES,
    SHARED_WINDOW,
    WINDOW_HALF,
    WINDOW_SHIFT,
    BlockStatus,
    Context,
    Entry,
    EntryFlag,
    FaultKind,
    Launch,
    Status,
    Thread,
)
from kernel_lsp.ptx.run.scheduler import BLOCK_ID_MASK, N_PASSES_BEFORE_PARKING, TRACE_BLOCK, run_block, start_block

NO_STEP = 1 << 62
"""Sentinel above any thread's `CLUSTER_STEP`."""


def run_cluster_queue(lead: int) -> int:
    """Run the queued clusters from the cursor on.
    Returns at the first that does not end normally, with the cursor on it."""
    queue = load64(lead + Context.BLOCKS)
    while load64(lead + Context.CURSOR) < load64(lead + Context.N_BLOCKS):
        start_cluster(lead, load64(queue + 8 * load64(lead + Context.CURSOR)))
        status = run_cluster(lead)
        if status != BlockStatus.DONE:
            return status
        store64(lead + Context.CURSOR, load64(lead + Context.CURSOR) + 1)
    return BlockStatus.DONE


def start_cluster(lead: int, entry: int) -> int:
    store64(lead + Context.CLUSTER_PHASE, 0)
    store64(lead + Context.CLUSTER_N_STALLED, 0)
    contexts = load64(lead + Context.CLUSTER_CONTEXTS)
    for rank in range(load64(lead + Context.CLUSTER_N_BLOCKS)):
        context = load64(contexts + 8 * rank)
        store64(context + Context.BUDGET, load64(lead + Context.BUDGET))
        start_block(context, place_block(context, entry & BLOCK_ID_MASK, rank) | (entry & TRACE_BLOCK))
        start_steps(context)
        store64(context + Context.CLUSTER_STATE, EntryFlag.NOT_STARTED)
    if load64(lead + Context.RACES) != 0:
        start_cluster_races(lead)
    return 0


def place_block(context: int, cluster: int, rank: int) -> int:
    """Write the cluster's position in the grid. Returns the number of its block of this rank."""
    launch = load64(context + Context.LAUNCH)
    block = 0
    factor = 1
    for axis in range(3):
        n_clusters = load64(launch + Launch.NCLUSTERID_X + 8 * axis)
        n_blocks = load64(launch + Launch.CLUSTER_NCTAID_X + 8 * axis)
        store64(launch + Launch.CLUSTERID_X + 8 * axis, cluster % n_clusters)
        store64(launch + Launch.CLUSTER_CTAID_X + 8 * axis, rank % n_blocks)
        block += factor * ((cluster % n_clusters) * n_blocks + rank % n_blocks)
        factor = factor * load64(launch + Launch.NCTAID_X + 8 * axis)
        cluster = cluster // n_clusters
        rank = rank // n_blocks
    return block


def start_steps(context: int) -> int:
    thread = load64(context + Context.THREADS)
    for _ in range(load64(context + Context.N_THREADS)):
        store64(thread + Thread.CLUSTER_STEP, 0)
        thread = thread + load64(context + Context.THREAD_STRIDE)
    return 0


def run_cluster(lead: int) -> int:
    """Run the current cluster until it ends, fails, or spins too long. Returns a BlockStatus."""
    n_blocks = load64(lead + Context.CLUSTER_N_BLOCKS)
    contexts = load64(lead + Context.CLUSTER_CONTEXTS)
    order = load64(lead + Context.CLUSTER_ORDER)
    show_cluster(lead)
    while True:
        n_ended = 0
        n_parked = 0
        for position in range(n_blocks):
            context = load64(contexts + 8 * load64(order + 8 * position))
            status = run_turn(lead, context)
            if status == BlockStatus.DONE:
                n_ended += 1
            elif status == BlockStatus.PARKED:
                n_parked += 1
            elif status != BlockStatus.CLUSTER_WAIT:
                store64(lead + Context.CLUSTER_FAILED, context)
                return status
        if n_ended == n_blocks:
            return BlockStatus.DONE
        if release_cluster(lead) == 0:
            if n_parked == 0:
                return BlockStatus.CLUSTER_DEADLOCK
            n_stalled = load64(lead + Context.CLUSTER_N_STALLED) + 1
            store64(lead + Context.CLUSTER_N_STALLED, n_stalled)
            if n_stalled % N_PASSES_BEFORE_PARKING == 0:
                return BlockStatus.PARKED
    return BlockStatus.DONE


def run_turn(lead: int, context: int) -> int:
    """Run one block until it cannot proceed."""
    if load64(context + Context.CLUSTER_STATE) == EntryFlag.ENDED:
        return BlockStatus.DONE
    if load64(context + Context.CLUSTER_STATE) == EntryFlag.NOT_STARTED:
        store64(context + Context.CLUSTER_STATE, 0)
        show_block(context)
    show_own(context, load64(context + Context.FAST_TABLE))
    show_own(context, load64(context + Context.TRACED_TABLE))
    store64(context + Context.BUDGET, load64(lead + Context.BUDGET))
    status = run_block(context)
    store64(lead + Context.BUDGET, load64(context + Context.BUDGET))
    if status == BlockStatus.DONE:
        store64(context + Context.CLUSTER_STATE, EntryFlag.ENDED)
        show_block(context)
    return status


def show_own(context: int, table: int) -> int:
    """Map the block's shared memory at the shared window of generic addresses."""
    launch = load64(context + Context.LAUNCH)
    entry = table + SHARED_WINDOW * ENTRY_BYTES
    store64(entry + Entry.HOST, load64(launch + Launch.SHARED_HOST))
    store64(entry + Entry.SHADOW, load64(launch + Launch.SHARED_SHADOW))
    show_records(context, entry)
    return 0


def show_records(context: int, entry: int) -> int:
    """Return the address of the race records of the block's shared memory; 0 without a race check."""
    races = load64(context + Context.RACES)
    if races == 0:
        return 0
    store64(entry + Entry.RECORDS, load64(races + RaceBlock.SHARED_RECORDS))
    return EntryFlag.WATCHED


def show_cluster(lead: int) -> int:
    """Map the shared memory of each block at the window of its rank, and clear the windows of other ranks."""
    for table in range(2):
        first = load64(lead + Context.FAST_TABLE + 8 * table) + FIRST_CLUSTER_WINDOW * ENTRY_BYTES
        fill(first, 0, ENTRY_BYTES * (MAX_CLUSTER_BLOCKS + 1))
    contexts = load64(lead + Context.CLUSTER_CONTEXTS)
    for rank in range(load64(lead + Context.CLUSTER_N_BLOCKS)):
        show_block(load64(contexts + 8 * rank))
    return 0


def show_block(context: int) -> int:
    show_remote(context, load64(context + Context.FAST_TABLE))
    show_remote(context, load64(context + Context.TRACED_TABLE))
    return 0


def show_remote(context: int, table: int) -> int:
    """Map another block's shared memory. Reads always take the slow path, which knows the initialised bytes. Writes do
    when the block does not run, and under race checks."""
    launch = load64(context + Context.LAUNCH)
    window = FIRST_CLUSTER_WINDOW + load64(launch + Launch.CLUSTER_RANK)
    entry = table + window * ENTRY_BYTES
    state = load64(context + Context.CLUSTER_STATE) | show_records(context, entry)
    store64(entry + Entry.BASE, (window << WINDOW_SHIFT) + WINDOW_HALF + load64(launch + Launch.SHARED_START))
    store64(entry + Entry.HOST, load64(launch + Launch.SHARED_HOST))
    store64(entry + Entry.SHADOW, load64(launch + Launch.SHARED_SHADOW))
    store64(entry + Entry.FLAGS, state | EntryFlag.CHECK_INITIALISED)
    store64(entry + Entry.N_BYTES, load64(launch + Launch.SHARED_BYTES))
    for log2 in range(N_ACCESS_SIZES):
        limit = load64(launch + Launch.SHARED_LIMITS + 8 * log2)
        if state != 0:
            limit = 0
        store64(entry + Entry.WRITE_LIMITS + 8 * log2, limit)
    return 0


def release_cluster(lead: int) -> int:
    """Release the threads whose barrier is complete. Returns how many threads can run again."""
    contexts = load64(lead + Context.CLUSTER_CONTEXTS)
    n_blocks = load64(lead + Context.CLUSTER_N_BLOCKS)
    least = NO_STEP
    for rank in range(n_blocks):
        step = least_step(load64(contexts + 8 * rank))
        if step < least:
            least = step
    if least > 2 * load64(lead + Context.CLUSTER_PHASE):
        store64(lead + Context.CLUSTER_PHASE, load64(lead + Context.CLUSTER_PHASE) + 1)
        if load64(lead + Context.RACES) != 0:
            order_cluster(lead)
    n_released = 0
    for rank in range(n_blocks):
        n_released += pass_barrier(load64(contexts + 8 * rank), load64(lead + Context.CLUSTER_PHASE))
    return n_released


def least_step(context: int) -> int:
    """Return the minimum step of the threads that have not exited."""
    thread = load64(context + Context.THREADS)
    least = NO_STEP
    for _ in range(load64(context + Context.N_THREADS)):
        if load64(thread + Thread.STATUS) != Status.EXITED and load64(thread + Thread.CLUSTER_STEP) < least:
            least = load64(thread + Thread.CLUSTER_STEP)
        thread = thread + load64(context + Context.THREAD_STRIDE)
    return least


def pass_barrier(context: int, phase: int) -> int:
    """Resume the threads that wait for a barrier before `phase`. Returns how many."""
    thread = load64(context + Context.THREADS)
    n_released = 0
    for _ in range(load64(context + Context.N_THREADS)):
        step = load64(thread + Thread.CLUSTER_STEP)
        if load64(thread + Thread.STATUS) == Status.CLUSTER and step < 2 * phase:
            store64(thread + Thread.CLUSTER_STEP, step + 1)
            store64(thread + Thread.WAY, 0)
            store64(thread + Thread.STATUS, Status.RUNNABLE)
            n_released += 1
        thread = thread + load64(context + Context.THREAD_STRIDE)
    return n_released


def check_cluster_step(context: int, thread: int, info: int, step: int) -> int:
    """Check for a thread that arrives at the cluster barrier twice, or waits there without having arrived."""
    return fault(context, thread, info, step, FaultKind.CLUSTER_STEP)
