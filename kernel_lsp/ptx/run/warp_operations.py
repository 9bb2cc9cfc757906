"""Implement warp-collective operations: shuffles, votes, matches, reductions, and synchronisation.

Written in the subset that `ptx.compile.native` translates. Lanes are bits of a mask; `first` is the record of lane 0.
"""

from __future__ import annotations

from kernel_lsp.ptx.checks.access_faults import fault
from kernel_lsp.ptx.compile.fragments import perform_matrix
from kernel_lsp.ptx.compile.native import count_trailing_zeros, load64, store64
from kernel_lsp.ptx.races.order import order_warp
from kernel_lsp.ptx.run.layout import Context, Operation, Status, Thread


def resolve_warp(context: int, first: int, n_lanes: int) -> int:
    """Perform each warp operation whose lanes have all arrived.
    Returns how many were performed, or -1 after a fault."""
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
            is_alike = load64(thread + Thread.OPERATION) == operation and load64(thread + Thread.MASK) == mask
            if is_alike and (operation != Operation.ACTIVE_MASK or may_be_together(context, leader, thread)):
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
            if operation != Operation.ACTIVE_MASK:
                bring_together(first, stride, group, mask)
            if operation != Operation.ACTIVE_MASK and load64(context + Context.RACES) != 0:
                order_warp(context, first, group, live)
            n_performed += 1
    return n_performed


def may_be_together(context: int, one: int, other: int) -> int:
    """Check whether two lanes at the same `activemask` are converged.
    They certainly are only if they took the same path since they last were."""
    if load64(context + Context.KEEPS_APART) == 0:
        return 1
    return load64(one + Thread.WAY) == load64(other + Thread.WAY)


def bring_together(first: int, stride: int, group: int, mask: int) -> int:
    """Converge the lanes that have met. Lanes of another mask are not converged with them."""
    way = load64(first + count_trailing_zeros(group) * stride + Thread.WAY) + mask
    rest = group
    while rest != 0:
        store64(first + count_trailing_zeros(rest) * stride + Thread.WAY, way)
        rest &= rest - 1
    return 0


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
    """Implement `shfl.sync` (PTX ISA). The value of an inactive source lane is undefined: see `poison_of_lane`."""
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
        if is_inside == 0:
            source = lane
        value = poison_of_lane(source)
        if (group >> source) & 1 != 0:
            value = load64(first + source * stride + Thread.A)
        store64(thread + Thread.RESULT, value)
        store64(thread + Thread.RESULT_PREDICATE, is_inside)
        rest &= rest - 1
    return 0


def poison_of_lane(lane: int) -> int:
    """Return the poison value of an inactive lane. Of any four adjacent lanes, one gives NaN, which is also the largest
    signed number, one the largest float, one the smallest, and one zero. No combination of them hides it."""
    kind = lane & 3
    if kind == 0:
        return 0x7FFFFFFF
    if kind == 1:
        return 0x7F7FFFFF
    return 0xFF7FFFFF if kind == 2 else 0


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
    """Implement `redux.sync` over sign- or zero-extended 32-bit values."""
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
    """Return the group for `activemask`.
    For `elect.sync`, return its first lane, and a predicate that is true only there."""
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
