"""Classify each access of a kernel for the race check: communication, data, or a value that does not matter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from kernel_lsp.ptx.run.layout import Info
from kernel_lsp.ptx.text.flow import (
    ACQUIRING_MODIFIERS,
    PAST_L1_MODIFIERS,
    RELEASING_MODIFIERS,
    SHARED_MODIFIERS,
    STRONG_MODIFIERS,
    Block,
    Place,
    address_of,
    live_after,
    origins_of,
    users_of,
)
from kernel_lsp.ptx.text.syntax import Instruction, registers_of

FENCES = ("membar", "fence")
UPDATES = ("atom", "red")
BARRIERS = ("bar", "barrier")
LOADS = ("ld", "ldu", "ldmatrix", "wmma")
DECIDING_OPCODES = ("setp", "set", "and", "or", "cvt")
"""Opcodes that operate on a flag."""
FLOAT_TYPES = ("f64", "f32", "f32x2", "f16", "f16x2", "bf16", "bf16x2")
WEAKLY_ORDERED = ("volatile", "relaxed")
"""Modifiers of loads that see the writes of others, without ordering accesses to other words."""
NOT_GLOBAL = ("local", "param", "const", *SHARED_MODIFIERS)

Users = Mapping[str, Sequence[Instruction]]


def race_flags(blocks: Sequence[Block]) -> dict[int, int]:
    """Return the race flags of `Info`, by the `id` of each instruction that accesses memory."""
    users = users_of(blocks)
    flags = {id(one): _flags(one, users) for block in blocks for one in block.instructions if one.opcode in _ACCESSES}
    for load in data_loads(blocks, users):
        flags[id(load)] = (flags[id(load)] & ~Info.STRONG) | Info.DATA | Info.NEARBY
    for load in _looks_before_updates(blocks, flags):
        flags[id(load)] |= Info.UNUSED
    for load in _late_loads(blocks):
        flags[id(load)] |= Info.LATE_USE
    return flags


def may_signal(blocks: Sequence[Block]) -> bool:
    """Check whether blocks of the kernel may synchronise with each other."""
    return any(
        (one.opcode in FENCES and is_of_device(one)) or (one.opcode not in BARRIERS and one.has(*RELEASING_MODIFIERS))
        for block in blocks
        for one in block.instructions
    )


def has_polls(blocks: Sequence[Block]) -> bool:
    """Check whether a kernel reads words through which others may signal by a store."""
    return any(
        one.opcode in UPDATES or (one.opcode in LOADS and one.has(*STRONG_MODIFIERS))
        for block in blocks
        for one in block.instructions
    )


def is_of_device(fence: Instruction) -> bool:
    """Check whether a fence also orders other blocks."""
    return not fence.has("cta", "proxy")


def proxy_fence_spaces(fence: Instruction) -> int:
    """Return the spaces, as bits, in which a fence orders the generic and the async proxy: shared 1, global 2."""
    if not fence.has("proxy") or not any(modifier.startswith("async") for modifier in fence.modifiers):
        return 0
    if fence.has("global"):
        return 2
    return 1 if fence.has(*SHARED_MODIFIERS) else 3


_ACCESSES = ("ld", "ldu", "st", "cp", *UPDATES, "ldmatrix", "stmatrix", "wmma", "wgmma")


def _flags(one: Instruction, users: dict[str, list[Instruction]]) -> int:
    is_update = one.opcode in UPDATES
    is_strong = is_update or (one.has(*STRONG_MODIFIERS) and not _is_volatile_data(one, users))
    flags = int(Info.STRONG | Info.NEARBY) if is_strong else 0
    if one.has(*PAST_L1_MODIFIERS, "volatile"):
        flags |= Info.NEARBY
    if one.has(*ACQUIRING_MODIFIERS):
        flags |= Info.ACQUIRES
    if one.has(*RELEASING_MODIFIERS):
        flags |= Info.RELEASES
    if one.opcode == "ld" and one.has("nc"):
        flags |= Info.READ_ONLY_CACHE
    if one.opcode == "wgmma" or is_bulk_copy(one):
        flags |= Info.ASYNC_PROXY
    if is_bulk_copy(one):
        flags |= Info.BULK
    return flags | (int(Info.IN_BLOCK) if one.has("cta") else 0)


def _is_volatile_data(one: Instruction, users: dict[str, list[Instruction]]) -> bool:
    """Check whether a volatile load of shared memory reads data, not a flag: its value is computed with.
    Warp-synchronous code was written this way; `volatile` orders nothing."""
    if one.opcode != "ld" or not one.has("volatile") or not one.has(*SHARED_MODIFIERS):
        return False
    return any(user.opcode not in DECIDING_OPCODES for name in one.defined for user in users.get(name, ()))


def is_bulk_copy(one: Instruction) -> bool:
    """Check whether an instruction copies in bulk, or orders such copies."""
    return one.opcode == "cp" and one.has("bulk")


def _late_loads(blocks: Sequence[Block]) -> Iterator[Instruction]:
    """Return the loads whose thread may reach a barrier, or issue a bulk copy, before it uses the value. Until then
    the load may be in flight, and only a proxy fence keeps a bulk copy from overwriting what it reads. The arrival
    at an `mbarrier` uses the same proxy as the load and is ordered after it."""
    if not any(is_bulk_copy(one) for block in blocks for one in block.instructions):
        return
    for block in blocks:
        for position, one in enumerate(block.instructions):
            is_load = one.opcode in LOADS and not one.has("local", "param", "const", "global")
            if is_load and _is_used_late(blocks, block, position + 1, frozenset(one.defined)):
                yield one


def _is_used_late(blocks: Sequence[Block], block: Block, position: int, loaded: frozenset[str]) -> bool:
    """Walk the ways on from a load. A predicate that it is under decides later branches."""
    seen: set[tuple[int, frozenset[str], frozenset[tuple[str, bool]]]] = set()
    to_do = [(block, position, loaded, _predicates_at(blocks, block))]
    while to_do:
        current, start, names, known = to_do.pop()
        for place, one in enumerate(current.instructions[start:], start):
            is_barrier = is_bulk_copy(one) or (one.opcode in BARRIERS and not one.has("warp"))
            if is_barrier and names & live_after(current)[place]:
                return True
            if one.opcode == "mov" and names.intersection(one.used):
                names |= set(one.defined)
            elif _ends_load(one, names) or not (names := names - set(one.defined)):
                break
            known = frozenset(fact for fact in known if fact[0] not in one.defined)
        else:
            if current.guard is None or current.guard.register.name not in names:
                new = {(target, names, known) for target in _targets(current, known)} - seen
                seen |= new
                to_do += [(blocks[target], 0, kept, facts) for target, kept, facts in new]
    return False


def _predicates_at(blocks: Sequence[Block], block: Block) -> frozenset[tuple[str, bool]]:
    """Return the predicates that have one value whenever a block runs, from the branches of its only way in."""
    known: dict[str, bool] = {}
    changed: set[str] = set()
    passed: set[int] = set()
    while block.index not in passed:
        passed.add(block.index)
        changed.update(name for one in block.instructions for name in one.defined)
        above = [other for other in blocks if block.index in other.targets]
        if len(above) != 1:
            break
        guard = above[0].guard
        if guard and guard.register.name not in changed and len(set(above[0].targets)) == 2:
            is_taken = above[0].targets[0] == block.index
            known.setdefault(guard.register.name, is_taken != guard.is_negated)
        block = above[0]
    return frozenset(known.items())


def _targets(block: Block, known: frozenset[tuple[str, bool]]) -> tuple[int, ...]:
    """Return the blocks that may follow, where these predicates are known."""
    for name, value in known:
        if block.guard and block.guard.register.name == name:
            return block.targets[:1] if value != block.guard.is_negated else block.targets[1:]
    return block.targets


def _ends_load(one: Instruction, names: frozenset[str]) -> bool:
    """Check whether an instruction comes after the load of these registers has ended."""
    arrives = one.opcode == "mbarrier" and one.has("arrive", "arrive_drop")
    return arrives or bool(proxy_fence_spaces(one)) or bool(names.intersection(one.used))


def _looks_before_updates(blocks: Sequence[Block], flags: dict[int, int]) -> Iterator[Instruction]:
    """Return the plain loads of words that the thread then updates atomically, with no barrier between. Examples are
    the first guess of a compare-and-swap loop, and a test whether the update is worthwhile. Any value is acceptable."""
    origins = origins_of(blocks)
    if not any(one.opcode in UPDATES for block in blocks for one in block.instructions):
        return
    for block in blocks:
        for position, one in enumerate(block.instructions):
            is_look = one.opcode == "ld" and (flags[id(one)] & Info.STRONG) == 0
            if is_look and _reaches_update(blocks, block, position + 1, address_of(one, origins), origins):
                yield one


def _reaches_update(
    blocks: Sequence[Block], block: Block, position: int, address: Place, origins: dict[str, Instruction | None]
) -> bool:
    seen: set[int] = set()
    to_do = [(block, position)]
    while to_do:
        current, start = to_do.pop()
        for one in current.instructions[start:]:
            if one.opcode in UPDATES and address_of(one, origins) == address:
                return True
            if one.opcode in BARRIERS and not one.has("warp"):
                break
        else:
            new = [target for target in current.targets if target not in seen]
            seen.update(new)
            to_do += [(blocks[target], 0) for target in new]
    return False


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


def _may_be_data(one: Instruction) -> bool:
    is_weak = one.has(*WEAKLY_ORDERED) and not one.has(*ACQUIRING_MODIFIERS)
    return one.opcode == "ld" and is_weak and not one.has(*NOT_GLOBAL)


def _deciding_registers(blocks: Sequence[Block]) -> set[str]:
    """Return the registers that a thread's control flow depends on."""
    guards = {block.guard.register.name for block in blocks if block.guard}
    return guards | {block.selector.name for block in blocks if block.selector}


def _reached(load: Instruction, users: Users, opcodes: Sequence[str] = ()) -> set[str]:
    """Return the registers that depend on the loaded value through these opcodes, or through any if none are given."""
    reached = set(load.defined)
    to_do = list(reached)
    while to_do:
        for user in users.get(to_do.pop(), ()):
            if not opcodes or user.opcode in opcodes:
                new = set(user.defined) - reached
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
