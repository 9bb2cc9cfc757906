"""CUDA text -> syntax trees with code-point positions; after an edit what did not change is reused."""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from typing import Any

import tree_sitter_cuda
from tree_sitter import Language, Node, Parser, Tree

from kernel_lsp.rules.cached import once
from kernel_lsp.rules.cuda.edit_window import Window, Words
from kernel_lsp.rules.cuda.splitting import split_behind_functions
from kernel_lsp.rules.finding import TextEdit, TextRange
from kernel_lsp.rules.gc_pause import uncollected

MIN_SPLIT_BYTES = 32_768
"""Shorter texts are parsed in a few milliseconds."""
_ATTRIBUTES = (b"__cluster_dims__", b"__maxnreg__", b"__block_size__", b"__align__")
_UNKNOWN_ATTRIBUTES = re.compile(rb"\b(?:" + b"|".join(_ATTRIBUTES) + rb")\s*\([^()\n]*(?:\([^()\n]*\)[^()\n]*)*\)")
"""Attributes that the grammar does not know. They and long tables are blanked: every position stays as it was."""
_TABLE = re.compile(rb"(?<=[{,])[\s\d.,'+\-xXuUlLa-fA-F]{4096,}+(?<=[,\s\d.fFuUlLa-eA-E])(?=})")
"""The numbers of a long table, which take a parser a quarter of a second per megabyte, and which no rule is about."""
_TABLE_BLOCK_BYTES = 2048
_IN_TABLES = re.compile(rb"[\s\d.,'+\-xXuUlLa-fA-F]{2048}")
"""A table covers a whole block of these, which most files have none of: to look at each costs next to nothing."""
_BLANKS = bytes(byte if byte in b"\r\n" else ord(" ") for byte in range(256))
_LINE_ENDS = b"\r\n"
_ONE_DIGIT = bytes.maketrans(b"23456789", b"11111111")
"""Zero stays: at the start of a number it says how the number is written."""
_END_OF_TYPE = re.compile(rb"_t\b")
_TYPE_DIGITS = 2
"""In front of the end of a name such as `int32_t`, which they make a keyword."""
_U8 = b"u8"
"""The only other digit in a keyword, in front of strings."""


class Shape:
    """A tree, and what is kept of it whichever text it is of: the parts of a file that differ in digits alone have one
    together, for a tree says only where things stand."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.items: list[Any] | None = None
        """What the outline of a file is made of, once it was read."""
        self.doubles_at: list[int] | None = None
        """Where literals may be doubles, once that was looked for."""
        self.before: tuple[Shape, Window] | None = None
        """The one before an edit, and where it changed, until the outline is read."""


class Part:
    """Some lines of a file with their tree. `data` is the UTF-8 that was parsed, and offsets count from its first byte:
    in the file that stands at `start`, at the beginning of the line `first_line`. `ascii_text` is the same as `data`
    where a byte is a character, which spares decoding, else None."""

    def __init__(self, data: bytes, shape: Shape, start: int = 0, first_line: int = 0) -> None:
        self.data, self.shape, self.start, self.first_line = data, shape, start, first_line
        self.tree = shape.tree
        self.ascii_text = data.decode("ascii") if data.isascii() else None

    @once
    def starts(self) -> tuple[int, ...]:
        """The offsets of the lines."""
        ends = list(accumulate(map(len, self.data.splitlines(keepends=True))))
        if ends and self.data[-1] not in _LINE_ENDS:
            ends.pop()
        return (0, *ends)

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
        """The range of the bytes ``[start, end)`` in the file."""
        line, column = self.position(start)
        behind = line - self.first_line + 1
        if self.ascii_text is not None and (behind == len(self.starts) or end < self.starts[behind]):
            return TextRange(line, column, line, column + end - start)
        return TextRange(line, column, *self.position(end))

    def position(self, offset: int) -> tuple[int, int]:
        """0-based line in the file and code-point column of the byte at `offset`."""
        line = bisect_right(self.starts, offset) - 1
        if self.ascii_text is not None:
            return self.first_line + line, offset - self.starts[line]
        before = self.data[self.starts[line] : offset]
        column = len(before) if before.isascii() else len(before.decode("utf-8", errors="replace"))
        return self.first_line + line, column

    def replace(self, node: Node, new_text: str) -> TextEdit:
        return TextEdit(self.range(node), new_text)

    def insert(self, offset: int, new_text: str) -> TextEdit:
        return TextEdit(self.span(offset, offset), new_text)


class ShortPart(Part):
    """One of many. Its lines, which end with a line feed, are counted each time: few places in it are asked for."""

    def span(self, start: int, end: int) -> TextRange:
        """The range of the bytes ``[start, end)`` in the file."""
        line, column = self.position(start)
        if self.ascii_text is not None and self.data.find(b"\n", start, end) < 0:
            return TextRange(line, column, line, column + end - start)
        return TextRange(line, column, *self.position(end))

    def position(self, offset: int) -> tuple[int, int]:
        """0-based line in the file and code-point column of the byte at `offset`."""
        line, start = self.first_line + self.data.count(b"\n", 0, offset), self.data.rfind(b"\n", 0, offset) + 1
        if self.ascii_text is not None:
            return line, offset - start
        return line, len(self.data[start:offset].decode("utf-8", errors="replace"))


class ParsedCuda:
    """A file in parts, which are one after the other all of `data`. Most have one; a long file of functions that are
    alike has one for each of them."""

    def __init__(
        self, text: str, data: bytes, parts: tuple[Part, ...], shapes: dict[bytes, Shape], words: Words | None = None
    ) -> None:
        self.text, self.data, self.parts, self.shapes = text, data, parts, shapes
        self.words = Words(data) if words is None else words

    @once
    def tree(self) -> Tree:
        """That of the whole file."""
        return self.parts[0].tree if len(self.parts) == 1 else _parser().parse(self.data)

    @once
    def starts(self) -> tuple[int, ...]:
        """The offsets of the lines."""
        return self.parts[0].starts if len(self.parts) == 1 else Part(self.data, self.parts[0].shape).starts


@uncollected
def parse(text: str, previous: ParsedCuda | None = None) -> ParsedCuda:
    """The trees of `text`, with those of `previous` that did not change. Never raises; faults are ERROR nodes."""
    if previous is not None and previous.text == text:
        return previous
    data = _readable(text.encode("utf-8", errors="replace"))
    if previous is not None and not previous.shapes:
        return _parsed_again(text, data, previous)
    shapes = {} if previous is None else previous.shapes
    parts = _alike_parts(data, shapes) if len(data) >= MIN_SPLIT_BYTES else None
    if parts is not None:
        return ParsedCuda(text, data, *parts)
    return ParsedCuda(text, data, (Part(data, Shape(_parser().parse(data))),), {})


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


# --- parts that are alike


def _alike_parts(data: bytes, known: dict[bytes, Shape]) -> tuple[tuple[Part, ...], dict[bytes, Shape]] | None:
    """The parts of a file and their shapes, if those that are not known are less than half of it; none where one has an
    error, since what an error means for what stands behind it only the tree of the whole file says. The last may: it is
    where a file ends in the middle of a function, and where a brace was opened and not closed."""
    texts = split_behind_functions(data)
    keys = [_shape_of(text) for text in texts]
    unknown = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
    if 2 * sum(map(len, unknown.values())) > len(data):
        return None
    shapes = {key: known[key] for key in keys if key in known}
    for key, text in unknown.items():
        tree = _parser().parse(text)
        if tree.root_node.has_error and keys.index(key) < len(keys) - 1:
            return None
        shapes[key] = Shape(tree)
    parts: list[Part] = []
    start, line = 0, 0
    for key, text in zip(keys, texts, strict=True):
        parts.append(ShortPart(text, shapes[key], start, line))
        start, line = start + len(text), line + text.count(b"\n")
    return tuple(parts), shapes


def _shape_of(text: bytes) -> bytes:
    """What is the same for texts that have the same tree: the digits of numbers and names do not matter."""
    if _U8 in text:
        return text
    ends = [match.start() for match in _END_OF_TYPE.finditer(text)] if b"_t" in text else []
    return b" ".join((text.translate(_ONE_DIGIT), *[text[end - _TYPE_DIGITS : end] for end in ends]))


# --- what changed between two texts


@lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(language())


def _parsed_again(text: str, data: bytes, previous: ParsedCuda) -> ParsedCuda:
    """The tree of an edited text, with what was known of the old one."""
    edit = _edit(previous.data, data)
    before = _edited(previous, data, edit)
    shape = Shape(_parser().parse(data, before))
    if previous.parts[0].shape.items is not None:
        shape.before = previous.parts[0].shape, _changed(edit, before, shape.tree)
    return ParsedCuda(text, data, (Part(data, shape),), {}, previous.words.carried(data, edit))


def _edit(old: bytes, data: bytes) -> Window:
    """Where the texts differ."""
    start = _common_prefix(old, data)
    tail = _common_prefix(old[start:][::-1], data[start:][::-1])
    return Window(start, len(old) - tail, len(data) - tail)


def _edited(previous: ParsedCuda, data: bytes, edit: Window) -> Tree:
    """A copy of the old tree that knows which bytes the new text replaces."""
    old = previous.data
    tree = previous.tree.copy()
    points = _point(old, edit.start), _point(old, edit.old_end), _point(data, edit.new_end)
    tree.edit(edit.start, edit.old_end, edit.new_end, *points)
    return tree


def _changed(edit: Window, before: Tree, tree: Tree) -> Window:
    """Where the texts or their trees differ: outside of it each character is in the same nodes."""
    ranges = before.changed_ranges(tree)
    start = min([edit.start, *(each.start_byte for each in ranges)])
    end = max([edit.new_end, *(each.end_byte for each in ranges)])
    return Window(start, end - edit.n_more, end)


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
