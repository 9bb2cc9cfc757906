"""Instructions of tensor cores: a warp loads, multiplies and stores matrices together.

What a lane loads it loads when it arrives, what it stores it stores after all have: lanes that rely on what others of
the warp wrote, with no `__syncwarp()` between, see old values in some order of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from kernel_lsp.ptx.emitter import Emitter, Handler, Site
from kernel_lsp.ptx.flow import used
from kernel_lsp.ptx.fragments import LANES_PER_ROW, Fragment, Role, fragment, parse_shape
from kernel_lsp.ptx.layout import MATRIX_STRIDE_BYTES, FaultKind, Operation, Status, Thread
from kernel_lsp.ptx.memory import locate_at, operand_address, space_of
from kernel_lsp.ptx.syntax import WIDTH_BITS, Instruction, Operand, UnsupportedPtxError, Vector
from kernel_lsp.ptx.warp_functions import (
    MATRIX_ROWS,
    ROW_BYTES,
    Product,
    WarpFunction,
    load_matrices,
    multiply,
    store_matrices,
    transpose,
)
from kernel_lsp.ptx.warp_matrices import ALL_LANES

_INTEGER_SHAPES = ("m8n8k16", "m16n8k16", "m16n8k32")
MMA_SHAPES: dict[str, tuple[str, ...]] = {
    "f16": ("m16n8k8", "m16n8k16"),
    "bf16": ("m16n8k8", "m16n8k16"),
    "tf32": ("m16n8k4", "m16n8k8"),
    "f64": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"),
    "s8": _INTEGER_SHAPES,
    "u8": _INTEGER_SHAPES,
}
"""Of `mma.sync`, by type of the factors: those whose layouts follow the rule of `kernel_lsp.ptx.fragments`."""
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
N_HALF_REGISTERS = 8
"""Of the factors of `wmma` in f16, whatever the shape: those that are too many repeat the first."""
_N_MATRICES = {"x1": 1, "x2": 2, "x4": 4}
_PRODUCT_WORDS = frozenset(("sync", "aligned", "row", "col", "mma", "rn", "satfinite"))
_ACCESS_WORDS = frozenset(("sync", "aligned", "row", "col", "load", "store", "a", "b", "c", "d"))
_SPACES = frozenset(("global", "shared", "shared__cta"))
_ROW_WORDS = frozenset(("sync", "aligned", "m8n8", "trans", "b16", *_N_MATRICES))


def multiply_add(e: Emitter, i: Instruction) -> None:
    """``mma.sync.aligned.shape.row.col.dtype.atype.btype.ctype d, a, b, c``."""
    _product(e, i, MMA_SHAPES, _kinds(i))


def wmma(e: Emitter, i: Instruction) -> None:
    """``wmma.load``, ``wmma.store`` and ``wmma.mma``."""
    if i.has("load"):
        _load_fragment(e, i)
    elif i.has("store"):
        _store_fragment(e, i)
    else:
        _product(e, i, WMMA_SHAPES, _kinds(i))


def load_rows(e: Emitter, i: Instruction) -> None:
    """``ldmatrix.sync.aligned.m8n8.num{.trans}.shared.b16 r, [p]``: lanes 8 j to 8 j + 7 point at the rows of the j-th
    matrix."""
    n_matrices = _n_matrices(i)
    function = load_matrices(n_matrices, is_transposed=i.has("trans"))
    with _lanes_below(e, MATRIX_ROWS * n_matrices):
        row = _row_pointer(e, i, i.operands[1])
        e.line(f"store i128 {e.op(f'load i128, ptr {row}, align 1')}, ptr {e.matrix_area(ROW_BYTES)}, align 1")
    _ask(e, i, function)
    _take(e, _elements(i.operands[0]), 32, function.result_offset)


def store_rows(e: Emitter, i: Instruction) -> None:
    """``stmatrix.sync.aligned.m8n8.num{.trans}.shared.b16 [p], r``."""
    n_matrices = _n_matrices(i)
    function = store_matrices(n_matrices, is_transposed=i.has("trans"))
    _put(e, _elements(i.operands[1]), 32, 0)
    _ask(e, i, function, keeps=frozenset(used(i)))
    with _lanes_below(e, MATRIX_ROWS * n_matrices):
        source = e.field(e.matrix_area(function.n_bytes), function.result_offset)
        value = e.op(f"load i128, ptr {source}, align 1")
        e.line(f"store i128 {value}, ptr {_row_pointer(e, i, i.operands[0])}, align 1")


def move_matrix(e: Emitter, i: Instruction) -> None:
    """``movmatrix.sync.aligned.m8n8.trans.b16 d, a``."""
    if not i.has("trans") or not i.has("m8n8"):
        raise UnsupportedPtxError("this form of movmatrix", i)
    function = transpose()
    _put(e, (i.operands[1],), 32, 0)
    _ask(e, i, function)
    _take(e, (i.operands[0],), 32, function.result_offset)


HANDLERS: dict[str, Handler] = {
    "mma": multiply_add,
    "wmma": wmma,
    "ldmatrix": load_rows,
    "stmatrix": store_rows,
    "movmatrix": move_matrix,
}


def loaded_fragment(i: Instruction) -> Fragment:
    """What a `wmma.load` or `wmma.store` moves. Raises UnsupportedPtxError, or ValueError for other text."""
    _know(i, _ACCESS_WORDS | _SPACES)
    role: Role = next(("a" if m == "a" else "b" if m == "b" else "c") for m in i.modifiers if m in ("a", "b", "c", "d"))
    (kind,) = i.types()
    factors = [kind] if role != "c" else [one for one, sums in ACCUMULATORS.items() if kind in sums]
    shapes = {shape for one in factors for shape in WMMA_SHAPES.get(one, ())}
    if shapes.isdisjoint(i.modifiers):
        raise UnsupportedPtxError("matrices of this shape and type", i)
    return fragment(role, parse_shape(i.modifiers), kind, "row" if i.has("row") else "col")


def product_of(i: Instruction) -> Product:
    """What `mma` or `wmma.mma` computes. Raises UnsupportedPtxError, or ValueError for other text."""
    return _checked_product(i, MMA_SHAPES if i.opcode == "mma" else WMMA_SHAPES, _kinds(i))


# --- below: products


def _kinds(i: Instruction) -> tuple[str, str, str, str]:
    """The types of d, a, b and c. `wmma` in f16 does not name those of its factors."""
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
    function = multiply(product)
    offset = 0
    for held, operand in zip((product.a, product.b, product.c), i.operands[1:], strict=True):
        registers = _registers_of(i, operand, held)[: held.n_registers]
        _put(e, registers, held.register_bits, offset)
        offset += held.n_bytes
    _ask(e, i, function)
    _take(e, _registers_of(i, i.operands[0], product.d), product.d.register_bits, function.result_offset)


def _know(i: Instruction, words: frozenset[str]) -> None:
    """Refuse what has a modifier that we do not know: it may mean something else."""
    for modifier in i.modifiers:
        if modifier not in words and modifier not in WIDTH_BITS and not modifier.startswith("m"):
            raise UnsupportedPtxError(f"'{modifier}' in a matrix instruction", i)


def _registers_of(i: Instruction, operand: Operand, held: Fragment) -> tuple[Operand, ...]:
    registers = _elements(operand)
    is_repeated = i.opcode == "wmma" and held.kind == "f16" and len(registers) == N_HALF_REGISTERS
    if len(registers) != held.n_registers and not is_repeated:
        raise UnsupportedPtxError(f"a fragment of {len(registers)} registers in place of {held.n_registers}", i)
    return registers


# --- below: what a lane does for itself


def _elements(operand: Operand) -> tuple[Operand, ...]:
    return operand.elements if isinstance(operand, Vector) else (operand,)


def _put(e: Emitter, registers: Sequence[Operand], n_bits: int, offset: int) -> None:
    """Registers into the lane's area."""
    area = e.matrix_area(offset + len(registers) * n_bits // 8)
    for index, register in enumerate(registers):
        place = e.field(area, offset + index * n_bits // 8)
        e.line(f"store i{n_bits} {e.read(register, f'i{n_bits}')}, ptr {place}, align 1")


def _take(e: Emitter, registers: Sequence[Operand], n_bits: int, offset: int, n_different: int = 0) -> None:
    """Registers from the lane's area. After `n_different` they repeat."""
    n_different = n_different or len(registers)
    area = e.matrix_area(offset + n_different * n_bits // 8)
    for index, register in enumerate(registers):
        place = e.field(area, offset + index % n_different * n_bits // 8)
        e.write(register, e.op(f"load i{n_bits}, ptr {place}, align 1"), f"i{n_bits}")


def _ask(
    e: Emitter,
    i: Instruction,
    function: WarpFunction | None,
    *,
    agreed: tuple[str, str] = ("0", "0"),
    keeps: frozenset[str] = frozenset(),
) -> None:
    """Wait for the warp, which then calls `function`. All lanes must give the same `agreed` values."""
    called = "0"
    if function is not None:
        e.warp_functions[function.name] = function.text
        e.matrix_area(function.n_bytes)
        called = f'ptrtoint (ptr @"{function.name}" to i64)'
    values = {
        Thread.A: agreed[0],
        Thread.B: agreed[1],
        Thread.C: str(e.site(Site(i))),
        Thread.MATRIX_AREA: e.op(f"ptrtoint ptr {e.matrix_area(0)} to i64"),
        Thread.WARP_FUNCTION: called,
        Thread.OPERATION: str(int(Operation.MATRIX)),
        # Lanes at different instructions do not wait for the same thing.
        Thread.MASK: str(ALL_LANES | (len(e.resume_labels) + 1) << 32),
    }
    for place, value in values.items():
        e.store_thread_field(place, value)
    e.yield_to_scheduler(i, e.live_after_current() | keeps, Status.WARP)


@contextmanager
def _lanes_below(e: Emitter, count: int) -> Iterator[None]:
    """What is written inside the `with` is done by the first lanes of the warp."""
    inside, end = e.label(), e.label()
    is_one = e.op(f"icmp ult i32 {e.special('%laneid')}, {count}")
    e.line(f"br i1 {is_one}, label %{inside}, label %{end}")
    e.begin(inside)
    yield
    e.line(f"br label %{end}")
    e.begin(end)


def _n_matrices(i: Instruction) -> int:
    _know(i, _ROW_WORDS | _SPACES)
    if not i.has("m8n8") or i.types() != ["b16"] or not i.has("shared", "shared__cta"):
        raise UnsupportedPtxError(f"this form of {i.opcode}", i)
    return next(_N_MATRICES[modifier] for modifier in i.modifiers if modifier in _N_MATRICES)


def _row_pointer(e: Emitter, i: Instruction, operand: Operand) -> str:
    is_load = i.opcode == "ldmatrix"
    address = operand_address(e, i, operand)
    return locate_at(e, i, address, ROW_BYTES, reads=is_load, writes=not is_load, space="shared")


# --- below: fragments in memory


@dataclass(frozen=True)
class _Piece:
    """Neighbours in memory that one lane holds: `n_bytes` at `offset` in its area, at `address` in memory."""

    offset: int
    n_bytes: int
    address: str


def _load_fragment(e: Emitter, i: Instruction) -> None:
    """``wmma.load.role.sync.aligned.layout.shape.space.type r, [p], stride``."""
    held = loaded_fragment(i)
    registers = _registers_of(i, i.operands[0], held)
    agreed = _memory_operands(e, i, i.operands[1], i.operands[2:], held, len(registers))
    area = e.matrix_area(held.n_bytes)
    for piece in _pieces(e, i, held, agreed):
        width = f"i{8 * piece.n_bytes}"
        pointer = locate_at(e, i, piece.address, piece.n_bytes, reads=True, writes=False, space=space_of(i))
        value = e.op(f"load {width}, ptr {pointer}, align 1")
        e.line(f"store {width} {value}, ptr {e.field(area, piece.offset)}, align 1")
    _ask(e, i, None, agreed=agreed)
    _take(e, registers, held.register_bits, 0, held.n_registers)


def _store_fragment(e: Emitter, i: Instruction) -> None:
    """``wmma.store.d.sync.aligned.layout.shape.space.type [p], r, stride``."""
    held = loaded_fragment(i)
    registers = _registers_of(i, i.operands[1], held)
    _put(e, registers, held.register_bits, 0)
    agreed = _memory_operands(e, i, i.operands[0], i.operands[2:], held, len(registers))
    _ask(e, i, None, agreed=agreed, keeps=frozenset(used(i)))
    area = e.matrix_area(held.n_bytes)
    again = (e.thread_field(Thread.A), e.thread_field(Thread.B))
    for piece in _pieces(e, i, held, again):
        width = f"i{8 * piece.n_bytes}"
        value = e.op(f"load {width}, ptr {e.field(area, piece.offset)}, align 1")
        pointer = locate_at(e, i, piece.address, piece.n_bytes, reads=False, writes=True, space=space_of(i))
        e.line(f"store {width} {value}, ptr {pointer}, align 1")


def _memory_operands(
    e: Emitter, i: Instruction, pointer: Operand, rest: Sequence[Operand], held: Fragment, n_registers: int
) -> tuple[str, str]:
    """Address and distance of rows or columns, which must be aligned."""
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
    """The pieces of a lane. Where memory has the matrix as it is held, a group of elements is one piece."""
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
