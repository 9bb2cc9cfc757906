"""Translate `mbarrier` objects, and the asynchronous copies that report to them.

The bytes of `cp.async` are written at once, and marked as in flight until the issuing thread has waited for them
(`kernel_lsp.ptx.run.async_copies`). The bytes of a bulk copy are written later if it completes on an object
(`ptx.run.async_copies`). Those of a bulk group are read again when the group is waited for (`ptx.run.async_copies`).
"""

from __future__ import annotations

from kernel_lsp.ptx.compile.cooperation import wide
from kernel_lsp.ptx.compile.emitter import Emitter, Handler, Site
from kernel_lsp.ptx.compile.memory import (
    copy_async,
    locate_at,
    operand_address,
    shared_offset,
    space_of,
    store,
    stored_bytes,
)
from kernel_lsp.ptx.run.barrier_objects import PENDING_SHIFT, PHASE_SHIFT
from kernel_lsp.ptx.run.layout import CopyQueue, FaultKind, Info, Thread
from kernel_lsp.ptx.text.syntax import Address, Instruction, Operand, Register, UnsupportedPtxError

OBJECT_BYTES = 8
ALL_COPIES = -1
"""Pending groups after a wait for every copy: no group, and no uncommitted copy."""
TEST_RACE_FLAGS = int(Info.STRONG | Info.NEARBY | Info.ACQUIRES)
"""Race flags of a wait for an object, which acquires what others published."""
OBJECT_RACE_FLAGS = TEST_RACE_FLAGS | int(Info.RELEASES)
"""Race flags of an operation on an object. Like an atomic operation, it publishes what happened before and acquires
what others published. Its initialisation is a plain store."""
PIECE_BYTES = 16
"""Granularity in bytes of the addresses and sizes of bulk copies."""
_SCOPES = ("release", "acquire", "relaxed", "cta", "cluster")
_KNOWN = frozenset(
    (
        *("init", "inval", "arrive", "arrive_drop", "expect_tx", "complete_tx", "test_wait", "try_wait", "parity"),
        *("noComplete", "pending_count", "shared", "shared__cta", "shared__cluster", "b64", *_SCOPES),
    )
)
_BULK_WORDS = frozenset(
    (
        *("async", "bulk", "global", "shared__cta", "shared__cluster", "mbarrier__complete_tx__bytes", "bulk_group"),
        *("L2__cache_hint", "commit_group", "wait_group", "read"),
    )
)


def barrier_object(e: Emitter, i: Instruction) -> None:
    """Translate `mbarrier` in all its forms."""
    if unknown := [modifier for modifier in i.modifiers if modifier not in _KNOWN]:
        raise UnsupportedPtxError(f"'{unknown[0]}' of an mbarrier", i)
    if i.has("pending_count"):
        word = e.read(i.operands[1], "i64")
        e.write(i.operands[0], e.op(f"and i64 {e.op(f'lshr i64 {word}, {PENDING_SHIFT}')}, 1048575"), "i64")
    elif i.has("init"):
        _call(e, i, "barrier_init", _object(e, i, i.operands[0], reads=False), wide(e, i.operands[1]))
    elif i.has("test_wait", "try_wait"):
        _wait(e, i)
    elif i.has("arrive", "arrive_drop"):
        _arrive(e, i)
    elif i.has("expect_tx", "complete_tx"):
        n_bytes = wide(e, i.operands[1])
        given = n_bytes if i.has("expect_tx") else e.op(f"sub i64 0, {n_bytes}")
        _call(e, i, "barrier_arrive", _object(e, i, i.operands[0]), "0", "0", given)
    elif i.has("inval"):
        e.line(f"store i64 0, ptr {_object(e, i, i.operands[0])}, align 1")


def copy(e: Emitter, i: Instruction) -> None:
    """Translate `cp.async` in all its forms."""
    if i.has("mbarrier"):
        _arrive_after_copies(e, i)
    elif i.has("bulk"):
        _copy_bulk(e, i)
    elif i.has("ca", "cg"):
        copy_async(e, i)
        n_bytes = getattr(i.operands[2], "bits", 0)
        offset = shared_offset(e, operand_address(e, i, i.operands[0]))
        e.op(f"call i64 @copy_started(i64 %context.i, i64 {e.copy_queue()}, i64 {offset}, i64 {n_bytes})")
    elif i.has("commit_group"):
        e.copy_queue()
        n_groups = e.field("%copies", int(CopyQueue.N_GROUPS))
        n_before = e.op(f"load i64, ptr {n_groups}")
        e.line(f"store i64 {e.op(f'add i64 1, {n_before}')}, ptr {n_groups}")
    elif i.has("wait_group"):
        _end_copies(e, getattr(i.operands[0], "bits", 0))
    elif i.has("wait_all"):
        _end_copies(e, ALL_COPIES)
    else:
        raise UnsupportedPtxError("this form of cp", i)


def store_any(e: Emitter, i: Instruction) -> None:
    """Translate `st`.
    ``st.async.mbarrier [a], b, [mbarrier]`` also writes at once, and its bytes have arrived at the object."""
    store(e, i)
    if i.has("async"):
        if not i.has("mbarrier__complete_tx__bytes"):
            raise UnsupportedPtxError("this form of st.async", i)
        _call(e, i, "barrier_arrive", _object(e, i, i.operands[2]), "0", "0", str(-stored_bytes(i)))


HANDLERS: dict[str, Handler] = {"mbarrier": barrier_object, "cp": copy, "st": store_any}


def _object(e: Emitter, i: Instruction, operand: Operand, *, reads: bool = True, writes: bool = True) -> str:
    """Return the host address of an object. Every operation but a wait may modify the object."""
    space = _in_cluster(e, "shared" if i.opcode == "cp" else space_of(i))
    scope = 0 if e.maps_addresses else int(Info.IN_BLOCK)
    orders = OBJECT_RACE_FLAGS if writes else TEST_RACE_FLAGS
    address, flags = operand_address(e, i, operand), orders | scope if reads else 0
    return locate_at(e, i, address, OBJECT_BYTES, reads=reads, writes=writes, space=space, race_flags=flags)


def _in_cluster(e: Emitter, space: str) -> str:
    """Return the space of an address that may be in any block of the cluster: the block's own space if no address is
    mapped."""
    return "shared" if space == "cluster" and not e.maps_addresses else space


def _call(e: Emitter, i: Instruction, function: str, pointer: str, *arguments: str) -> None:
    """Call a function of `kernel_lsp.ptx.run.async_copies`, and leave the kernel when it reports a fault."""
    fine = e.label()
    place = e.op(f"ptrtoint ptr {pointer} to i64")
    values = ("%context.i", "%thread.i", str(e.site(Site(i, "shared", OBJECT_BYTES, True, True))), place, *arguments)
    verdict = e.op(f"call i64 @{function}({', '.join(f'i64 {value}' for value in values)})")
    e.line(f"br i1 {e.op(f'icmp ne i64 {verdict}, 0')}, label %fault, label %{fine}, !prof !1")
    e.begin(fine)


def _arrive(e: Emitter, i: Instruction) -> None:
    """Translate ``mbarrier.arrive{.expect_tx} state, [p]{, count}``; in clusters, without a state."""
    operands = list(i.operands)
    target = operands.pop(0) if not isinstance(operands[0], Address) else None
    count, n_bytes = "1", "0"
    if len(operands) > 1:
        value = wide(e, operands[1])
        count, n_bytes = ("1", value) if i.has("expect_tx") else (value, "0")
    leaving = count if i.has("arrive_drop") else "0"
    _call(e, i, "barrier_arrive", _object(e, i, operands[0]), count, leaving, n_bytes)
    if target is not None:
        e.write(target, e.thread_field(Thread.RESULT), "i64")


def _wait(e: Emitter, i: Instruction) -> None:
    """Translate ``mbarrier.try_wait{.parity} p, [p], state``: return whether the phase is complete, and yield if not.
    Progress during the yield is not returned: a GPU's wait has an implementation-defined time limit."""
    target, address, phase = i.operands[:3]
    again, done = e.label(), e.label()
    _test(e, i, address, phase)
    answer = e.thread_field(Thread.RESULT)
    e.write(target, answer, "i64")
    e.line(f"br i1 {e.op(f'icmp ne i64 {answer}, 0')}, label %{done}, label %{again}")
    e.begin(again)
    e.give_way(i)
    e.line(f"br label %{done}")
    e.begin(done)


def _test(e: Emitter, i: Instruction, address: Operand, phase: Operand) -> None:
    parity = wide(e, phase) if i.has("parity") else e.op(f"lshr i64 {e.read(phase, 'i64')}, {PHASE_SHIFT}")
    _call(e, i, "barrier_test", _object(e, i, address, writes=False), parity)


def _end_copies(e: Emitter, n_pending: int) -> None:
    """Wait for the thread's copies, except for the last groups."""
    e.op(f"call i64 @copies_waited(i64 %context.i, i64 {e.copy_queue()}, i64 {n_pending})")


def _arrive_after_copies(e: Emitter, i: Instruction) -> None:
    """Translate ``cp.async.mbarrier.arrive{.noinc} [p]``: all copies are complete. Without ``.noinc``, one more arrival
    is expected before this one, so the object does not change."""
    _end_copies(e, ALL_COPIES)
    count = "1" if i.has("noinc") else "0"
    _call(e, i, "barrier_arrive", _object(e, i, i.operands[0]), count, "0", "0")


def _copy_bulk(e: Emitter, i: Instruction) -> None:
    """Translate ``cp.async.bulk.to.from.completion [d], [s], size, [mbarrier]``."""
    if unknown := [modifier for modifier in i.modifiers if modifier not in _BULK_WORDS]:
        raise UnsupportedPtxError(f"'{unknown[0]}' of a bulk copy", i)
    if i.has("commit_group", "wait_group"):
        _end_group(e, i)
        return
    places = [modifier for modifier in i.modifiers if modifier in ("global", "shared__cta", "shared__cluster")]
    if len(places) != 2 or places.count("global") != 1:
        raise UnsupportedPtxError("a bulk copy between these spaces", i)
    to, source = ("global" if place == "global" else "shared" for place in places)
    if "shared__cluster" in places and e.maps_addresses:
        raise UnsupportedPtxError("a bulk copy in a kernel that maps addresses to other blocks", i)
    from_host, to_host = _copy_pieces(e, i, to, source)
    size = wide(e, i.operands[2])
    if i.has("mbarrier__complete_tx__bytes"):
        _call(e, i, "bulk_started", _object(e, i, i.operands[3]), from_host, to_host, size)
    else:
        site = e.site(Site(i, source, PIECE_BYTES, True, False))
        values = ("%context.i", "%thread.i", str(site), e.store_queue(), from_host, to_host, size)
        e.op(f"call i64 @bulk_store_started({', '.join(f'i64 {value}' for value in values)})")


def _end_group(e: Emitter, i: Instruction) -> None:
    """Translate commit and wait of bulk groups, i.e. copies from shared memory. A thread without such copies does
    not wait."""
    if not e.has_bulk_stores:
        return
    if i.has("commit_group"):
        e.op(f"call i64 @bulk_stores_committed(i64 {e.store_queue()})")
    else:
        n_pending = getattr(i.operands[0], "bits", 0)
        values = f"i64 %context.i, i64 %thread.i, i64 {e.store_queue()}, i64 {n_pending}"
        e.op(f"call i64 @bulk_stores_waited({values})")


def _copy_pieces(e: Emitter, i: Instruction, to: str, source: str) -> tuple[str, str]:
    """Copy in pieces of 16 bytes, each with its checks. Returns the host addresses of source and target."""
    target_operand, source_operand, size_operand = i.operands[:3]
    size = wide(e, size_operand)
    is_whole = e.op(f"icmp eq i64 {e.op(f'and i64 {size}, {PIECE_BYTES - 1}')}, 0")
    e.fault_unless(is_whole, Site(i, to, PIECE_BYTES, True, True), size, FaultKind.BULK_SIZE)
    done = Register(f"%bulk.{len(e.sites)}")
    hosts = Register(f"{done.name}.from"), Register(f"{done.name}.to")
    for register in (done, *hosts):
        e.storage[register.name] = "i64"
        e.write(register, "0", "i64")
    head, body, end = e.label(), e.label(), e.label()
    e.line(f"br label %{head}")
    e.begin(head)
    is_inside = e.op(f"icmp ult i64 {e.read(done, 'i64')}, {size}")
    e.line(f"br i1 {is_inside}, label %{body}, label %{end}")
    e.begin(body)
    offset = e.read(done, "i64")
    here = e.op(f"add i64 {operand_address(e, i, source_operand)}, {offset}")
    there = e.op(f"add i64 {operand_address(e, i, target_operand)}, {offset}")
    from_pointer = locate_at(e, i, here, PIECE_BYTES, reads=True, writes=False, space=source)
    value = e.op(f"load i128, ptr {from_pointer}, align 1")
    to_pointer = locate_at(e, i, there, PIECE_BYTES, reads=False, writes=True, space=to)
    e.line(f"store i128 {value}, ptr {to_pointer}, align 1")
    for register, pointer in zip(hosts, (from_pointer, to_pointer), strict=True):
        e.write(register, e.op(f"sub i64 {e.op(f'ptrtoint ptr {pointer} to i64')}, {offset}"), "i64")
    e.write(done, e.op(f"add i64 {offset}, {PIECE_BYTES}"), "i64")
    e.line(f"br label %{head}")
    e.begin(end)
    return e.read(hosts[0], "i64"), e.read(hosts[1], "i64")
