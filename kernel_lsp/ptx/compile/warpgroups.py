"""Translate `wgmma`: four warps multiply 64 rows together, with the right factor in shared memory.

The 16 rows of each warp are independent of the other warps, so each warp multiplies at once, on its own. Premature
accesses before `wgmma.wait_group` are not detected. Supported are TF32 factors, the left one in registers, and tiles
without swizzle or with one of 128 bytes.
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
LEADING_BIT, STRIDE_BIT, BASE_OFFSET_BIT, SWIZZLE_BIT = 16, 32, 49, 62
"""Bit positions in a descriptor: stride along k, stride of 8 columns, base offset, kind of swizzle. The base offset is
0 for tiles that are aligned to the pattern of their swizzle."""
SWIZZLE_128 = 1
"""Kind of swizzle: rows of 128 bytes, whose 16-byte pieces are numbered exclusive-or the row's number modulo 8."""
SWIZZLED_ROW_BYTES = 128
WORD_BYTES = 4
ROW_PIECE_BYTES = 16
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


def _put_columns(e: Emitter, i: Instruction, step: Step, product: Product, descriptor: Operand) -> None:
    """Read a lane's part of the right factor: four terms of a column are contiguous, 8 columns lie together."""
    value = e.read(descriptor, "i64")
    site = Site(i, "shared", WORD_BYTES, True, False)
    kind = e.op(f"lshr i64 {value}, {BASE_OFFSET_BIT}")
    is_swizzled = e.op(f"icmp eq i64 {kind}, {SWIZZLE_128 << SWIZZLE_BIT - BASE_OFFSET_BIT}")
    is_known = e.op(f"or i1 {is_swizzled}, {e.op(f'icmp eq i64 {kind}, 0')}")
    e.fault_unless(is_known, site, value, FaultKind.MATRIX_ADDRESS)
    start, leading, along_n = (_field(e, value, bit) for bit in (0, LEADING_BIT, STRIDE_BIT))
    along_k = e.op(f"select i1 {is_swizzled}, i64 {ROW_PIECE_BYTES}, i64 {leading}")
    column_bytes = e.op(f"select i1 {is_swizzled}, i64 {SWIZZLED_ROW_BYTES}, i64 {ROW_PIECE_BYTES}")
    lane = e.coerce(e.special("%laneid"), "i32", "i64")
    column, term = e.op(f"lshr i64 {lane}, 2"), e.op(f"and i64 {lane}, 3")
    own = e.op(f"add i64 {e.op(f'mul i64 {column}, {column_bytes}')}, {e.op(f'mul i64 {term}, {WORD_BYTES}')}")
    start = e.op(f"add i64 {start}, {own}")
    for element in range(product.b.n_elements):
        columns, terms = product.b.start(element)
        far = e.op(f"mul i64 {along_n}, {columns // 8}")
        deep = e.op(f"mul i64 {along_k}, {terms // 4}")
        address = e.op(f"add i64 {start}, {e.op(f'add i64 {far}, {deep}')}")
        address = _swizzled(e, address, is_swizzled)
        pointer = locate_at(e, i, address, WORD_BYTES, reads=True, writes=False, space="shared")
        word = e.op(f"load i32, ptr {pointer}, align 1")
        target = step.base + product.a.n_bytes + element * WORD_BYTES
        e.line(f"store i32 {word}, ptr {e.field('%matrix', target)}, align 1")


def _swizzled(e: Emitter, address: str, is_swizzled: str) -> str:
    """Return the address with its bits 4 to 6 exchanged by bits 7 to 9 where the tile is swizzled."""
    row = e.op(f"and i64 {e.op(f'lshr i64 {address}, 3')}, {7 << 4}")
    return e.op(f"xor i64 {address}, {e.op(f'select i1 {is_swizzled}, i64 {row}, i64 0')}")


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
