"""Translate loads, stores, atomics and copies, each with its check.

The inline check of a generic access compares the offset in its window with the limit for the access size, and tests the
low address bits. A limit of 0 sends every access of a window to the slow path. Partly initialised memory and traced
blocks use such limits.
"""

from __future__ import annotations

import functools

from kernel_lsp.ptx.compile.clusters import remote_pointer_address
from kernel_lsp.ptx.compile.emitter import Emitter, Handler, Site, access_info
from kernel_lsp.ptx.compile.floating import SCALAR, join, read_floats
from kernel_lsp.ptx.compile.integer import is_integer
from kernel_lsp.ptx.compile.register_ir import llvm_type
from kernel_lsp.ptx.races.sites import is_of_device, proxy_fence_spaces
from kernel_lsp.ptx.run.layout import (
    LOCAL_WINDOW,
    PARAM_WINDOW,
    SHADOW_STORE,
    WINDOW_SHIFT,
    Entry,
    FaultKind,
    Launch,
    Thread,
    window_base,
)
from kernel_lsp.ptx.text.syntax import (
    WIDTH_BITS,
    Address,
    Immediate,
    Instruction,
    Operand,
    Register,
    Symbol,
    UnsupportedPtxError,
    Vector,
)

ENTRY_INDEX_MASK = 1023 << 7
"""Mask that selects a window's entry (128 bytes each) from an address shifted right by `WINDOW_SHIFT` - 7."""
MAX_ACCESS_BYTES = 16
MAX_SPANS = 8
"""Maximum variables of local memory with separate bounds: each costs one comparison per access. Most kernels have one
variable, into which the compiler puts all arrays of a function."""
DISCARDED_BYTES = 128
LOST_BYTE = 0xFE
"""Byte that fills discarded memory: a large negative number in every signed and floating type."""
_VECTOR = {"v2": 2, "v4": 4, "v8": 8}


def load(e: Emitter, i: Instruction) -> None:
    """Translate `ld` and `ldu`."""
    if e.waits_for_grid and i.has("acquire"):
        e.give_way(i)
    else:
        e.give_way_if_interrupted(i)
    kind, count = i.types()[-1], _vector_length(i)
    n_bytes = WIDTH_BITS[kind] // 8 * count
    pointer = locate(e, i, i.operands[1], n_bytes, reads=True, writes=False)
    width = f"i{WIDTH_BITS[kind]}"
    volatile = "volatile " if i.has("volatile", "relaxed", "acquire", "mmio") else ""
    targets = i.operands[0].elements if isinstance(i.operands[0], Vector) else (i.operands[0],)
    for index, target in enumerate(targets):
        place = e.field(pointer, index * WIDTH_BITS[kind] // 8) if index else pointer
        value = e.op(f"load {volatile}{width}, ptr {place}, align 1")
        e.write(target, value, width, is_signed=kind[0] == "s")


def store(e: Emitter, i: Instruction) -> None:
    """Translate `st`. An asynchronous one writes at once."""
    e.give_way_if_interrupted(i)
    kind = i.types()[-1]
    sources = i.operands[1].elements if isinstance(i.operands[1], Vector) else (i.operands[1],)
    width = f"i{WIDTH_BITS[kind]}"
    values = [e.read(source, width) for source in sources]
    pointer = locate(e, i, i.operands[0], stored_bytes(i), reads=False, writes=True)
    for index, value in enumerate(values):
        place = e.field(pointer, index * WIDTH_BITS[kind] // 8) if index else pointer
        e.line(f"store {width} {value}, ptr {place}, align 1")


def stored_bytes(i: Instruction) -> int:
    """Return the bytes written by one `st`."""
    return WIDTH_BITS[i.types()[-1]] // 8 * _vector_length(i)


def atomic(e: Emitter, i: Instruction) -> None:
    """Translate `atom` and `red`. One thread runs at a time, so a read followed by a write is atomic."""
    e.give_way_if_interrupted(i)
    kind, count = i.types()[-1], _vector_length(i)
    operands = list(i.operands)
    target: Operand = operands.pop(0) if i.opcode == "atom" else Symbol("_")
    n_bytes = WIDTH_BITS[kind] // 8
    pointer = locate(e, i, operands[0], n_bytes * count, reads=True, writes=True)
    targets = target.elements if isinstance(target, Vector) else (target,) * count
    sources = operands[1].elements if isinstance(operands[1], Vector) else (operands[1],)
    for index, (result, source) in enumerate(zip(targets, sources, strict=True)):
        place = e.field(pointer, index * n_bytes) if index else pointer
        _exchange(e, i, kind, place, result, [source, *operands[2:]])


def copy_async(e: Emitter, i: Instruction) -> None:
    """Translate ``cp.async.ca [d], [s], size{, source size}``: the copy is performed at once."""
    target, source, size = i.operands[:3]
    if not isinstance(size, Immediate):
        raise UnsupportedPtxError("a copy of unknown size", i)
    has_source_size = len(i.operands) > 3 and not i.has("L2__cache_hint")
    if has_source_size and not isinstance(i.operands[3], Immediate):
        _copy_part(e, i, target, source, size.bits, i.operands[3])
        return
    width = f"i{8 * size.bits}"
    value = "0"
    if not (has_source_size and isinstance(i.operands[3], Immediate) and i.operands[3].bits == 0):
        value = e.op(
            f"load {width}, ptr {locate(e, i, source, size.bits, reads=True, writes=False, space='global')}, align 1"
        )
    pointer = locate(e, i, target, size.bits, reads=False, writes=True, space="shared")
    e.line(f"store {width} {value}, ptr {pointer}, align 1")


def discard(e: Emitter, i: Instruction) -> None:
    """Translate ``discard.global.L2 [a], 128``: the old value is lost, and the new one is undefined."""
    address = operand_address(e, i, i.operands[0])
    for offset in range(0, DISCARDED_BYTES, MAX_ACCESS_BYTES):
        here = e.op(f"add i64 {address}, {offset}")
        pointer = locate_at(e, i, here, MAX_ACCESS_BYTES, reads=False, writes=True, space=space_of(i))
        e.line(f"store i128 {_repeated(LOST_BYTE, MAX_ACCESS_BYTES)}, ptr {pointer}, align 1")


def fence(e: Emitter, i: Instruction) -> None:
    """Translate `membar` and `fence`. Sequential threads need none, but the race check records it."""
    is_unwatched = e.op(f"icmp eq i64 {e.launch_field(Launch.IS_WATCHED)}, 0")
    if spaces := proxy_fence_spaces(i):
        e.slow_check("watch_proxy_fence", e.site(Site(i)), str(spaces), is_unwatched)
    elif not i.has("proxy"):
        e.slow_check("watch_fence", e.site(Site(i)), str(int(is_of_device(i))), is_unwatched)


def no_operation(e: Emitter, i: Instruction) -> None:
    """Translate hints and waits that sequential execution of threads does not need: emit nothing."""


def create_policy(e: Emitter, i: Instruction) -> None:
    e.write(i.operands[0], "0", "i64")


def locate(
    e: Emitter, i: Instruction, operand: Operand, n_bytes: int, *, reads: bool, writes: bool, space: str | None = None
) -> str:
    """Emit the check of an access and return the host pointer. The kernel is left when the check fails."""
    if i.has("async") and i.opcode not in ("cp", "st"):
        raise UnsupportedPtxError("an asynchronous access of shared memory", i)
    space = space or space_of(i)
    if space == "param" and isinstance(operand, Address):
        return _parameter_pointer(e, i, operand)
    return locate_at(e, i, operand_address(e, i, operand), n_bytes, reads=reads, writes=writes, space=space)


def operand_address(e: Emitter, i: Instruction, operand: Operand) -> str:
    """Return the address of an operand ``[base + offset]``."""
    if not isinstance(operand, Address):
        raise UnsupportedPtxError("an access without an address", i)
    base = e.read(operand.base, "i64")
    return e.op(f"add i64 {base}, {operand.offset}") if operand.offset else base


def locate_at(
    e: Emitter,
    i: Instruction,
    address: str,
    n_bytes: int,
    *,
    reads: bool,
    writes: bool,
    space: str,
    race_flags: int | None = None,
) -> str:
    """Emit the check for a computed address, like `locate`; not for parameters.
    `race_flags` of `Info` override those of the instruction."""
    if n_bytes > MAX_ACCESS_BYTES:
        raise UnsupportedPtxError(f"an access of {n_bytes} bytes", i)
    site = Site(i, space, n_bytes, reads, writes)
    if space == "local":
        return _local_pointer(e, address, site, n_bytes)
    flags = e.race_flags.get(id(i), 0) if race_flags is None else race_flags
    info = access_info(e.site(site), n_bytes, reads=reads, writes=writes, race_flags=flags)
    if space == "shared":
        return _shared_pointer(e, address, info, n_bytes, reads=reads, writes=writes)
    if space == "cluster":
        address = remote_pointer_address(e, address)
    return _generic_pointer(e, address, info, n_bytes, reads=reads, writes=writes)


def shared_offset(e: Emitter, address: str) -> str:
    """Return the unsigned offset of an address from the first byte of shared memory.
    Addresses below it give very large offsets."""
    offset = e.op(f"sub i64 {address}, {e.launch_field(Launch.SHARED_START)}")
    return e.op(f"and i64 {offset}, {0xFFFFFFFF}")


def space_of(i: Instruction) -> str:
    """Return the state space of an access, or ``generic``; ``cluster`` is the shared memory of the cluster's blocks."""
    for modifier in i.modifiers:
        name = modifier.split("__")[0]
        if name in ("global", "shared", "local", "param", "const"):
            return "cluster" if modifier == "shared__cluster" else name
    return "generic"


HANDLERS: dict[str, Handler] = {
    "ld": load,
    "ldu": load,
    "atom": atomic,
    "red": atomic,
    "createpolicy": create_policy,
    "discard": discard,
    "membar": fence,
    "fence": fence,
    **dict.fromkeys(
        (
            "prefetch",
            "prefetchu",
            "applypriority",
            "nanosleep",
            "griddepcontrol",
            "pmevent",
            "setmaxnreg",
        ),
        no_operation,
    ),
}


def _vector_length(i: Instruction) -> int:
    return next((_VECTOR[modifier] for modifier in i.modifiers if modifier in _VECTOR), 1)


def _parameter_pointer(e: Emitter, i: Instruction, operand: Address) -> str:
    if isinstance(operand.base, Symbol):
        name, offset = operand.base.name, operand.base.offset + operand.offset
        if name in e.parameters.offsets:
            return e.field("%launch", Launch.PARAMETERS + e.parameters.offsets[name] + offset)
        return e.field("%arguments", e.arguments.offsets[name] + offset)
    base = window_base(PARAM_WINDOW) - Launch.PARAMETERS
    offset_in_launch = e.op(f"sub i64 {operand_address(e, i, operand)}, {base}")
    n_bytes = WIDTH_BITS[i.types()[-1]] // 8 * _vector_length(i)
    last = Launch.PARAMETERS + e.parameters.n_bytes - n_bytes
    site = e.site(Site(i, "param", n_bytes, True, False))
    is_inside = e.op(
        f"icmp ult i64 {e.op(f'sub i64 {offset_in_launch}, {int(Launch.PARAMETERS)}')}, {last - Launch.PARAMETERS + 1}"
    )
    e.slow_check("check", access_info(site, n_bytes, reads=True, writes=False), offset_in_launch, is_inside)
    return e.op(f"getelementptr i8, ptr %launch, i64 {offset_in_launch}")


def _generic_pointer(e: Emitter, address: str, info: int, n_bytes: int, *, reads: bool, writes: bool) -> str:
    index = e.op(f"and i64 {e.op(f'lshr i64 {address}, {WINDOW_SHIFT - 7}')}, {ENTRY_INDEX_MASK}")
    entry = e.op(f"getelementptr i8, ptr %table, i64 {index}")
    base = e.op(f"load i64, ptr {entry}")
    offset = e.op(f"sub i64 {address}, {base}")
    log2 = n_bytes.bit_length() - 1
    conditions = []
    for is_wanted, limits in ((reads, Entry.READ_LIMITS), (writes, Entry.WRITE_LIMITS)):
        if is_wanted:
            limit = e.op(f"load i64, ptr {e.field(entry, limits + 8 * log2)}")
            conditions.append(e.op(f"icmp ult i64 {offset}, {limit}"))
    e.slow_check("check", info, address, _all(e, [*conditions, *_aligned(e, address, n_bytes)]))
    if writes:
        shadow = e.op(f"load i64, ptr {e.field(entry, Entry.SHADOW)}")
        _mark(e, e.op(f"inttoptr i64 {e.op(f'add i64 {shadow}, {offset}')} to ptr"), n_bytes)
    host = e.op(f"load i64, ptr {e.field(entry, Entry.HOST)}")
    return e.op(f"inttoptr i64 {e.op(f'add i64 {host}, {offset}')} to ptr")


def _shared_pointer(e: Emitter, address: str, info: int, n_bytes: int, *, reads: bool, writes: bool) -> str:
    """Return the pointer for a shared address. The bounds come from the launch record, since shared memory may be
    dynamic. Under race checks they send every access to the slow path."""
    address = shared_offset(e, address)
    limit = e.launch_field(Launch.SHARED_LIMITS + 8 * (n_bytes.bit_length() - 1))
    shadow_base = e.launch_field(Launch.SHARED_SHADOW)
    shadow = e.op(f"inttoptr i64 {e.op(f'add i64 {shadow_base}, {address}')} to ptr")
    conditions = [e.op(f"icmp ult i64 {address}, {limit}"), *_aligned(e, address, n_bytes)]
    e.slow_check("check_shared", info, address, _all(e, conditions))
    if reads:
        loaded = e.op(f"load i{8 * n_bytes}, ptr {shadow}, align 1")
        is_written = e.op(f"icmp eq i{8 * n_bytes} {loaded}, {_repeated(SHADOW_STORE, n_bytes)}")
        e.slow_check("check_shared_written", info, address, is_written)
    if writes:
        _mark(e, shadow, n_bytes)
    host = e.launch_field(Launch.SHARED_HOST)
    return e.op(f"inttoptr i64 {e.op(f'add i64 {host}, {address}')} to ptr")


def _local_pointer(e: Emitter, address: str, site: Site, n_bytes: int) -> str:
    """Return the pointer for a local address, within one variable. Local memory is never traced or watched."""
    spans = e.local.spans if len(e.local.spans) <= MAX_SPANS else [(0, e.local.n_bytes)]
    inside = [
        e.op(f"icmp ult i64 {e.op(f'sub i64 {address}, {start}')}, {size - n_bytes + 1}")
        for start, size in spans
        if size >= n_bytes
    ]
    is_inside = functools.reduce(lambda one, other: e.op(f"or i1 {one}, {other}"), inside, "false")
    generic = e.op(f"add i64 {address}, {window_base(LOCAL_WINDOW)}")
    e.fault_unless(_all(e, [is_inside, *_aligned(e, address, n_bytes)]), site, generic, FaultKind.ACCESS)
    host = e.thread_field(Thread.LOCAL_HOST)
    return e.op(f"inttoptr i64 {e.op(f'add i64 {host}, {address}')} to ptr")


def _aligned(e: Emitter, address: str, n_bytes: int) -> list[str]:
    if n_bytes == 1:
        return []
    return [e.op(f"icmp eq i64 {e.op(f'and i64 {address}, {n_bytes - 1}')}, 0")]


def _all(e: Emitter, conditions: list[str]) -> str:
    total = conditions[0]
    for condition in conditions[1:]:
        total = e.op(f"and i1 {total}, {condition}")
    return total


def _mark(e: Emitter, shadow: str, n_bytes: int) -> None:
    e.line(f"store i{8 * n_bytes} {_repeated(SHADOW_STORE, n_bytes)}, ptr {shadow}, align 1")


def _repeated(byte: int, n_bytes: int) -> int:
    return int.from_bytes(bytes([byte]) * n_bytes, "little")


def _exchange(e: Emitter, i: Instruction, kind: str, pointer: str, result: Operand, operands: list[Operand]) -> None:
    width = f"i{WIDTH_BITS[kind]}"
    old = e.op(f"load volatile {width}, ptr {pointer}, align 1")
    new = _combined(e, i, kind, old, operands)
    e.line(f"store volatile {width} {new}, ptr {pointer}, align 1")
    e.write(result, old, width, is_signed=kind[0] == "s")


def _combined(e: Emitter, i: Instruction, kind: str, old: str, operands: list[Operand]) -> str:
    """Return the bits to store."""
    width = f"i{WIDTH_BITS[kind]}"
    name = next(m for m in i.modifiers if m in ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"))
    if name == "cas":
        is_equal = e.op(f"icmp eq {width} {old}, {e.read(operands[0], width)}")
        return e.op(f"select i1 {is_equal}, {width} {e.read(operands[1], width)}, {width} {old}")
    if name == "exch":
        return e.read(operands[0], width)
    if not is_integer(i):
        return _combined_floats(e, name, kind, old, operands[0])
    value = e.read(operands[0], width)
    if name in ("min", "max"):
        function = f"llvm.{'s' if kind[0] == 's' else 'u'}{name}.{width}"
        return e.call(width, function, f"{width} {old}", f"{width} {value}")
    if name in ("inc", "dec"):
        return _wrapped(e, name, width, old, value)
    return e.op(f"{name} {width} {old}, {value}")


def _wrapped(e: Emitter, name: str, width: str, old: str, value: str) -> str:
    if name == "inc":
        wraps = e.op(f"icmp uge {width} {old}, {value}")
        return e.op(f"select i1 {wraps}, {width} 0, {width} {e.op(f'add {width} {old}, 1')}")
    is_zero, is_above = e.op(f"icmp eq {width} {old}, 0"), e.op(f"icmp ugt {width} {old}, {value}")
    wraps = e.op(f"or i1 {is_zero}, {is_above}")
    return e.op(f"select i1 {wraps}, {width} {value}, {width} {e.op(f'sub {width} {old}, 1')}")


def _combined_floats(e: Emitter, name: str, kind: str, old: str, operand: Operand) -> str:
    width = f"i{WIDTH_BITS[kind]}"
    if kind in ("f32", "f64"):
        number = llvm_type(kind)
        left, right = e.coerce(old, width, number), e.read(operand, number)
        return e.coerce(_float_operation(e, name, number, left, right), number, width)
    # Pass the old bits of 16-bit floats through a register, so that both operands are read alike.
    e.storage.setdefault("%old." + kind, width)
    e.write(Register("%old." + kind), old, width)
    left_values = read_floats(e, Register("%old." + kind), kind)
    right_values = read_floats(e, operand, kind)
    element = "half" if SCALAR[kind] == "f16" else "bfloat"
    bits = [
        e.call("i16", f"k.float_to_{element}", f"float {_float_operation(e, name, 'float', left, right)}")
        for left, right in zip(left_values, right_values, strict=True)
    ]
    return bits[0] if len(bits) == 1 else join(e, *bits)


def _float_operation(e: Emitter, name: str, number: str, left: str, right: str) -> str:
    if name == "add":
        return e.op(f"fadd {number} {left}, {right}")
    suffix = "f64" if number == "double" else "f32"
    return e.call(number, f"llvm.{name}imumnum.{suffix}", f"{number} {left}", f"{number} {right}")


def _copy_part(e: Emitter, i: Instruction, target: Operand, source: Operand, n_bytes: int, length: Operand) -> None:
    """Copy a source that may be shorter than its target, and zero the rest. Compilers use sizes 0 and full."""
    size = e.read(length, "i32")
    copy, skip, end = e.label(), e.label(), e.label()
    width = f"i{8 * n_bytes}"
    slot = f"%copied.{len(e.sites)}"
    e.storage[slot] = width
    e.write(Register(slot), "0", width)
    e.line(f"br i1 {e.op(f'icmp ne i32 {size}, 0')}, label %{copy}, label %{skip}")
    e.begin(copy)
    loaded = e.op(
        f"load {width}, ptr {locate(e, i, source, n_bytes, reads=True, writes=False, space='global')}, align 1"
    )
    unused_bits = e.op(f"sub i32 {8 * n_bytes}, {e.op(f'shl i32 {size}, 3')}")
    wide = e.op(f"{'zext' if n_bytes > 4 else 'add'} i32 {unused_bits}{' to ' + width if n_bytes > 4 else ', 0'}")
    kept = e.op(f"lshr {width} {e.op(f'shl {width} {loaded}, {wide}')}, {wide}")
    e.write(Register(slot), kept, width)
    e.line(f"br label %{end}")
    e.begin(skip)
    e.line(f"br label %{end}")
    e.begin(end)
    pointer = locate(e, i, target, n_bytes, reads=False, writes=True, space="shared")
    e.line(f"store {width} {e.read(Register(slot), width)}, ptr {pointer}, align 1")
