"""Declare quotients and remainders that several indices share, or that are named coordinates, once and before use.

Divide integers of 8 bits by a constant with one multiplication.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.block import Block
from kernel_lsp.generate.codegen.index_text import IndexWriter
from kernel_lsp.generate.codegen.operators import ADD, ATOM, COMPUTE_TYPE, MULTIPLY, UNARY, Text
from kernel_lsp.generate.ir.atoms import Indirect, Quotient, Remainder, Variable
from kernel_lsp.generate.ir.index import ONE, ZERO, Index, as_index, is_nonnegative, substitute
from kernel_lsp.generate.ir.scalar import Constant, Operation
from kernel_lsp.generate.ir.sizes import coefficient

Division = Quotient | Remainder


def declare_divisions(indices: Iterable[Index], writer: IndexWriter) -> None:
    """Declare divisions that occur more than once in the indices, the innermost first, in the writer's block."""
    counted: Counter[Division] = Counter()
    for index in indices:
        _count(index, counted)
    _declare_dividends(counted, writer)
    for atom in sorted(counted, key=_nesting):
        is_named = as_index(atom).digest in writer.block.kernel.coordinates
        if (is_named or counted[atom] > 1) and _can_declare(atom, writer.block):
            _declare(atom, writer)


def declare_lane_divisions(indices: Iterable[Index], lane: Variable, writer: IndexWriter) -> dict[bytes, Text]:
    """Declare, once per pack, quotients whose dividend grows by 1 from lane to lane. Return their value in each lane,
    where only few lanes have to divide."""
    named: dict[bytes, Text] = {}
    counted: Counter[Division] = Counter()
    for index in indices:
        _count(index, counted)
    for dividend, divisor in dict.fromkeys((atom.dividend, atom.divisor) for atom in sorted(counted, key=_nesting)):
        if _steps_by_lane(dividend, divisor, lane, writer.block):
            named |= _declare_lanes(dividend, divisor, lane, writer)
    return named


def _steps_by_lane(dividend: Index, divisor: Index, lane: Variable, block: Block) -> bool:
    start = substitute(dividend, {lane: ZERO})
    is_plain = divisor.constant is None and lane not in divisor.variables and block.lookup(dividend.digest) is None
    return (
        is_plain
        and coefficient(dividend, lane) == ONE
        and block.knows(start.variables | divisor.variables)
        and is_nonnegative(dividend)
        and not _reads_memory(Quotient(dividend, divisor))
    )


def _declare_lanes(dividend: Index, divisor: Index, lane: Variable, writer: IndexWriter) -> dict[bytes, Text]:
    block = writer.block
    start, size = writer.text(substitute(dividend, {lane: ZERO})), writer.text(divisor).within(UNARY)
    type_, v = block.kernel.index_type, lane.name
    quotient = block.declare(f"{lane.name}_block", type_, f"{start.within(MULTIPLY)} / {size}")
    rest = block.declare(f"{lane.name}_within", type_, f"{start.text} - {quotient} * {size}")
    block.kernel.use("near_quotient")
    arguments = f"({rest} + {v}, {writer.text(divisor).text})"
    return {
        as_index(Quotient(dividend, divisor)).digest: Text(f"{quotient} + near_quotient{arguments}", ADD),
        as_index(Remainder(dividend, divisor)).digest: Text(f"near_remainder{arguments}", ATOM),
    }


def _count(index: Index, counted: Counter[Division]) -> None:
    for atom in _divisions(index):
        counted[atom] += 1
        if counted[atom] == 1:
            _count(atom.dividend, counted)


def _divisions(index: Index) -> list[Division]:
    return [atom for monomial, _ in index.terms for atom in monomial if isinstance(atom, Quotient | Remainder)]


def _declare_dividends(counted: Counter[Division], writer: IndexWriter) -> None:
    """Declare dividends that several divisions share."""
    block = writer.block
    dividends: Counter[Index] = Counter()
    for atom in counted:
        if len(atom.dividend.terms) > 1 and _can_declare(atom, block):
            dividends[atom.dividend] += 1
    for dividend in sorted(dividends, key=lambda index: index.digest):
        if dividends[dividend] > 1 and block.lookup(dividend.digest) is None:
            name = block.declare("position", block.kernel.index_type, writer.text(dividend).text)
            block.named[dividend.digest] = Text(name, ATOM)


def _can_declare(atom: Division, block: Block) -> bool:
    return not _reads_memory(atom) and block.lookup(as_index(atom).digest) is None and block.knows(atom.variables)


def _reads_memory(atom: Division) -> bool:
    return any(
        isinstance(inner, Indirect) or (isinstance(inner, Quotient | Remainder) and _reads_memory(inner))
        for monomial, _ in (*atom.dividend.terms, *atom.divisor.terms)
        for inner in monomial
    )


def _nesting(atom: Division) -> tuple[int, bytes]:
    """Return the nesting depth along the first division of each dividend, and the digest of the innermost division."""
    depth = 1
    while inner := _divisions(atom.dividend):
        depth, atom = depth + 1, inner[0]
    return depth, atom.digest


def _declare(atom: Division, writer: IndexWriter) -> None:
    index = as_index(atom)
    block = writer.block
    text = writer.division_text(atom)
    name = block.kernel.coordinates.get(index.digest) or _division_name(atom)
    block.named[index.digest] = Text(block.declare(name, block.kernel.index_type, text.text), ATOM)


def _division_name(atom: Division) -> str:
    variable = min((v.name for v in atom.variables), default="size")
    return f"{variable}_{'block' if isinstance(atom, Quotient) else 'within'}"


BYTES = {DType.U8: range(256), DType.I8: range(-128, 128), DType.BOOL: range(2)}
"""Values of the types whose quotients are tried."""


def inverse_for_bytes(node: Operation) -> float | None:
    """Return the f32 nearest to the inverse of a constant divisor where one correction makes every quotient of the
    integers behind the dividend the rounded one; None for any other operation."""
    if node.name != "div" or COMPUTE_TYPE[node.dtype] != "float":
        return None
    dividend, divisor = node.operands
    is_cast = isinstance(dividend, Operation) and dividend.name == "cast"
    type_ = dividend.operands[0].dtype if is_cast else None
    if type_ not in BYTES or not isinstance(divisor, Constant):
        return None
    return _tried_inverse(float(divisor.value), type_)


@lru_cache(maxsize=256)
def _tried_inverse(divisor: float, type_: DType) -> float | None:
    if not math.isfinite(divisor) or not 2.0**-60 < abs(divisor) < 2.0**60 or _rounded(divisor) != divisor:
        return None
    inverse = _rounded(1.0 / divisor)
    return inverse if all(_is_exact(x, divisor, inverse) for x in BYTES[type_]) else None


def _is_exact(x: int, divisor: float, inverse: float) -> bool:
    """Return True if ``fma(fma(-q, divisor, x), inverse, q)`` with ``q = x * inverse`` rounds to the quotient: the sum
    before its rounding is nearer to it than to any other f32."""
    q = _rounded(x * inverse)
    rest = Fraction(x) - Fraction(q) * Fraction(divisor)
    if Fraction(_rounded(float(rest))) != rest:
        return False
    found, wanted = Fraction(q) + rest * Fraction(inverse), _rounded(x / divisor)
    return abs(found - Fraction(wanted)) * 2 < Fraction(_ulp(wanted)) if x else found == 0


def _rounded(value: float) -> float:
    """Return the f32 nearest to a number; of a quotient of f32 numbers, that rounds as one division does."""
    result: float = struct.unpack("f", struct.pack("f", value))[0]
    return result


def _ulp(value: float) -> float:
    """Return half of the distance to the next f32 toward zero's side of a power of two: the smaller of both."""
    mantissa, exponent = math.frexp(abs(value))
    return math.ldexp(1.0, exponent - 24 - (mantissa == 0.5))
