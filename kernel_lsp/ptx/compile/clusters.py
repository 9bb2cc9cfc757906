"""Translate instructions of thread block clusters: shared-memory addresses of other blocks, and the cluster barrier.

An address in the shared window of a cluster has 32 bits: see `CLUSTER_RANK_SHIFT`. Among generic addresses, the memory
of each block is a window of its own, so that accesses are checked like those of a tensor. A block's own memory is at
`SHARED_WINDOW`, and at the window of its rank.
"""

from __future__ import annotations

from kernel_lsp.ptx.compile.emitter import Emitter, Handler, Site
from kernel_lsp.ptx.compile.register_ir import llvm_type
from kernel_lsp.ptx.run.layout import (
    CLUSTER_OFFSET_HALF,
    CLUSTER_RANK_SHIFT,
    FIRST_CLUSTER_WINDOW,
    MAX_CLUSTER_BLOCKS,
    SHARED_WINDOW,
    WINDOW_SHIFT,
    Launch,
    Status,
    Thread,
    window_base,
)
from kernel_lsp.ptx.text.flow import Block
from kernel_lsp.ptx.text.syntax import Address, Instruction

_LOADS = ("ld", "ldu", "atom", "getctarank", "isspacep", "setp")


def map_address(e: Emitter, i: Instruction) -> None:
    """Translate ``mapa d, a, b``: the address that corresponds to `a` in the block of rank `b`.
    A rank out of range gives an address that faults."""
    target, source, rank = i.operands
    width = llvm_type(i.types()[-1])
    block = e.call("i64", "llvm.umin.i64", f"i64 {e.coerce(e.read(rank, 'i32'), 'i32', 'i64')}", _NO_RANK)
    address = e.read(source, "i64")
    if i.has("shared__cluster"):
        _, offset = _split(e, address)
        e.write(target, e.coerce(_join(e, block, offset), "i64", width), width)
        return
    is_known = is_shared(e, e.op(f"lshr i64 {address}, {WINDOW_SHIFT}"), in_cluster=True)
    offset = e.op(f"and i64 {address}, {(1 << WINDOW_SHIFT) - 1}")
    mapped = e.op(f"or i64 {e.op(f'shl i64 {_window(e, block)}, {WINDOW_SHIFT}')}, {offset}")
    e.write(target, e.op(f"select i1 {is_known}, i64 {mapped}, i64 0"), "i64")


def block_rank(e: Emitter, i: Instruction) -> None:
    """Translate ``getctarank d, a``: the rank of the block whose shared memory contains `a`."""
    target, source = i.operands
    address = e.read(source, "i64")
    if not i.has("shared__cluster"):
        address = shared_from_generic(e, address)
    rank, _ = _split(e, address)
    e.write(target, rank, "i64")


def cluster_barrier(e: Emitter, i: Instruction) -> None:
    """Translate the cluster barrier. ``barrier.cluster.arrive`` does not wait; ``barrier.cluster.wait`` waits until all
    threads of the cluster that have not exited have arrived. Earlier accesses are then visible. The race check handles
    ``.relaxed``, which does not promise visibility."""
    step = e.thread_field(Thread.CLUSTER_STEP)
    has_arrived = e.op(f"trunc i64 {step} to i1")
    site = e.site(Site(i))
    if i.has("arrive"):
        e.slow_check("check_cluster_step", site, step, e.op(f"xor i1 true, {has_arrived}"))
        is_unwatched = e.op(f"icmp eq i64 {e.launch_field(Launch.IS_WATCHED)}, 0")
        e.slow_check("watch_cluster_arrival", site, str(int(not i.has("relaxed"))), is_unwatched)
        e.store_thread_field(Thread.CLUSTER_STEP, e.op(f"add i64 {step}, 1"))
    else:
        e.slow_check("check_cluster_step", site, step, has_arrived)
        e.yield_to_scheduler(i, e.live_after_current(), Status.CLUSTER)


def generic_from_shared(e: Emitter, address: str) -> str:
    """Return the generic address of a shared one. An address of the block's own memory stays recognisable."""
    rank, offset = _split(e, address)
    window = e.op(f"select i1 {_is_own(e, address)}, i64 {SHARED_WINDOW}, i64 {_window(e, rank)}")
    return _generic(e, window, offset)


def remote_pointer_address(e: Emitter, address: str) -> str:
    """Return the generic address through which a ``.shared::cluster`` access is checked: its block's window."""
    rank, offset = _split(e, address)
    return _generic(e, _window(e, rank), offset)


def shared_from_generic(e: Emitter, address: str) -> str:
    """Return the address in the shared window of the cluster for a generic one."""
    offset = e.op(f"sub i64 {e.op(f'and i64 {address}, {(1 << WINDOW_SHIFT) - 1}')}, {window_base(0)}")
    window = e.op(f"lshr i64 {address}, {WINDOW_SHIFT}")
    rank = e.op(f"sub i64 {window}, {FIRST_CLUSTER_WINDOW}")
    is_remote = e.op(f"icmp uge i64 {window}, {FIRST_CLUSTER_WINDOW}")
    own = e.op(f"sub i64 {address}, {window_base(SHARED_WINDOW)}")
    return e.op(f"select i1 {is_remote}, i64 {_join(e, rank, offset)}, i64 {own}")


def is_shared(e: Emitter, window: str, *, in_cluster: bool) -> str:
    """Check whether a window is the block's shared memory, or, if `in_cluster`, that of any block of the cluster."""
    is_own = e.op(f"icmp eq i64 {window}, {SHARED_WINDOW}")
    if not e.maps_addresses:
        return is_own
    rank = e.op(f"sub i64 {window}, {FIRST_CLUSTER_WINDOW}")
    if in_cluster:
        is_other = e.op(f"icmp ule i64 {rank}, {MAX_CLUSTER_BLOCKS}")
    else:
        is_other = e.op(f"icmp eq i64 {rank}, {e.launch_field(Launch.CLUSTER_RANK)}")
    return e.op(f"or i1 {is_own}, {is_other}")


def mapped_registers(blocks: list[Block]) -> frozenset[str]:
    """Return the registers that may hold a generic address of shared memory, i.e. derived from `mapa`."""
    if not any(i.opcode == "mapa" for block in blocks for i in block.instructions):
        return frozenset()
    found: set[str] = set()
    n_before = -1
    while len(found) != n_before:
        n_before = len(found)
        for block in blocks:
            for instruction in block.instructions:
                if _gives_mapped(instruction, found):
                    found.update(instruction.defined)
    return frozenset(found)


def is_mapped_access(i: Instruction, mapped: frozenset[str]) -> bool:
    """Check whether a generic access targets the shared memory of the cluster."""
    if i.has("global", "local", "const", "param"):
        return False
    addresses = (operand for operand in i.operands if isinstance(operand, Address))
    return any(getattr(address.base, "name", "") in mapped for address in addresses)


HANDLERS: dict[str, Handler] = {"mapa": map_address, "getctarank": block_rank}


_NO_RANK = f"i64 {MAX_CLUSTER_BLOCKS}"


def _is_own(e: Emitter, address: str) -> str:
    return e.op(f"icmp ult i64 {_biased(e, address)}, {1 << CLUSTER_RANK_SHIFT}")


def _biased(e: Emitter, address: str) -> str:
    return e.op(f"add i64 {e.op(f'and i64 {address}, {0xFFFFFFFF}')}, {CLUSTER_OFFSET_HALF}")


def _split(e: Emitter, address: str) -> tuple[str, str]:
    """Return rank and offset of an address in the shared window of the cluster."""
    biased = _biased(e, address)
    offset = e.op(f"sub i64 {e.op(f'and i64 {biased}, {(1 << CLUSTER_RANK_SHIFT) - 1}')}, {CLUSTER_OFFSET_HALF}")
    named = e.op(f"sub i64 {e.op(f'lshr i64 {biased}, {CLUSTER_RANK_SHIFT}')}, 1")
    own = e.launch_field(Launch.CLUSTER_RANK)
    return e.op(f"select i1 {_is_own(e, address)}, i64 {own}, i64 {named}"), offset


def _join(e: Emitter, rank: str, offset: str) -> str:
    """Invert `_split`."""
    shifted = e.op(f"shl i64 {e.op(f'add i64 {rank}, 1')}, {CLUSTER_RANK_SHIFT}")
    return e.op(f"and i64 {e.op(f'add i64 {shifted}, {offset}')}, {0xFFFFFFFF}")


def _window(e: Emitter, rank: str) -> str:
    known = e.call("i64", "llvm.umin.i64", f"i64 {rank}", _NO_RANK)
    return e.op(f"add i64 {known}, {FIRST_CLUSTER_WINDOW}")


def _generic(e: Emitter, window: str, offset: str) -> str:
    base = e.op(f"add i64 {e.op(f'shl i64 {window}, {WINDOW_SHIFT}')}, {window_base(0)}")
    return e.op(f"add i64 {base}, {offset}")


def _gives_mapped(i: Instruction, mapped: set[str]) -> bool:
    if i.opcode == "mapa" or (i.opcode == "cvta" and i.has("shared", "shared__cta", "shared__cluster")):
        return not i.has("to")
    return i.opcode not in _LOADS and any(name in mapped for name in i.used)
