"""Read the comment block at the top of a `.cu` file as directives that track the position of each character."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.plan import Span
from kernel_lsp.plan.codes import PlanCode, finding

DIRECTIVE_KEYS = ("task", "op", "where", "keeps", "scratch", "fill", "launch", "library")
MIN_CONTINUATION_INDENT = 3
"""Minimum spaces after `//` for a continuation line of the directive above."""
MAX_DIRECTIVE_CHARACTERS = 20_000
MAX_HEADER_LINE_CHARACTERS = 2000
"""Maximum characters of a header line searched for the end of a block comment."""


@dataclass(frozen=True, slots=True)
class JoinedLines:
    """A directive's text, its lines joined by one space. `starts` holds (offset, line, column) of each line."""

    text: str
    starts: tuple[tuple[int, int, int], ...]

    def place(self, offset: int) -> tuple[int, int]:
        """Return the line and column, 1-based, of the character at `offset`."""
        index = max(bisect_right(self.starts, (offset, 1 << 60, 0)) - 1, 0)
        start, line, column = self.starts[index]
        return line, column + offset - start


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch ``[start, end)`` of a directive's text."""

    source: JoinedLines
    start: int
    end: int

    @property
    def text(self) -> str:
        return self.source.text[self.start : self.end]

    @property
    def span(self) -> Span:
        """Source position; a piece over several lines is cut at the end of its first."""
        line, column = self.source.place(self.start)
        end_line, end_column = self.source.place(max(self.end - 1, self.start))
        if end_line != line:
            next_start = next(start for start, at, _ in self.source.starts if at > line)
            return Span(line, column, column + next_start - 1 - self.start)
        return Span(line, column, max(end_column + 1, column) if self.end > self.start else column)

    def part(self, start: int, end: int | None = None) -> Piece:
        """Return the part from `start` to `end`, both relative to this piece."""
        length = self.end - self.start
        stop = length if end is None else min(end, length)
        return Piece(self.source, self.start + min(start, length), self.start + max(stop, min(start, length)))

    def strip(self) -> Piece:
        """Strip surrounding white space; an empty piece keeps the position where its text would begin."""
        text = self.text
        leading = len(text) - len(text.lstrip())
        return self.part(leading, max(len(text.rstrip()), leading))

    def next_lines(self) -> Piece:
        """Return the part after the end of the first line."""
        line, _ = self.source.place(self.start)
        start = next((start for start, at, _ in self.source.starts if at > line), self.end)
        return Piece(self.source, min(start, self.end), self.end)

    def split(self, separator: str = ",") -> list[Piece]:
        """Split at separators outside brackets and strip the parts; empty for blank text."""
        if not self.text.strip():
            return []
        parts, start, depth = [], 0, 0
        for position, character in enumerate(self.text):
            depth += (character in "([{") - (character in ")]}")
            if character == separator and depth <= 0:
                parts.append(self.part(start, position).strip())
                start = position + 1
        return [*parts, self.part(start).strip()]


@dataclass(frozen=True, slots=True)
class Directive:
    """One ``// key[condition]: value``. `condition` is None when there are no brackets."""

    key: str
    condition: Piece | None
    value: Piece
    span: Span


@dataclass
class Block:
    """Contents of the comment block. `version` is None when the file has no plan."""

    version: Piece | None = None
    directives: list[Directive] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def read_block(text: str) -> Block:
    """Read the plan's directives in `text`, and report near misses. Takes linear time."""
    lines = [line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n")]
    block = Block()
    at = _find_version(lines, block)
    if at is None:
        return block
    stop = next((i for i in range(at, len(lines)) if not _COMMENT.match(lines[i])), len(lines))
    for group in _grouped(lines, at + 1, stop):
        _read_directive(group, block)
    _find_lost_colons(lines, at + 1, stop, block)
    _find_orphans(lines, stop, block)
    return block


_COMMENT = re.compile(r"\s*//")
_VERSION = re.compile(r"\s*//\s*kernel-lsp\s*:[ \t]*")
_KEY_START = re.compile(r"\s*//\s*([A-Za-z][\w-]{0,30})[ \t]*([\[:])(?!:)")
_DIRECTIVE = re.compile(r"\s*([A-Za-z][\w-]{0,30})\s*(?:\[([^\]]*)\]\s*)?:(?!:)")
_CALLS = ("op", "launch", "library")
_CALL_LIKE = re.compile(r"[\w:.]+[<(]|.*<<<")
"""Beginning of a value that may go on in the next line. Prose has a space before a bracket."""
_PLAIN_WORDS = re.compile(r"[^<>=()\[\]]*|.*\w\s+\w+\s+\w.*")
"""A value that is prose: it has no signs of a directive, or three words in a row."""
_BEHIND_KEY = re.compile(r"\s*//\s*[\w-]+[ \t]*(?:\[[^\]]*\][ \t]*)?:")
_LAUNCH_LIKE = re.compile(r"<<<|\)\s*->")
_COLONLESS = re.compile(rf"\s*//[ \t]{{0,{MIN_CONTINUATION_INDENT - 1}}}({'|'.join(DIRECTIVE_KEYS)})[ \t]+([^\s:\[].*)")
_VALUE_LIKE = {
    "task": re.compile(r"\S+::\w+$"),
    "op": re.compile(r"\w+\(.*\)\s*->"),
    "where": re.compile(r"(?:[\w\s+\-*/%().,]+(?:<=|>=|==|!=|<|>))+[\w\s+\-*/%().,]+$"),
    "scratch": re.compile(r"\w+\s*:\s*\w+\["),
    "keeps": re.compile(r"\w+\s*:\s*\w+\["),
    "fill": re.compile(r"\w+\s*=\s*\S+$"),
    "launch": re.compile(r".*<<<"),
    "library": re.compile(r"[\w.:]+\(.*\)\s*->"),
}
"""Patterns of values that rarely occur in prose, to detect a missing colon after a key."""
_NEAR_KEY_RATIO = 0.7


def _find_version(lines: list[str], block: Block) -> int | None:
    in_comment = False
    for index, line in enumerate(lines):
        match = _VERSION.match(line)
        if match and not in_comment:
            block.version = Piece(JoinedLines(line, ((0, index + 1, 1),)), match.end(), len(line)).strip()
            return index
        code, in_comment = _skip_block_comments(line[:MAX_HEADER_LINE_CHARACTERS], in_comment)
        if code.strip() and not _COMMENT.match(code):
            break
    _report_missing(lines, block)
    return None


def _skip_block_comments(line: str, in_comment: bool) -> tuple[str, bool]:
    """Return the part of the line outside ``/* */``, and whether the line ends inside a comment."""
    outside = []
    while True:
        opening, closing = ("*/", "/*") if in_comment else ("/*", "//")
        position = line.find(opening)
        comment = line.find(closing) if not in_comment else -1
        if position < 0 or 0 <= comment < position:
            outside.append("" if in_comment else line)
            return " ".join(outside), in_comment
        outside.append("" if in_comment else line[:position])
        line, in_comment = line[position + 2 :], not in_comment


def _report_missing(lines: list[str], block: Block) -> None:
    for index, line in enumerate(lines):
        if _VERSION.match(line):
            message = "the launch plan must stand above the first line of code"
            block.findings.append(finding(PlanCode.PLAN_NOT_AT_TOP, message, Span(index + 1, 1, len(line) + 1)))
            return
    message = "the file has no launch plan: no line '// kernel-lsp: 1' at its top"
    block.findings.append(finding(PlanCode.NO_PLAN, message, Span(1, 1, 1)))


def _grouped(lines: list[str], start: int, stop: int) -> Iterator[JoinedLines]:
    """Join each directive with its continuation lines; omit prose."""
    parts: list[tuple[int, str, int]] = []
    for index in range(start, stop):
        line = lines[index]
        content_at = line.index("//") + len("//")
        content = line[content_at:]
        indent = len(content) - len(content.lstrip())
        if parts and content.strip() and indent >= MIN_CONTINUATION_INDENT:
            parts.append((index + 1, content.strip(), content_at + indent + 1))
            continue
        if parts:
            yield _join(parts)
        parts = [(index + 1, content.strip(), content_at + indent + 1)] if _KEY_START.match(line) else []
    if parts:
        yield _join(parts)


def _join(parts: list[tuple[int, str, int]]) -> JoinedLines:
    starts, offset = [], 0
    for line, text, column in parts:
        starts.append((offset, line, column))
        offset += len(text) + 1
    return JoinedLines(" ".join(text for _, text, _ in parts), tuple(starts))


def _read_directive(joined: JoinedLines, block: Block) -> None:
    whole = Piece(joined, 0, len(joined.text))
    match = _DIRECTIVE.match(joined.text)
    if match is None:
        _report_unclosed(whole, block)
        return
    key = match.group(1)
    if key == "kernel-lsp":
        message = "a second '// kernel-lsp:' line: one file holds one plan"
        block.findings.append(finding(PlanCode.REPEATED_DIRECTIVE, message, whole.span))
    elif key not in DIRECTIVE_KEYS:
        _report_unknown(key, whole, block)
    elif len(joined.text) > MAX_DIRECTIVE_CHARACTERS:
        message = f"the '{key}' line is longer than {MAX_DIRECTIVE_CHARACTERS} characters"
        block.findings.append(finding(PlanCode.TOO_LONG, message, whole.span))
    else:
        condition = whole.part(*match.span(2)).strip() if match.group(2) is not None else None
        block.directives.append(Directive(key, condition, whole.part(match.end()).strip(), whole.span))


def _report_unclosed(whole: Piece, block: Block) -> None:
    key = re.match(r"[\w-]+", whole.text)
    if key and key.group() in DIRECTIVE_KEYS:
        message = f"expected '{key.group()}[condition]: ...': the ']' or the ':' is missing"
        block.findings.append(finding(PlanCode.SYNTAX, message, whole.span))


def _report_unknown(key: str, whole: Piece, block: Block) -> None:
    near = difflib.get_close_matches(key.lower(), DIRECTIVE_KEYS, n=1, cutoff=_NEAR_KEY_RATIO)
    if not near and not _LAUNCH_LIKE.search(whole.text):
        return
    suggestion = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(DIRECTIVE_KEYS)}"
    block.findings.append(
        finding(PlanCode.UNKNOWN_DIRECTIVE, f"unknown directive '{key}': {suggestion}", whole.part(0, len(key)).span)
    )


def _find_lost_colons(lines: list[str], start: int, stop: int, block: Block) -> None:
    """Report lines that would be directives but lack the colon, and are read as prose."""
    for index in range(start, stop):
        match = _COLONLESS.match(lines[index][:MAX_HEADER_LINE_CHARACTERS])
        if match and _VALUE_LIKE[match.group(1)].match(match.group(2).rstrip()):
            message = f"this line is not read: there is no ':' behind '{match.group(1)}'"
            span = Span(index + 1, match.start(1) + 1, len(lines[index]) + 1)
            block.findings.append(finding(PlanCode.LOST_COLON, message, span, Severity.WARNING))


def _find_orphans(lines: list[str], stop: int, block: Block) -> None:
    """Report directives after an empty line, which are not part of the plan: an error where one has a directive's
    value, as the kernels would run without it, and nothing where it is prose."""
    for index in range(stop, len(lines)):
        if lines[index].strip() and not _COMMENT.match(lines[index]):
            return
        match = _KEY_START.match(lines[index])
        if match and match.group(1) in DIRECTIVE_KEYS:
            key, value = match.group(1), _BEHIND_KEY.sub("", lines[index][:MAX_HEADER_LINE_CHARACTERS]).strip()
            is_value = (_CALL_LIKE if key in _CALLS else _VALUE_LIKE[key]).match(value) is not None
            is_prose = match.group(2) == ":" and _PLAIN_WORDS.fullmatch(value) is not None
            if is_prose and not (is_value and key in _CALLS):
                continue
            message = f"this '{key}' line is not read: the plan ends at the empty line {stop + 1}"
            span = Span(index + 1, match.start(1) + 1, len(lines[index]) + 1)
            severity = Severity.ERROR if is_value or match.group(2) == "[" else Severity.WARNING
            block.findings.append(finding(PlanCode.MISPLACED_DIRECTIVE, message, span, severity))
