"""Translate tensor-core instructions: a warp loads, multiplies and stores matrices collectively.

A lane loads when it arrives, and stores after all lanes have arrived. Lanes that read what other lanes of the warp
wrote, without a `__syncwarp()` between, therefore see stale values in some thread order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kernel_lsp.ptx.compile.emitter import Emitter, Handler, Site
from kernel_lsp.ptx.compile.fragments import LANES_PER_ROW, REGISTER_BITS, Fragment, Role, fragment, parse_shape
from kernel_lsp.ptx.compile.memory import locate_at, operand_address, space_of
from kernel_lsp.ptx.compile.warp_batches import Held, Step
from kernel_lsp.ptx.compile.warp_functions import (
    AGREED_BYTES,
    MATRIX_ROWS,
    ROW_BYTES,
    Product,
    WarpFunction,
    agree,
    load_matrices,
    multiply,
    store_matrices,
    transpose,
)
from kernel_lsp.ptx.run.layout import MATRIX_STRIDE_BYTES, FaultKind
from kernel_lsp.ptx.text.syntax import (
    WIDTH_BITS,
    Instruction,
    Operand,
    Register,
    UnsupportedPtxError,
    Vector,
    registers_of,
)

_INTEGER_SHAPES = ("m8n8k16", "m16n8k16", "m16n8k32")
MMA_SHAPES: dict[str, tuple[str, ...]] = {
    "f16": ("m16n8k8", "m16n8k16"),
    "bf16": ("m16n8k8", "m16n8k16"),
    "tf32": ("m16n8k4", "m16n8k8"),
    "f64": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    "s8": _INTEGER_SHAPES,
    "u8": _INTEGER_SHAPES,
}
"""Supported shapes of `mma.sync`, by factor type: those whose layouts follow the rule of
`kernel_lsp.ptx.compile.fragments`."""
_SMALL_SHAPES = ("m16n16k16", "m32n8k16", "m8n32k16")
WMMA_SHAPES: dict[str, tuple[str, ...]] = {
    "f16": _SMALL_SHAPES,
    "bf16": _SMALL_SHAPES,
    "s8": _SMALL_SHAPES,
    "u8": _SMALL_SHAPES,
    "tf32": ("m16n16k8",),
    "f64": ("m8n8k4",),
}
ACCUMULATORS: dict[str, tuple[str, ...]] = {
    "f16": ("f16", "f32"),
    "bf16": ("f32",),
    "tf32": ("f32",),
    "f64": ("f64",),
    "s8": ("s32",),
    "u8": ("s32",),
}
MATRIX_BYTES = MATRIX_ROWS * ROW_BYTES
N_HALF_REGISTERS = 8
"""Registers per f16 factor of `wmma`, for every shape. Surplus registers repeat the first ones."""
_N_MATRICES = {"x1": 1, "x2": 2, "x4": 4}
_PRODUCT_WORDS = frozenset(("sync", "aligned", "row", "col", "mma", "rn", "satfinite"))
_ACCESS_WORDS = frozenset(("sync", "aligned", "row", "col", "load", "store", "a", "b", "c", "d"))
_SPACES = frozenset(("global", "shared", "shared__cta"))
_ROW_WORDS = frozenset(("sync", "aligned", "m8n8", "trans", "b16", *_N_MATRICES))


def multiply_add(e: Emitter, i: Instruction) -> None:
    """Translate ``mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype d, a, b, c``."""
    _product(e, i, MMA_SHAPES, _kinds(i))


def wmma(e: Emitter, i: Instruction) -> None:
    """Translate ``wmma.load``, ``wmma.store`` and ``wmma.mma``."""
    if i.has("load"):
        _load_fragment(e, i)
    elif i.has("store"):
        _store_fragment(e, i)
    else:
        _product(e, i, WMMA_SHAPES, _kinds(i))


def load_rows(e: Emitter, i: Instruction) -> None:
    """Translate ``ldmatrix.sync.aligned.m8n8.num{.trans}.shared.b16 r, [p]``.
    Lanes 8 j to 8 j + 7 point at the rows of the j-th matrix."""
    count = n_matrices(i)
    step = step_of(e, i, load_matrices(count, is_transposed=i.has("trans")), addresses=(i.operands[1],))
    with _lanes_below(e, MATRIX_ROWS * count):
        value = e.op(f"load i128, ptr {_row_pointer(e, i, i.operands[1])}, align 1")
        e.line(f"store i128 {value}, ptr {e.field('%matrix', step.base)}, align 1")
    give(e, elements_of(i.operands[0]), REGISTER_BITS, step.base + step.function.result_offset)


def store_rows(e: Emitter, i: Instruction) -> None:
    """Translate ``stmatrix.sync.aligned.m8n8.num{.trans}.shared.b16 [p], r``."""
    count = n_matrices(i)
    step = step_of(e, i, store_matrices(count, is_transposed=i.has("trans")), addresses=(i.operands[0],))
    put(e, step, elements_of(i.operands[1]), REGISTER_BITS, 0)
    e.end_batch(e.live_after_current() | frozenset(i.used))
    with _lanes_below(e, MATRIX_ROWS * count):
        source = e.field("%matrix", step.base + step.function.result_offset)
        value = e.op(f"load i128, ptr {source}, align 1")
        e.line(f"store i128 {value}, ptr {_row_pointer(e, i, i.operands[0])}, align 1")


def move_matrix(e: Emitter, i: Instruction) -> None:
    """Translate ``movmatrix.sync.aligned.m8n8.trans.b16 d, a``."""
    if not i.has("trans") or not i.has("m8n8"):
        raise UnsupportedPtxError("this form of movmatrix", i)
    step = step_of(e, i, transpose())
    put(e, step, (i.operands[1],), REGISTER_BITS, 0)
    give(e, (i.operands[0],), REGISTER_BITS, step.base + step.function.result_offset)


HANDLERS: dict[str, Handler] = {
    "mma": multiply_add,
    "wmma": wmma,
    "ldmatrix": load_rows,
    "stmatrix": store_rows,
    "movmatrix": move_matrix,
}


def loaded_fragment(i: Instruction) -> Fragment:
    """Return the fragment of a `wmma.load` or `wmma.store`.
    Raises UnsupportedPtxError, or ValueError for other text."""
    _know(i, _ACCESS_WORDS | _SPACES)
    role: Role = next(("a" if m == "a" else "b" if m == "b" else "c") for m in i.modifiers if m in ("a", "b", "c", "d"))
    (kind,) = i.types()
    factors = [kind] if role != "c" else [one for one, sums in ACCUMULATORS.items() if kind in sums]
    shapes = {shape for one in factors for shape in WMMA_SHAPES.get(one, ())}
    if shapes.isdisjoint(i.modifiers):
        raise UnsupportedPtxError("matrices of this shape and type", i)
    return fragment(role, parse_shape(i.modifiers), kind, "row" if i.has("row") else "col")


def product_of(i: Instruction) -> Product:
    """Return the product of `mma` or `wmma.mma`. Raises UnsupportedPtxError, or ValueError for other text."""
    return _checked_product(i, MMA_SHAPES if i.opcode == "mma" else WMMA_SHAPES, _kinds(i))


def n_matrices(i: Instruction) -> int:
    """Return the number of 8 x 8 matrices of an `ldmatrix` or `stmatrix`. Raises UnsupportedPtxError."""
    _know(i, _ROW_WORDS | _SPACES)
    if not i.has("m8n8") or i.types() != ["b16"] or not i.has("shared", "shared__cta"):
        raise UnsupportedPtxError(f"this form of {i.opcode}", i)
    return next(_N_MATRICES[modifier] for modifier in i.modifiers if modifier in _N_MATRICES)


def _kinds(i: Instruction) -> tuple[str, str, str, str]:
    """Return the types of d, a, b and c. `wmma` in f16 does not name those of its factors."""
    kinds = i.types()
    if i.opcode == "wmma" and len(kinds) == 2:
        return kinds[0], "f16", "f16", kinds[1]
    d_kind, a_kind, b_kind, c_kind = kinds
    return d_kind, a_kind, b_kind, c_kind


def _checked_product(i: Instruction, shapes: dict[str, tuple[str, ...]], kinds: tuple[str, str, str, str]) -> Product:
    d_kind, a_kind, b_kind, c_kind = kinds
    _know(i, _PRODUCT_WORDS)
    is_mixed = a_kind != b_kind and {a_kind, b_kind} != {"s8", "u8"}
    sums = ACCUMULATORS.get(a_kind, ())
    if is_mixed or d_kind not in sums or c_kind not in sums or not i.has(*shapes[a_kind]):
        raise UnsupportedPtxError("a matrix product of this shape and these types", i)
    shape = parse_shape(i.modifiers)
    a_layout, b_layout = (modifier for modifier in i.modifiers if modifier in ("row", "col"))
    return Product(
        shape,
        fragment("a", shape, a_kind, a_layout),
        fragment("b", shape, b_kind, b_layout),
        fragment("c", shape, c_kind, "row"),
        fragment("c", shape, d_kind, "row"),
        clamps=i.has("satfinite"),
    )


def _product(e: Emitter, i: Instruction, shapes: dict[str, tuple[str, ...]], kinds: tuple[str, str, str, str]) -> None:
    product = _checked_product(i, shapes, kinds)
    step = step_of(e, i, multiply(product))
    offset = 0
    for held, operand in zip((product.a, product.b, product.c), i.operands[1:], strict=True):
        registers = _registers_of(i, operand, held)[: held.n_registers]
        put(e, step, registers, held.register_bits, offset)
        offset += held.n_bytes
    registers = _registers_of(i, i.operands[0], product.d)
    give(e, registers, product.d.register_bits, step.base + step.function.result_offset)


def _know(i: Instruction, words: frozenset[str]) -> None:
    """Reject unknown modifiers, which may change the meaning of the instruction."""
    for modifier in i.modifiers:
        if modifier not in words and modifier not in WIDTH_BITS and not modifier.startswith("m"):
            raise UnsupportedPtxError(f"'{modifier}' in a matrix instruction", i)


def _registers_of(i: Instruction, operand: Operand, held: Fragment) -> tuple[Operand, ...]:
    registers = elements_of(operand)
    is_repeated = i.opcode == "wmma" and held.kind == "f16" and len(registers) == N_HALF_REGISTERS
    if len(registers) != held.n_registers and not is_repeated:
        raise UnsupportedPtxError(f"a fragment of {len(registers)} registers in place of {held.n_registers}", i)
    return registers


def elements_of(operand: Operand) -> tuple[Operand, ...]:
    """Return the registers of a vector, or the one register."""
    return operand.elements if isinstance(operand, Vector) else (operand,)


def step_of(
    e: Emitter, i: Instruction, function: WarpFunction, *, n_bytes: int = 0, addresses: Sequence[Operand] = ()
) -> Step:
    """Add a step for this instruction to the batch.
    End the batch first if it holds an address operand, which is needed immediately, or has no room."""
    n_bytes = n_bytes or function.n_bytes
    names = {name for operand in addresses for name in registers_of(operand)}
    if not names.isdisjoint(e.batch.held) or not e.batch.has_room(n_bytes):
        e.end_batch(e.live_after_current() | frozenset(i.used))
    step = e.batch.add(i, function, n_bytes)
    e.matrix_area(e.batch.n_bytes)
    return step


def put(e: Emitter, step: Step, registers: Sequence[Operand], n_bits: int, offset: int) -> None:
    """Put the registers into the area of a step; copy them if another part of the lane's area holds them."""
    n_bytes = n_bits // 8
    for index, register in enumerate(registers):
        target = step.base + offset + index * n_bytes
        held = e.batch.held.get(register.name) if isinstance(register, Register) else None
        if held is not None:
            step.copy(held.offset, target, n_bytes)
        else:
            e.line(f"store i{n_bits} {e.read(register, f'i{n_bits}')}, ptr {e.field('%matrix', target)}, align 1")


def give(e: Emitter, registers: Sequence[Operand], n_bits: int, offset: int, n_different: int = 0) -> None:
    """Record that the lane's area holds the registers from now on. They repeat after `n_different`."""
    for index, register in enumerate(registers):
        if isinstance(register, Register):
            place = index % (n_different or len(registers))
            e.batch.held[register.name] = Held(offset + place * n_bits // 8, n_bits)


@contextmanager
def _lanes_below(e: Emitter, count: int) -> Iterator[None]:
    """Restrict the body of the `with` to the first lanes of the warp."""
    inside, end = e.label(), e.label()
    is_one = e.op(f"icmp ult i32 {e.special('%laneid')}, {count}")
    e.line(f"br i1 {is_one}, label %{inside}, label %{end}")
    e.begin(inside)
    yield
    e.line(f"br label %{end}")
    e.begin(end)


def _row_pointer(e: Emitter, i: Instruction, operand: Operand) -> str:
    is_load = i.opcode == "ldmatrix"
    address = operand_address(e, i, operand)
    return locate_at(e, i, address, ROW_BYTES, reads=is_load, writes=not is_load, space="shared")


@dataclass(frozen=True)
class _Piece:
    """Describe a lane's elements that are adjacent in memory: `n_bytes` at `offset` in its area, from `address`."""

    offset: int
    n_bytes: int
    address: str


def _load_fragment(e: Emitter, i: Instruction) -> None:
    """Translate ``wmma.load.role.sync.aligned.layout.shape.space.type r, [p], stride``."""
    held = loaded_fragment(i)
    registers = _registers_of(i, i.operands[0], held)
    step = step_of(e, i, agree(), n_bytes=AGREED_BYTES + held.n_bytes, addresses=i.operands[1:])
    agreed = _memory_operands(e, i, i.operands[1], i.operands[2:], held, len(registers))
    _say(e, step, agreed)
    first = step.base + AGREED_BYTES
    for piece in _pieces(e, i, held, agreed):
        width = f"i{8 * piece.n_bytes}"
        pointer = locate_at(e, i, piece.address, piece.n_bytes, reads=True, writes=False, space=space_of(i))
        value = e.op(f"load {width}, ptr {pointer}, align 1")
        e.line(f"store {width} {value}, ptr {e.field('%matrix', first + piece.offset)}, align 1")
    give(e, registers, held.register_bits, first, held.n_registers)


def _store_fragment(e: Emitter, i: Instruction) -> None:
    """Translate ``wmma.store.d.sync.aligned.layout.shape.space.type [p], r, stride``."""
    held = loaded_fragment(i)
    registers = _registers_of(i, i.operands[1], held)
    addresses = (i.operands[0], *i.operands[2:])
    step = step_of(e, i, agree(), n_bytes=AGREED_BYTES + held.n_bytes, addresses=addresses)
    put(e, step, registers, held.register_bits, AGREED_BYTES)
    _say(e, step, _memory_operands(e, i, i.operands[0], i.operands[2:], held, len(registers)))
    e.end_batch(e.live_after_current())
    said = [e.op(f"load i64, ptr {e.field('%matrix', step.base + offset)}, align 1") for offset in (0, 8)]
    for piece in _pieces(e, i, held, (said[0], said[1])):
        width, source = f"i{8 * piece.n_bytes}", e.field("%matrix", step.base + AGREED_BYTES + piece.offset)
        value = e.op(f"load {width}, ptr {source}, align 1")
        pointer = locate_at(e, i, piece.address, piece.n_bytes, reads=False, writes=True, space=space_of(i))
        e.line(f"store {width} {value}, ptr {pointer}, align 1")


def _say(e: Emitter, step: Step, agreed: tuple[str, str]) -> None:
    """Store the operands that must be uniform across the warp."""
    for index, value in enumerate(agreed):
        e.line(f"store i64 {value}, ptr {e.field('%matrix', step.base + 8 * index)}, align 1")


def _memory_operands(
    e: Emitter, i: Instruction, pointer: Operand, rest: Sequence[Operand], held: Fragment, n_registers: int
) -> tuple[str, str]:
    """Return the address and the stride of rows or columns, and check their alignment."""
    address = operand_address(e, i, pointer)
    along = held.n_columns if i.has("row") else held.n_rows
    stride = e.coerce(e.read(rest[0], "i32"), "i32", "i64") if rest else str(along)
    n_bytes = n_registers * held.register_bits // 8
    site = Site(i, space_of(i), n_bytes, i.has("load"), i.has("store"))
    e.fault_unless(_is_multiple(e, address, n_bytes), site, address, FaultKind.MATRIX_ADDRESS)
    distance = e.op(f"mul i64 {stride}, {held.element_bits // 8}")
    is_aligned = _is_multiple(e, distance, min(n_bytes, MATRIX_STRIDE_BYTES))
    e.fault_unless(is_aligned, site, distance, FaultKind.MATRIX_STRIDE)
    return address, stride


def _is_multiple(e: Emitter, value: str, divisor: int) -> str:
    return e.op(f"icmp eq i64 {e.op(f'and i64 {value}, {divisor - 1}')}, 0")


def _pieces(e: Emitter, i: Instruction, held: Fragment, agreed: tuple[str, str]) -> Iterator[_Piece]:
    """Return the pieces of a lane.
    Where memory and fragment have the same direction, a group of elements is one piece."""
    (address, stride), size = agreed, held.element_bits // 8
    lane = e.coerce(e.special("%laneid"), "i32", "i64")
    outer = e.op(f"lshr i64 {lane}, 2")
    inner = e.op(f"mul i64 {e.op(f'and i64 {lane}, {LANES_PER_ROW - 1}')}, {held.group}")
    is_as_held = held.outer_is_row == i.has("row")
    step = held.group if is_as_held else 1
    for element in range(0, held.n_elements, step):
        outer_start, inner_start = held.start(element)
        across = e.op(f"add i64 {outer}, {outer_start}")
        along = e.op(f"add i64 {inner}, {inner_start}")
        if not is_as_held:
            across, along = along, across
        index = e.op(f"add i64 {e.op(f'mul i64 {across}, {stride}')}, {along}")
        place = e.op(f"add i64 {address}, {e.op(f'mul i64 {index}, {size}')}")
        yield _Piece(element * size, step * size, place)
