"""PTX as statements with their source lines, for audits. It reads any PTX and judges nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.MULTILINE)
_LOC = re.compile(r"^\.loc\s+(\d+)\s+(\d+)\s+(\d+)(?:.*?\binlined_at\s+(\d+)\s+(\d+)\s+(\d+))?")
_HEADER = re.compile(r"\.(?P<kind>entry|func)\b(?P<rest>.*)", re.DOTALL)
_GUARD = re.compile(r"^@!?\s*[%$\w]+\s+")
_LABELS = re.compile(r"^(?:[$%\w]+\s*:(?!:)\s*)+")
_GUARD_MARK = re.compile(r"^@\s*!?\s*")
_SECTION = re.compile(r"\.section\s+\.debug_\w+\s*\{[^{}]*\}")
"""Debug information, which holds bytes and labels. A section of any other name stays and is read as statements."""


@dataclass(frozen=True)
class Place:
    """Where in the user's file: 1-based; None where there is no such line, or no column."""

    line: int | None
    column: int | None


@dataclass(frozen=True)
class Statement:
    """Text up to a semicolon, without guard, label and comments. `function` is the symbol it is in, or empty."""

    text: str
    function: str
    place: Place

    @property
    def opcode(self) -> str:
        return self.text.split(None, 1)[0] if self.text else ""


@dataclass(frozen=True)
class PtxText:
    """The statements of all functions, and the symbols of those that can be launched."""

    statements: tuple[Statement, ...]
    entries: tuple[str, ...]


def read_ptx(ptx: str, file_name: str) -> PtxText:
    """The statements of `ptx`; their lines are of the file called `file_name`."""
    user_files = user_file_numbers(ptx, file_name)
    reader = _Reader(user_files)
    for line in _SECTION.sub("", _blank_comments(ptx)).splitlines():
        reader.line(line.strip())
    return PtxText(tuple(reader.statements), tuple(reader.entries))


def user_file_numbers(ptx: str, file_name: str) -> frozenset[str]:
    """The numbers that `.loc` gives the user's file."""
    return frozenset(number for number, path in _FILE.findall(ptx) if f"/{path}".endswith(f"/{file_name}"))


def place_of(loc: str, user_files: frozenset[str]) -> Place | None:
    """What a `.loc` line says: the place in the user's file, that of the call when inlined; None for other text."""
    match = _LOC.match(loc)
    if match is None:
        return None
    for file, line, column in (match.group(1, 2, 3), match.group(4, 5, 6)):
        if file in user_files:
            return Place(int(line), int(column) or None)
    return Place(None, None)


# --- below


class _Reader:
    """Collects statements line by line. A function's header ends at its brace, all else at semicolons."""

    def __init__(self, user_files: frozenset[str]) -> None:
        self._user_files = user_files
        self._function = ""
        self._depth = 0
        self._pending = ""
        self._place = Place(None, None)
        self.statements: list[Statement] = []
        self.entries: list[str] = []

    def line(self, line: str) -> None:
        if not line or line.startswith((".file", ".version", ".target", ".address_size")):
            return
        if place := place_of(line, self._user_files):
            self._place = place
            return
        for piece in re.findall(r"[{};]|[^{};]+", line):
            self._piece(piece)

    def _piece(self, piece: str) -> None:
        if piece == "{" and not self._is_operand_brace():
            self._open()
        elif piece == "}" and not self._is_operand_brace():
            self._close()
        elif piece == ";":
            self._end()
        else:
            self._pending += " " + piece

    def _is_operand_brace(self) -> bool:
        """A vector operand ``{%f1, %f2}`` or an initializer: a brace within a statement that has begun."""
        text = self._pending.strip()
        return bool(text) and not _HEADER.search(text)

    def _open(self) -> None:
        if self._depth == 0:
            self._begin_function()
        self._depth += 1
        self._pending = ""

    def _close(self) -> None:
        self._depth = max(0, self._depth - 1)
        self._pending = ""
        if self._depth == 0:
            self._function = ""

    def _begin_function(self) -> None:
        if match := _HEADER.search(self._pending):
            name = _function_name(match["rest"])
            self._function = name
            if match["kind"] == "entry":
                self.entries.append(name)

    def _end(self) -> None:
        text = _GUARD.sub("", _GUARD_MARK.sub("@", _LABELS.sub("", self._pending.strip()))).strip()
        self._pending = ""
        if text:
            self.statements.append(Statement(" ".join(text.split()), self._function, self._place))


def _function_name(rest: str) -> str:
    """``.func (.param .b32 r) name(...)`` or ``.entry name(...)``."""
    without_result = re.sub(r"^\s*\([^)]*\)", "", rest)
    match = re.match(r"\s*([$%\w]+)", without_result)
    return match[1] if match else ""


def _blank_comments(text: str) -> str:
    """A string may look like a comment, and a comment like a string. What a string holds is no code, but the path of a
    `.file` is wanted."""
    return _COMMENT_OR_STRING.sub(
        lambda match: re.sub(r"[{};]", " ", match[0]) if match[0][0] == '"' else re.sub(r"[^\n]", " ", match[0]), text
    )


def mentioned(text: str) -> Iterator[str]:
    """The names in a piece of a statement: registers, variables, labels, special registers."""
    yield from re.findall(r"[%$A-Za-z_][\w$]*(?:\.[xyzw]\b)?", text)
