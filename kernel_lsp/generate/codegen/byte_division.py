"""Divide integers of 8 bits by a constant with one multiplication."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from functools import lru_cache

from kernel_lsp.core.dtype import DType
from kernel_lsp.generate.codegen.operators import COMPUTE_TYPE
from kernel_lsp.generate.ir.scalar import Constant, Operation

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
