"""Convert positions: ours are 0-based lines and code points, a client's columns are UTF-8, UTF-16 or UTF-32 units.

A position inside a character maps to its start, one past the end of a line to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

Encoding = Literal["utf-8", "utf-16", "utf-32"]
ENCODINGS: tuple[Encoding, ...] = ("utf-8", "utf-16", "utf-32")
DEFAULT_ENCODING: Encoding = "utf-16"
"""Encoding of a client that declares none (LSP 3.17, general.positionEncodings)."""
FIRST_ASTRAL = 0x10000


def choose_encoding(offered: Sequence[object]) -> Encoding:
    """Return the first of the client's encodings that we support."""
    return next((known for offer in offered for known in ENCODINGS if known == offer), DEFAULT_ENCODING)


def units_of(text: str, encoding: Encoding) -> int:
    """Count the units of the text."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-8":
        return len(text.encode("utf-8", errors="surrogatepass"))
    return len(text) + sum(ord(character) >= FIRST_ASTRAL for character in text)


def column_of(line: str, units: int, encoding: Encoding) -> int:
    """Return the code point that contains `units`, in a line without its end."""
    if encoding == "utf-32" or line.isascii():
        return min(max(units, 0), len(line))
    passed = 0
    for column, character in enumerate(line):
        passed += units_of(character, encoding)
        if passed > units:
            return column
    return len(line)


def split_lines(text: str) -> list[str]:
    r"""Split into lines with their ends: ``\n``, ``\r\n`` and ``\r`` only. Never empty: the last line has no end."""
    if "\r" not in text:
        lines = text.split("\n")
        return [*(f"{line}\n" for line in lines[:-1]), lines[-1]]
    lines, start = [], 0
    for position, character in enumerate(text):
        if character == "\n" or (character == "\r" and text[position + 1 : position + 2] != "\n"):
            lines.append(text[start : position + 1])
            start = position + 1
    return [*lines, text[start:]]


def without_end(line: str) -> str:
    r"""Strip the ``\n``, ``\r\n`` or ``\r`` of a line."""
    if line.endswith("\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith(("\n", "\r")) else line
