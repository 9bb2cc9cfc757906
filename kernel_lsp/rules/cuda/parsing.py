"""CUDA text -> syntax tree with code-point positions; after an edit the old tree is reused."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser, Tree

from kernel_lsp.rules.finding import TextEdit, TextRange
from kernel_lsp.rules.pausing import uncollected

_ATTRIBUTES = (b"__cluster_dims__", b"__maxnreg__", b"__block_size__", b"__align__")
_UNKNOWN_ATTRIBUTES = re.compile(rb"\b(?:" + b"|".join(_ATTRIBUTES) + rb")\s*\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)")
"""Attributes that the grammar does not know. They and long tables are blanked: every position stays as it was."""
_TABLE = re.compile(rb"(?<=[{,])[\s\d.,'+\-xXuUlLa-fA-F]{4096,}+(?<=[,\s\d.fFuUlLa-eA-E])(?=})")
"""The numbers of a long table, which take a parser a quarter of a second per megabyte, and which no rule is about."""
_TABLE_BLOCK_BYTES = 2048
_IN_TABLES = re.compile(rb"[\s\d.,'+\-xXuUlLa-fA-F]{2048}")
"""A table covers a whole block of these, which most files have none of: to look at each costs next to nothing."""
_BLANKS = bytes(byte if byte in b"\r\n" else ord(" ") for byte in range(256))
_LINE_END = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True, eq=False)
class ParsedCuda:
    """`data` is the UTF-8 that was parsed; `starts` are the offsets of its lines. `ascii_text` is the same as `data`
    where a byte is a character, which spares decoding, else None."""

    text: str
    data: bytes
    tree: Tree
    starts: tuple[int, ...]
    ascii_text: str | None

    def source(self, node: Node) -> str:
        if self.ascii_text is not None:
            return self.ascii_text[node.start_byte : node.end_byte]
        return self.data[node.start_byte : node.end_byte].decode("utf-8", errors="replace")

    def between(self, start: int, end: int) -> str:
        """The text of the bytes ``[start, end)``."""
        if self.ascii_text is not None:
            return self.ascii_text[start:end]
        return self.data[start:end].decode("utf-8", errors="replace")

    def range(self, node: Node) -> TextRange:
        return self.span(node.start_byte, node.end_byte)

    def span(self, start: int, end: int) -> TextRange:
        """The range of the bytes ``[start, end)``."""
        line, column = self.position(start)
        if self.ascii_text is not None and (line + 1 == len(self.starts) or end < self.starts[line + 1]):
            return TextRange(line, column, line, column + end - start)
        return TextRange(line, column, *self.position(end))

    def position(self, offset: int) -> tuple[int, int]:
        """0-based line and code-point column of the byte at `offset`."""
        line = bisect_right(self.starts, offset) - 1
        if self.ascii_text is not None:
            return line, offset - self.starts[line]
        before = self.data[self.starts[line] : offset]
        return line, len(before) if before.isascii() else len(before.decode("utf-8", errors="replace"))

    def replace(self, node: Node, new_text: str) -> TextEdit:
        return TextEdit(self.range(node), new_text)

    def insert(self, offset: int, new_text: str) -> TextEdit:
        return TextEdit(self.span(offset, offset), new_text)


@uncollected
def parse(text: str, previous: ParsedCuda | None = None) -> ParsedCuda:
    """The tree of `text`, with the parts of `previous` that did not change. Never raises; faults are ERROR nodes."""
    if previous is not None and previous.text == text:
        return previous
    data = _readable(text.encode("utf-8", errors="replace"))
    tree = _parser().parse(data) if previous is None else _parser().parse(data, _edited(previous, data))
    starts = (0, *(match.end() for match in _LINE_END.finditer(data)))
    return ParsedCuda(text, data, tree, starts, data.decode("ascii") if data.isascii() else None)


@lru_cache(maxsize=1)
def language() -> Language:
    """The grammar."""
    return Language(tree_sitter_cuda.language())


# --- below: what the grammar reads


def _readable(data: bytes) -> bytes:
    """The text without what the grammar cannot read, or only slowly."""
    if any(attribute in data for attribute in _ATTRIBUTES):
        data = _UNKNOWN_ATTRIBUTES.sub(lambda match: b" " * len(match.group()), data)
    if any(_IN_TABLES.match(data, start) for start in range(0, len(data), _TABLE_BLOCK_BYTES)):
        data = _TABLE.sub(lambda match: match.group().translate(_BLANKS), data)
    return data


# --- what changed between two texts


@lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(language())


def _edited(previous: ParsedCuda, data: bytes) -> Tree:
    """A copy of the old tree that knows which bytes the new text replaces."""
    old = previous.data
    start = _common_prefix(old, data)
    tail = _common_prefix(old[start:][::-1], data[start:][::-1])
    old_end, new_end = len(old) - tail, len(data) - tail
    tree = previous.tree.copy()
    tree.edit(start, old_end, new_end, _point(old, start), _point(old, old_end), _point(data, new_end))
    return tree


def _common_prefix(first: bytes, second: bytes) -> int:
    """How many bytes the two begin with in common: a binary search over slices, which compare fast."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _point(data: bytes, offset: int) -> tuple[int, int]:
    """Row and byte column, as tree-sitter counts them: rows end with a line feed."""
    return data.count(b"\n", 0, offset), offset - (data.rfind(b"\n", 0, offset) + 1)
