"""Translate `wgmma`: four warps multiply 64 rows together, with the right factor in shared memory.

The 16 rows of each warp are independent of the other warps, so each warp multiplies at once, on its own. Premature
accesses before `wgmma.wait_group` are not detected. Supported are TF32 factors, the left one in registers, and tiles
without swizzle.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernel_lsp.ptx.compile.emitter import Emitter, Handler, Site
from kernel_lsp.ptx.compile.fragments import REGISTER_BITS, Shape, fragment
from kernel_lsp.ptx.compile.matrices import elements_of, give, put, step_of
from kernel_lsp.ptx.compile.memory import locate_at
from kernel_lsp.ptx.compile.warp_batches import Step
from kernel_lsp.ptx.compile.warp_functions import Product, multiply
from kernel_lsp.ptx.run.layout import FaultKind
from kernel_lsp.ptx.text.syntax import Immediate, Instruction, Operand, UnsupportedPtxError, Vector

WARP_ROWS = 16
DEPTH = 8
MAX_COLUMNS = 256
FIELD_BITS = 14
"""Bits of an address or a stride in a descriptor, in units of 16 bytes."""
LEADING_BIT, STRIDE_BIT, BASE_OFFSET_BIT = 16, 32, 49
"""Bit positions in a descriptor: stride along k, stride along the columns, base offset (0 without swizzle)."""
WORD_BYTES = 4
_SHAPE = re.compile(r"m64n(\d+)k8$")
_ORDERING = ("fence", "commit_group", "wait_group")


def warpgroup(e: Emitter, i: Instruction) -> None:
    """Translate ``wgmma.mma_async``, and the instructions that order it."""
    if i.has(*_ORDERING):
        return
    product = warpgroup_product(i)
    d, a, descriptor, adds, *scales = i.operands
    if not isinstance(a, Vector) or any(getattr(scale, "bits", 0) != 1 for scale in scales):
        raise UnsupportedPtxError("this form of wgmma", i)
    sums = elements_of(d)
    if len(sums) != product.d.n_registers or len(a.elements) != product.a.n_registers:
        raise UnsupportedPtxError("this form of wgmma", i)
    step = step_of(e, i, multiply(product), addresses=(*sums, descriptor, adds))
    put(e, step, a.elements, REGISTER_BITS, 0)
    _put_columns(e, i, step, product, descriptor)
    _put_sums(e, step, sums, adds, product.a.n_bytes + product.b.n_bytes)
    give(e, sums, REGISTER_BITS, step.base + step.function.result_offset)


def warpgroup_product(i: Instruction) -> Product:
    """Return the product that one warp computes. Raises UnsupportedPtxError."""
    shapes = [found for modifier in i.modifiers if (found := _SHAPE.match(modifier))]
    n_columns = int(shapes[0].group(1)) if shapes else 0
    if i.types() != ["f32", "tf32", "tf32"] or not 8 <= n_columns <= MAX_COLUMNS or n_columns % 8 or i.has("sp"):
        raise UnsupportedPtxError("a matrix product of this shape and these types", i)
    shape = Shape(WARP_ROWS, n_columns, DEPTH)
    sums = fragment("c", shape, "f32", "row")
    return Product(shape, fragment("a", shape, "tf32", "row"), fragment("b", shape, "tf32", "col"), sums, sums)


HANDLERS: dict[str, Handler] = {"wgmma": warpgroup}


# --- below: operands


def _put_columns(e: Emitter, i: Instruction, step: Step, product: Product, descriptor: Operand) -> None:
    """Read a lane's part of the right factor: 8 columns of 16 bytes are contiguous."""
    value = e.read(descriptor, "i64")
    site = Site(i, "shared", WORD_BYTES, True, False)
    unknown = e.op(f"lshr i64 {value}, {BASE_OFFSET_BIT}")
    e.fault_unless(e.op(f"icmp eq i64 {unknown}, 0"), site, value, FaultKind.MATRIX_ADDRESS)
    start, along_k, along_n = (_field(e, value, bit) for bit in (0, LEADING_BIT, STRIDE_BIT))
    lane = e.coerce(e.special("%laneid"), "i32", "i64")
    start = e.op(f"add i64 {start}, {e.op(f'mul i64 {lane}, {WORD_BYTES}')}")
    for element in range(product.b.n_elements):
        columns, terms = product.b.start(element)
        far = e.op(f"mul i64 {along_n}, {columns // 8}")
        deep = e.op(f"mul i64 {along_k}, {terms // 4}")
        address = e.op(f"add i64 {start}, {e.op(f'add i64 {far}, {deep}')}")
        pointer = locate_at(e, i, address, WORD_BYTES, reads=True, writes=False, space="shared")
        word = e.op(f"load i32, ptr {pointer}, align 1")
        target = step.base + product.a.n_bytes + element * WORD_BYTES
        e.line(f"store i32 {word}, ptr {e.field('%matrix', target)}, align 1")


def _field(e: Emitter, descriptor: str, bit: int) -> str:
    """Return an address or a stride of a descriptor, in bytes."""
    shifted = e.op(f"lshr i64 {descriptor}, {bit}")
    return e.op(f"shl i64 {e.op(f'and i64 {shifted}, {(1 << FIELD_BITS) - 1}')}, 4")


def _put_sums(e: Emitter, step: Step, sums: Sequence[Operand], adds: Operand, offset: int) -> None:
    """Put the accumulator into the area: zeros where the predicate requests them."""
    keeps = "true" if isinstance(adds, Immediate) and adds.bits else e.read(adds, "i1")
    for place, register in enumerate(sums):
        value = e.op(f"select i1 {keeps}, i32 {e.read(register, 'i32')}, i32 0")
        e.line(f"store i32 {value}, ptr {e.field('%matrix', step.base + offset + place * WORD_BYTES)}, align 1")
