"""Read integer literals, and compute with integers as C does."""

from __future__ import annotations

import re

_INTEGER = re.compile(r"(?:0[xX][0-9a-fA-F']+|[0-9][0-9']*)[uUlL]*")
_MAX_LITERAL = 40
"""Maximum characters of a literal. No meaningful number is longer."""


def integer_literal(text: str) -> int | None:
    """Return the value of an integer literal, such as 16 for ``0x10u``. None for other text."""
    if not _INTEGER.fullmatch(text) or len(text) > _MAX_LITERAL:
        return None
    digits = text.rstrip("uUlL").replace("'", "")
    if len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX":
        return int(digits, 8) if all(digit in "01234567" for digit in digits) else None
    return int(digits, 0) if digits[:2] != "0x" or len(digits) > 2 else None


def quotient(left: int, right: int) -> int:
    """Return the quotient of C, which rounds toward zero. Raises ZeroDivisionError."""
    return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)


def remainder(left: int, right: int) -> int:
    """Return the remainder of C, whose sign is that of the left side. Raises ZeroDivisionError."""
    return left - quotient(left, right) * right


def applied(operator: str, left: int, right: int) -> int | None:
    """Return ``left operator right`` as C computes it. None for undefined results and other operators."""
    if operator in ("/", "%"):
        if right == 0:
            return None
        return quotient(left, right) if operator == "/" else remainder(left, right)
    if operator in ("<<", ">>"):
        if not 0 <= right < 64:
            return None
        return left << right if operator == "<<" else left >> right
    return {"+": left + right, "-": left - right, "*": left * right}.get(operator)
