"""Parse CUDA text into a syntax tree with code-point positions. After an edit, tree-sitter reuses the old tree."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from functools import lru_cache
from itertools import accumulate

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser, Tree

from kernel_lsp.rules.cached import once, uncollected
from kernel_lsp.rules.finding import TextEdit, TextRange

_ATTRIBUTES = (b"__cluster_dims__", b"__maxnreg__", b"__block_size__", b"__align__")
_UNKNOWN_ATTRIBUTES = re.compile(rb"\b(?:" + b"|".join(_ATTRIBUTES) + rb")\s*\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)")
"""Attributes that the grammar does not support. They and long tables are blanked, so that all positions are
preserved."""
_TABLE = re.compile(rb"(?<=[{,])[\s\d.,'+\-xXuUlLa-fA-F]{4096,}+(?<=[,\s\d.fFuUlLa-eA-E])(?=})")
"""The numbers of a long table. They take a parser 0.25 s per megabyte, and no rule is about them."""
_TABLE_BLOCK_BYTES = 2048
_IN_TABLES = re.compile(rb"[\s\d.,'+\-xXuUlLa-fA-F]{2048}")
"""A block of characters that any long table contains. Most files have none, and this test costs almost nothing."""
_BLANKS = bytes(byte if byte in b"\r\n" else ord(" ") for byte in range(256))
_LINE_ENDS = b"\r\n"


class ParsedCuda:
    """A file with its tree. `data` is the parsed UTF-8. `ascii_text` equals `data` if each byte is a character, which
    avoids decoding, else None."""

    def __init__(self, text: str, data: bytes, tree: Tree) -> None:
        self.text, self.data, self.tree = text, data, tree
        self.ascii_text = data.decode("ascii") if data.isascii() else None
        self.edited_at: int | None = None
        """The offset of the first byte that differs from the text before; None for a text without one."""

    @once
    def starts(self) -> tuple[int, ...]:
        """The offsets of the lines."""
        ends = list(accumulate(map(len, self.data.splitlines(keepends=True))))
        if ends and self.data[-1] not in _LINE_ENDS:
            ends.pop()
        return (0, *ends)

    @once
    def mentions(self) -> Counter[str]:
        """The number of times that the file calls, launches or defines each name."""
        return Counter(re.findall(r"\w+(?=[(<])", self.text))

    def source(self, node: Node) -> str:
        if self.ascii_text is not None:
            return self.ascii_text[node.start_byte : node.end_byte]
        return self.data[node.start_byte : node.end_byte].decode("utf-8", errors="replace")

    def between(self, start: int, end: int) -> str:
        """Return the text of the bytes ``[start, end)``."""
        if self.ascii_text is not None:
            return self.ascii_text[start:end]
        return self.data[start:end].decode("utf-8", errors="replace")

    def range(self, node: Node) -> TextRange:
        return self.span(node.start_byte, node.end_byte)

    def span(self, start: int, end: int) -> TextRange:
        """Return the range of the bytes ``[start, end)``."""
        line, column = self.position(start)
        behind = line + 1
        if self.ascii_text is not None and (behind == len(self.starts) or end < self.starts[behind]):
            return TextRange(line, column, line, column + end - start)
        return TextRange(line, column, *self.position(end))

    def position(self, offset: int) -> tuple[int, int]:
        """Return the 0-based line and the code-point column of the byte at `offset`."""
        line = bisect_right(self.starts, offset) - 1
        if self.ascii_text is not None:
            return line, offset - self.starts[line]
        before = self.data[self.starts[line] : offset]
        column = len(before) if before.isascii() else len(before.decode("utf-8", errors="replace"))
        return line, column

    def replace(self, node: Node, new_text: str) -> TextEdit:
        return TextEdit(self.range(node), new_text)

    def insert(self, offset: int, new_text: str) -> TextEdit:
        return TextEdit(self.span(offset, offset), new_text)


@uncollected
def parse(text: str, previous: ParsedCuda | None = None) -> ParsedCuda:
    """Parse `text`, reusing the unchanged nodes of `previous`. Never raises; syntax errors are ERROR nodes."""
    if previous is not None and previous.text == text:
        return previous
    data = _readable(text.encode("utf-8", errors="replace"))
    if previous is None:
        return ParsedCuda(text, data, _parser().parse(data))
    parsed = ParsedCuda(text, data, _parser().parse(data, _edited(previous, data)))
    parsed.edited_at = _common_prefix(previous.data, data)
    return parsed


@lru_cache(maxsize=1)
def language() -> Language:
    """Return the grammar."""
    return Language(tree_sitter_cuda.language())


def _readable(data: bytes) -> bytes:
    """Blank the text that the grammar cannot parse, or parses slowly."""
    if any(attribute in data for attribute in _ATTRIBUTES):
        data = _UNKNOWN_ATTRIBUTES.sub(lambda match: b" " * len(match.group()), data)
    if any(_IN_TABLES.match(data, start) for start in range(0, len(data), _TABLE_BLOCK_BYTES)):
        data = _TABLE.sub(lambda match: match.group().translate(_BLANKS), data)
    return data


@lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(language())


def _edited(previous: ParsedCuda, data: bytes) -> Tree:
    """Return a copy of the old tree with the bytes that the new text replaces marked as edited."""
    old = previous.data
    start = _common_prefix(old, data)
    tail = _common_prefix(old[start:][::-1], data[start:][::-1])
    old_end, new_end = len(old) - tail, len(data) - tail
    tree = previous.tree.copy()
    tree.edit(start, old_end, new_end, _point(old, start), _point(old, old_end), _point(data, new_end))
    return tree


def _common_prefix(first: bytes, second: bytes) -> int:
    """Return the length of the common prefix in bytes. A binary search over slices is fast, because slices compare
    fast."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _point(data: bytes, offset: int) -> tuple[int, int]:
    """Return the row and byte column as tree-sitter counts them. Rows end with a line feed."""
    return data.count(b"\n", 0, offset), offset - (data.rfind(b"\n", 0, offset) + 1)
