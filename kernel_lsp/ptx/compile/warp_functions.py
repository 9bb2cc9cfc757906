"""Generate LLVM IR of warp-collective functions: matrix products, exchange of rows of 8 x 8 matrices, transposition.

Each function gets the address of lane 0's matrix area and the stride between lanes' areas. Before it waits, a lane has
put its operands at the start of its area, one after the other. The results go to the offset in `WarpFunction`.

Products of 16-bit floats and of tf32 are exact in f32. Sums are rounded to f32 one by one, in the order of k, starting
from c. Sums of s8 and u8 are exact; those of f64 are fused multiply-adds in the order of k.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from kernel_lsp.ptx.compile.fragments import LANES_PER_ROW, Fragment, Shape
from kernel_lsp.ptx.compile.ir_text import IrText
from kernel_lsp.ptx.run.layout import WARP_SIZE, FaultKind

ROW_BYTES = 16
"""Bytes per row of an 8 x 8 matrix of 16-bit elements."""
MATRIX_ROWS = 8
AGREED_BYTES = 16
TF32_MASK = -(1 << 13)
"""Mask that truncates f32 bits to tf32: the last 13 are dropped, as on the hardware."""


@dataclass(frozen=True)
class WarpFunction:
    """Hold the IR of a function `name`. A lane's area has `n_bytes`; its results start at `result_offset`."""

    name: str
    text: str
    result_offset: int
    n_bytes: int
    may_fail: bool = False


@dataclass(frozen=True)
class Product:
    """Describe d = a * b + c. `clamps` saturates integer sums to their range."""

    shape: Shape
    a: Fragment
    b: Fragment
    c: Fragment
    d: Fragment
    clamps: bool = False

    @property
    def name(self) -> str:
        m, n, k = self.shape.m, self.shape.n, self.shape.k
        held = f"{'row' if self.a.outer_is_row else 'col'}.{'row' if self.b.outer_is_row else 'col'}"
        kinds = ".".join(one.kind for one in (self.d, self.a, self.b, self.c))
        return f"w.mma.m{m}n{n}k{k}.{held}.{kinds}{'.clamped' if self.clamps else ''}"


def define(name: str, text: IrText, result_offset: int, n_bytes: int, *, may_fail: bool = False) -> WarpFunction:
    """Define a function with that body, which returns 0 or a FaultKind.
    The body may use the names ``%first`` and ``%stride``."""
    head = f'define internal i64 @"{name}"(i64 %first, i64 %stride) #1 {{\nentry:'
    return WarpFunction(name, "\n".join([head, *text.lines, "}", ""]), result_offset, n_bytes, may_fail)


def area_of(text: IrText, lane: str) -> str:
    """Return the pointer to a lane's area, inside of a warp function."""
    address = text.op(f"add i64 %first, {text.op(f'mul i64 {lane}, %stride')}")
    return text.op(f"inttoptr i64 {address} to ptr")


@functools.cache
def agree() -> WarpFunction:
    """Return the function that fails unless all lanes have the same two 64-bit values at the start of their areas."""
    text = IrText()
    different = text.op("alloca i64")
    text.line(f"store i64 0, ptr {different}")
    lead = area_of(text, "0")
    with text.loop(WARP_SIZE) as lane:
        own, seen = area_of(text, lane), text.op(f"load i64, ptr {different}")
        for offset in (0, 8):
            values = [text.op(f"load i64, ptr {text.field(area, offset)}, align 1") for area in (own, lead)]
            seen = text.op(f"or i64 {seen}, {text.op(f'xor i64 {values[0]}, {values[1]}')}")
        text.line(f"store i64 {seen}, ptr {different}")
    is_fine = text.op(f"icmp eq i64 {text.op(f'load i64, ptr {different}')}, 0")
    text.line(f"ret i64 {text.op(f'select i1 {is_fine}, i64 0, i64 {int(FaultKind.WARP_DISAGREES)}')}")
    return define("w.agree", text, AGREED_BYTES, AGREED_BYTES, may_fail=True)


@functools.cache
def multiply(product: Product) -> WarpFunction:
    """Return the function of `mma` and `wmma.mma`: a, b and c are in the area in this order, d follows."""
    text = IrText()
    places, offset = {}, 0
    for role in ("a", "b", "c"):
        held: Fragment = getattr(product, role)
        places[role] = _array(text, held)
        _gather(text, held, places[role], offset)
        offset += held.n_bytes
    result = _array(text, product.d)
    _accumulate(text, product, places, result)
    _scatter(text, product.d, result, offset)
    return _function(product.name, text, offset, offset + product.d.n_bytes)


def load_matrices(n_matrices: int, *, is_transposed: bool) -> WarpFunction:
    """Return the function of `ldmatrix`: lanes that supply a row have it at the start of their area."""
    text = IrText()
    with text.loop(WARP_SIZE) as lane:
        own = area_of(text, lane)
        for matrix in range(n_matrices):
            value = _two_of_row(text, lane, matrix, is_transposed=is_transposed)
            text.line(f"store i32 {value}, ptr {text.field(own, ROW_BYTES + 4 * matrix)}, align 4")
    name = f"w.ldmatrix.x{n_matrices}{'.trans' if is_transposed else ''}"
    return _function(name, text, ROW_BYTES, ROW_BYTES + 4 * n_matrices)


def store_matrices(n_matrices: int, *, is_transposed: bool) -> WarpFunction:
    """Return the function of `stmatrix`: each area starts with one register per matrix; the result is rows."""
    text = IrText()
    with text.loop(WARP_SIZE) as lane:
        own = area_of(text, lane)
        for matrix in range(n_matrices):
            value = text.op(f"load i32, ptr {text.field(own, 4 * matrix)}, align 4")
            for half in range(2):
                row, column = _place(text, lane, half, is_transposed=is_transposed)
                target = area_of(text, text.op(f"add i64 {row}, {MATRIX_ROWS * matrix}"))
                place = text.field(text.field(target, ROW_BYTES), text.op(f"shl i64 {column}, 1"))
                bits = text.op(f"trunc i32 {text.op(f'lshr i32 {value}, {16 * half}')} to i16")
                text.line(f"store i16 {bits}, ptr {place}, align 2")
    name = f"w.stmatrix.x{n_matrices}{'.trans' if is_transposed else ''}"
    return _function(name, text, ROW_BYTES, 2 * ROW_BYTES)


def transpose() -> WarpFunction:
    """Return the function of `movmatrix`."""
    text = IrText()
    with text.loop(WARP_SIZE) as lane:
        own, halves = area_of(text, lane), []
        for half in range(2):
            row, column = _place(text, lane, half, is_transposed=True)
            holder = text.op(f"add i64 {text.op(f'shl i64 {row}, 2')}, {text.op(f'lshr i64 {column}, 1')}")
            odd = text.op(f"shl i64 {text.op(f'and i64 {column}, 1')}, 1")
            place = text.op(f"getelementptr i8, ptr {area_of(text, holder)}, i64 {odd}")
            halves.append(text.op(f"zext i16 {text.op(f'load i16, ptr {place}, align 2')} to i32"))
        value = text.op(f"or i32 {halves[0]}, {text.op(f'shl i32 {halves[1]}, 16')}")
        text.line(f"store i32 {value}, ptr {text.field(own, 4)}, align 4")
    return _function("w.movmatrix", text, 4, 8)


def _function(name: str, text: IrText, result_offset: int, n_bytes: int) -> WarpFunction:
    """Return a function that cannot fail."""
    text.line("ret i64 0")
    return define(name, text, result_offset, n_bytes)


def _place(text: IrText, lane: str, half: int, *, is_transposed: bool) -> tuple[str, str]:
    """Return row and column of one of the two elements of an 8 x 8 matrix that a lane holds."""
    outer = text.op(f"lshr i64 {lane}, 2")
    place = text.op(f"and i64 {lane}, {LANES_PER_ROW - 1}")
    inner = text.op(f"add i64 {text.op(f'shl i64 {place}, 1')}, {half}")
    return (inner, outer) if is_transposed else (outer, inner)


def _two_of_row(text: IrText, lane: str, matrix: int, *, is_transposed: bool) -> str:
    halves = []
    for half in range(2):
        row, column = _place(text, lane, half, is_transposed=is_transposed)
        source = area_of(text, text.op(f"add i64 {row}, {MATRIX_ROWS * matrix}"))
        place = text.op(f"getelementptr i16, ptr {source}, i64 {column}")
        halves.append(text.op(f"zext i16 {text.op(f'load i16, ptr {place}, align 2')} to i32"))
    return text.op(f"or i32 {halves[0]}, {text.op(f'shl i32 {halves[1]}, 16')}")


_ELEMENT = {8: "i8", 16: "i16", 32: "i32", 64: "i64"}


def _array(text: IrText, held: Fragment) -> str:
    count = held.n_rows * held.n_columns
    return text.op(f"alloca [{count} x {_ELEMENT[held.element_bits]}], align 64")


def _indices(text: IrText, held: Fragment, lane: str) -> list[str]:
    """Return the array index of each element of a lane."""
    outer_step, inner_step = (held.n_columns, 1) if held.outer_is_row else (1, held.n_columns)
    outer = text.op(f"mul i64 {text.op(f'lshr i64 {lane}, 2')}, {outer_step}")
    inner = text.op(f"mul i64 {text.op(f'and i64 {lane}, {LANES_PER_ROW - 1}')}, {held.group * inner_step}")
    start = text.op(f"add i64 {outer}, {inner}")
    starts = [held.start(element) for element in range(held.n_elements)]
    return [text.op(f"add i64 {start}, {out * outer_step + into * inner_step}") for out, into in starts]


def _gather(text: IrText, held: Fragment, array: str, offset: int) -> None:
    """Copy elements from the lanes' areas into the array."""
    element = _ELEMENT[held.element_bits]
    with text.loop(WARP_SIZE) as lane:
        area = area_of(text, lane)
        for number, index in enumerate(_indices(text, held, lane)):
            source = text.field(area, offset + number * held.element_bits // 8)
            value = text.op(f"load {element}, ptr {source}, align 1")
            text.line(f"store {element} {value}, ptr {_at(text, array, element, index)}, align 1")


def _scatter(text: IrText, held: Fragment, array: str, offset: int) -> None:
    """Copy elements from the array into the lanes' areas."""
    element = _ELEMENT[held.element_bits]
    with text.loop(WARP_SIZE) as lane:
        area = area_of(text, lane)
        for number, index in enumerate(_indices(text, held, lane)):
            value = text.op(f"load {element}, ptr {_at(text, array, element, index)}, align 1")
            target = text.field(area, offset + number * held.element_bits // 8)
            text.line(f"store {element} {value}, ptr {target}, align 1")


def _at(text: IrText, array: str, element: str, index: str) -> str:
    return text.op(f"getelementptr {element}, ptr {array}, i64 {index}")


def _accumulate(text: IrText, product: Product, places: dict[str, str], result: str) -> None:
    """Emit d = a * b + c, row by row; a row of d is one vector."""
    shape, number = product.shape, _number(product.c.kind)
    right = _widened(text, product.b, places["b"], number)
    with text.loop(shape.m) as row:
        left = _row(text, product.a, places["a"], row, number)
        total = _row(text, product.c, places["c"], row, number)
        for k in range(shape.k):
            factor = _repeated(text, left, k, (shape.k, shape.n), number)
            others = text.op(
                f"load <{shape.n} x {number}>, ptr {text.field(right, k * shape.n * _N_BYTES[number])}, align 8"
            )
            total = _multiply_add(text, factor, others, total, f"<{shape.n} x {number}>")
        _store_row(text, product, result, row, total, number)


_N_BYTES = {"float": 4, "double": 8, "i64": 8}


def _number(kind: str) -> str:
    """Return the type of the sums. Integer types are wide enough to be exact until they are wrapped or clamped."""
    return {"f64": "double", "s32": "i64"}.get(kind, "float")


def _widened(text: IrText, held: Fragment, array: str, number: str) -> str:
    """Convert the whole matrix to the type of the sums."""
    wide = text.op(f"alloca [{held.n_rows * held.n_columns} x {number}], align 64")
    with text.loop(held.n_rows) as row:
        value = _row(text, held, array, row, number)
        target = _at(text, wide, number, text.op(f"mul i64 {row}, {held.n_columns}"))
        text.line(f"store <{held.n_columns} x {number}> {value}, ptr {target}, align 8")
    return wide


def _row(text: IrText, held: Fragment, array: str, row: str, number: str) -> str:
    """Return a row as a vector of numbers."""
    count, element = held.n_columns, _ELEMENT[held.element_bits]
    place = _at(text, array, element, text.op(f"mul i64 {row}, {count}"))
    bits = text.op(f"load <{count} x {element}>, ptr {place}, align 1")
    match held.kind:
        case "f16":
            return text.op(
                f"fpext <{count} x half> {text.op(f'bitcast <{count} x i16> {bits} to <{count} x half>')} "
                f"to <{count} x float>"
            )
        case "bf16":
            wide = text.op(f"zext <{count} x i16> {bits} to <{count} x i32>")
            bits = text.op(f"shl <{count} x i32> {wide}, {_splat('i32', 16, count)}")
        case "tf32":
            bits = text.op(f"and <{count} x i32> {bits}, {_splat('i32', TF32_MASK, count)}")
        case "u8" | "s8" | "s32":
            opcode = "zext" if held.kind == "u8" else "sext"
            return text.op(f"{opcode} <{count} x {element}> {bits} to <{count} x i64>")
    source = "i64" if number == "double" else "i32"
    return text.op(f"bitcast <{count} x {source}> {bits} to <{count} x {number}>")


def _splat(element: str, value: int, count: int) -> str:
    return f"<{', '.join([f'{element} {value}'] * count)}>"


def _repeated(text: IrText, vector: str, index: int, counts: tuple[int, int], number: str) -> str:
    """Broadcast one element of a vector."""
    given, wanted = counts
    kind = f"<{given} x {number}>"
    return text.op(f"shufflevector {kind} {vector}, {kind} undef, <{wanted} x i32> {_splat('i32', index, wanted)}")


def _multiply_add(text: IrText, left: str, right: str, total: str, kind: str) -> str:
    if "double" in kind:
        name = f"llvm.fma.v{kind[1:].split()[0]}f64"
        return text.call(kind, name, f"{kind} {left}", f"{kind} {right}", f"{kind} {total}")
    prefix = "" if "i64" in kind else "f"
    return text.op(f"{prefix}add {kind} {total}, {text.op(f'{prefix}mul {kind} {left}, {right}')}")


def _store_row(text: IrText, product: Product, array: str, row: str, total: str, number: str) -> None:
    held, count = product.d, product.shape.n
    element = _ELEMENT[held.element_bits]
    if held.kind == "f16":
        total = text.op(f"fptrunc <{count} x float> {total} to <{count} x half>")
        total = text.op(f"bitcast <{count} x half> {total} to <{count} x i16>")
    elif held.kind == "s32":
        total = _as_32_bits(text, total, count, clamps=product.clamps)
    else:
        total = text.op(f"bitcast <{count} x {number}> {total} to <{count} x {element}>")
    place = _at(text, array, element, text.op(f"mul i64 {row}, {count}"))
    text.line(f"store <{count} x {element}> {total}, ptr {place}, align 1")


def _as_32_bits(text: IrText, total: str, count: int, *, clamps: bool) -> str:
    kind = f"<{count} x i64>"
    if clamps:
        for comparison, limit in (("slt", (1 << 31) - 1), ("sgt", -(1 << 31))):
            bound = _splat("i64", limit, count)
            is_inside = text.op(f"icmp {comparison} {kind} {total}, {bound}")
            total = text.op(f"select <{count} x i1> {is_inside}, {kind} {total}, {kind} {bound}")
    return text.op(f"trunc {kind} {total} to <{count} x i32>")
