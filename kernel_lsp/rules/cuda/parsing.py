"""Parse CUDA text into syntax trees with code-point positions. Unchanged parts are reused after an edit."""

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
"""Minimum bytes of a text that is split into parts. Shorter texts are parsed in a few milliseconds."""
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
_ONE_DIGIT = bytes.maketrans(b"23456789", b"11111111")
"""Maps all digits but zero to one. A leading zero selects the base of a number, so zero is kept."""
_END_OF_TYPE = re.compile(rb"_t\b")
_TYPE_DIGITS = 2
"""Characters kept before the suffix of a name such as `int32_t`. Its digits make it a keyword."""
_U8 = b"u8"
"""The only other keyword with a digit, a prefix of strings."""


class Shape:
    """A tree with the data that depends on the tree alone. Parts of a file that differ only in digits share one
    shape, because a tree holds positions only."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.items: list[Any] | None = None
        """The items of the outline, once read."""
        self.doubles_at: list[int] | None = None
        """The positions of possible doubles, once searched."""
        self.before: tuple[Shape, Window] | None = None
        """The shape before an edit and the changed window, until the outline is read."""


class Part:
    """Some lines of a file with their tree. `data` is the parsed UTF-8, and offsets count from its first byte. The
    part begins in the file at the byte `start`, the beginning of the line `first_line`. `ascii_text` equals `data`
    if each byte is a character, which avoids decoding, else None."""

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
        """Return the text of the bytes ``[start, end)``."""
        if self.ascii_text is not None:
            return self.ascii_text[start:end]
        return self.data[start:end].decode("utf-8", errors="replace")

    def range(self, node: Node) -> TextRange:
        return self.span(node.start_byte, node.end_byte)

    def span(self, start: int, end: int) -> TextRange:
        """Return the file's range of the bytes ``[start, end)``."""
        line, column = self.position(start)
        behind = line - self.first_line + 1
        if self.ascii_text is not None and (behind == len(self.starts) or end < self.starts[behind]):
            return TextRange(line, column, line, column + end - start)
        return TextRange(line, column, *self.position(end))

    def position(self, offset: int) -> tuple[int, int]:
        """Return the 0-based line in the file and the code-point column of the byte at `offset`."""
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
    """One of many parts. Its lines, which end with a line feed, are counted on each request, because few positions
    in it are requested."""

    def span(self, start: int, end: int) -> TextRange:
        """Return the file's range of the bytes ``[start, end)``."""
        line, column = self.position(start)
        if self.ascii_text is not None and self.data.find(b"\n", start, end) < 0:
            return TextRange(line, column, line, column + end - start)
        return TextRange(line, column, *self.position(end))

    def position(self, offset: int) -> tuple[int, int]:
        """Return the 0-based line in the file and the code-point column of the byte at `offset`."""
        line, start = self.first_line + self.data.count(b"\n", 0, offset), self.data.rfind(b"\n", 0, offset) + 1
        if self.ascii_text is not None:
            return line, offset - start
        return line, len(self.data[start:offset].decode("utf-8", errors="replace"))


class ParsedCuda:
    """A file in consecutive parts that together cover `data`. Most files have one part. A long file of similar
    functions has one part per function."""

    def __init__(
        self, text: str, data: bytes, parts: tuple[Part, ...], shapes: dict[bytes, Shape], words: Words | None = None
    ) -> None:
        self.text, self.data, self.parts, self.shapes = text, data, parts, shapes
        self.words = Words(data) if words is None else words

    @once
    def tree(self) -> Tree:
        """The tree of the whole file."""
        return self.parts[0].tree if len(self.parts) == 1 else _parser().parse(self.data)

    @once
    def starts(self) -> tuple[int, ...]:
        """The offsets of the lines."""
        return self.parts[0].starts if len(self.parts) == 1 else Part(self.data, self.parts[0].shape).starts


@uncollected
def parse(text: str, previous: ParsedCuda | None = None) -> ParsedCuda:
    """Parse `text`, reusing the unchanged trees of `previous`. Never raises; syntax errors are ERROR nodes."""
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
    """Return the grammar."""
    return Language(tree_sitter_cuda.language())


# --- below: text that the grammar supports


def _readable(data: bytes) -> bytes:
    """Blank the text that the grammar cannot parse, or parses slowly."""
    if any(attribute in data for attribute in _ATTRIBUTES):
        data = _UNKNOWN_ATTRIBUTES.sub(lambda match: b" " * len(match.group()), data)
    if any(_IN_TABLES.match(data, start) for start in range(0, len(data), _TABLE_BLOCK_BYTES)):
        data = _TABLE.sub(lambda match: match.group().translate(_BLANKS), data)
    return data


# --- parts of one shape


def _alike_parts(data: bytes, known: dict[bytes, Shape]) -> tuple[tuple[Part, ...], dict[bytes, Shape]] | None:
    """Return the parts of a file and their shapes, if fewer than half of the shapes are unknown. None if a part has
    an error, since only the tree of the whole file shows its effect on later text. The last part may have one: the
    file may end within a function or an unclosed brace."""
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
    """Return a key that is equal for texts with the same tree. Digits of numbers and names are ignored."""
    if _U8 in text:
        return text
    ends = [match.start() for match in _END_OF_TYPE.finditer(text)] if b"_t" in text else []
    return b" ".join((text.translate(_ONE_DIGIT), *[text[end - _TYPE_DIGITS : end] for end in ends]))


# --- differences between two texts


@lru_cache(maxsize=1)
def _parser() -> Parser:
    return Parser(language())


def _parsed_again(text: str, data: bytes, previous: ParsedCuda) -> ParsedCuda:
    """Parse an edited text, reusing the data of the old one."""
    edit = _edit(previous.data, data)
    before = _edited(previous, data, edit)
    shape = Shape(_parser().parse(data, before))
    if previous.parts[0].shape.items is not None:
        shape.before = previous.parts[0].shape, _changed(edit, before, shape.tree)
    return ParsedCuda(text, data, (Part(data, shape),), {}, previous.words.carried(data, edit))


def _edit(old: bytes, data: bytes) -> Window:
    """Return the difference of the texts."""
    start = _common_prefix(old, data)
    tail = _common_prefix(old[start:][::-1], data[start:][::-1])
    return Window(start, len(old) - tail, len(data) - tail)


def _edited(previous: ParsedCuda, data: bytes, edit: Window) -> Tree:
    """Return a copy of the old tree with the bytes that the new text replaces marked as edited."""
    old = previous.data
    tree = previous.tree.copy()
    points = _point(old, edit.start), _point(old, edit.old_end), _point(data, edit.new_end)
    tree.edit(edit.start, edit.old_end, edit.new_end, *points)
    return tree


def _changed(edit: Window, before: Tree, tree: Tree) -> Window:
    """Return the window outside of which texts and trees agree: each character there is in the same nodes."""
    ranges = before.changed_ranges(tree)
    start = min([edit.start, *(each.start_byte for each in ranges)])
    end = max([edit.new_end, *(each.end_byte for each in ranges)])
    return Window(start, end - edit.n_more, end)


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
