"""Find volatile and relaxed loads of global memory that read data, not flags. Their writes must happen before them.

A flag is a word whose own value says whether it was written: a branch depends on it. A word that is only computed with
may be stale, whatever bypasses the caches, until a signal says that it was written. The same holds for a word that a
thread loads, modifies and stores without an atomic operation: concurrent stores are lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kernel_lsp.ptx.text.data_flow import ACQUIRING_MODIFIERS, SHARED_MODIFIERS, address_of, origins_of
from kernel_lsp.ptx.text.flow import Block, defined, registers_of
from kernel_lsp.ptx.text.syntax import Instruction

FLOAT_TYPES = ("f64", "f32", "f32x2", "f16", "f16x2", "bf16", "bf16x2")
WEAKLY_ORDERED = ("volatile", "relaxed")
"""Modifiers of loads that see the writes of others, without ordering accesses to other words."""
NOT_GLOBAL = ("local", "param", "const", *SHARED_MODIFIERS)

Users = Mapping[str, Sequence[Instruction]]


def data_loads(blocks: Sequence[Block], users: Users) -> Iterator[Instruction]:
    """Return the data loads of a kernel. A load whose use cannot be followed counts as a flag."""
    loads = [one for block in blocks for one in block.instructions if _may_be_data(one)]
    if not loads:
        return
    deciding = _deciding_registers(blocks)
    origins = origins_of(blocks)
    for load in loads:
        reached = _reached(load, users)
        stores = [store for store in _users_of_any(reached, users) if store.opcode == "st" and _stores(store, reached)]
        place = address_of(load, origins)
        is_updated = any(address_of(store, origins) == place for store in stores)
        if is_updated or not (reached & deciding or _is_kept_for_others(load, users)):
            yield load


# --- below


def _may_be_data(one: Instruction) -> bool:
    is_weak = one.has(*WEAKLY_ORDERED) and not one.has(*ACQUIRING_MODIFIERS)
    return one.opcode == "ld" and is_weak and not one.has(*NOT_GLOBAL)


def _deciding_registers(blocks: Sequence[Block]) -> set[str]:
    """Return the registers that a thread's control flow depends on."""
    guards = {block.guard.register.name for block in blocks if block.guard}
    return guards | {block.selector.name for block in blocks if block.selector}


def _reached(load: Instruction, users: Users, opcodes: Sequence[str] = ()) -> set[str]:
    """Return the registers that depend on the loaded value through these opcodes, or through any if none are given."""
    reached = set(defined(load))
    to_do = list(reached)
    while to_do:
        for user in users.get(to_do.pop(), ()):
            if not opcodes or user.opcode in opcodes:
                new = set(defined(user)) - reached
                reached |= new
                to_do += new
    return reached


def _is_kept_for_others(load: Instruction, users: Users) -> bool:
    """Check whether a loaded number is stored unchanged for the threads of the block, which may test it."""
    if load.has(*FLOAT_TYPES):
        return False
    kept = _reached(load, users, ("mov", "cvt", "setp", "selp", "and", "or", "shr", "shfl", "vote"))
    return any(
        user.opcode == "st" and not user.has("global") and _stores(user, kept) for user in _users_of_any(kept, users)
    )


def _users_of_any(registers: set[str], users: Users) -> Iterator[Instruction]:
    for name in registers:
        yield from users.get(name, ())


def _stores(store: Instruction, registers: set[str]) -> bool:
    """Check whether the stored value, not the address, is among the registers."""
    return any(name in registers for operand in store.operands[1:] for name in registers_of(operand))
