"""Define findings, their text ranges and their quick fixes.

Positions are 0-based lines and 0-based columns in Unicode code points; ends are exclusive. A line ends with ``\\n``,
``\\r\\n`` or ``\\r``, as in the Language Server Protocol. Callers that need UTF-8 or UTF-16 columns convert them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter

from kernel_lsp.core.finding import Severity

SOURCE = "kernel-lsp"
"""Diagnostic source of these findings, as an editor shows it."""
FINDING_BYTES = 1024
"""Approximate memory of one finding in bytes, including its message and one fix."""


@dataclass(frozen=True, slots=True, order=True)
class TextRange:
    """A half-open range, from the first character to one past the last."""

    start_line: int
    start_column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class TextEdit:
    """Replace the text in `range` with `new_text`. An empty range inserts."""

    range: TextRange
    new_text: str


@dataclass(frozen=True, slots=True)
class QuickFix:
    """A group of edits that belong together and do not overlap.

    `is_safe` means that the fix preserves the code's meaning, up to the rounding that the rule is about. A fix that is
    not safe may be correct but needs a person's judgement.
    """

    title: str
    edits: tuple[TextEdit, ...]
    is_safe: bool


@dataclass(frozen=True, slots=True)
class RuleFinding:
    """One location that violates a rule. `documentation` is the project-relative path of its page with an anchor."""

    code: str
    name: str
    severity: Severity
    message: str
    range: TextRange
    documentation: str
    fixes: tuple[QuickFix, ...] = ()
    related: tuple[TextRange, ...] = ()
    """The other locations of a folded finding, which represents several of one code."""


def in_order(findings: Iterable[RuleFinding]) -> list[RuleFinding]:
    """Return the findings in source order, without duplicates of one code at one location."""
    found: dict[tuple, RuleFinding] = {}
    for finding in findings:
        place = finding.range
        key = (place.start_line, place.start_column, place.end_line, place.end_column, finding.code, finding.message)
        found.setdefault(key, finding)
    return [found[key] for key in sorted(found, key=itemgetter(0, 1, 2, 3, 4))]


def folded(findings: Sequence[RuleFinding], codes: Container[str], at_least: int) -> list[RuleFinding]:
    """Return the findings with each listed code folded into one finding once it occurs `at_least` times. Fixes with
    the same title are merged."""
    groups: dict[str, list[RuleFinding]] = {}
    for finding in findings:
        if finding.code in codes:
            groups.setdefault(finding.code, []).append(finding)
    large = {code: group for code, group in groups.items() if len(group) >= at_least}
    firsts = {id(group[0]): _fold(group) for group in large.values()}
    return [firsts.get(id(found), found) for found in findings if found.code not in large or id(found) in firsts]


def _fold(group: Sequence[RuleFinding]) -> RuleFinding:
    first = group[0]
    message = f"{first.message} (and at {len(group) - 1} more places)"
    fixes = [found.fixes[0] for found in group if found.fixes]
    edits = tuple(edit for fix in fixes for edit in fix.edits)
    whole = (QuickFix(fixes[0].title, edits, all(fix.is_safe for fix in fixes)),) if fixes else ()
    return replace(first, message=message, fixes=whole, related=tuple(found.range for found in group[1:]))


def apply_fix(text: str, fix: QuickFix) -> str:
    """Return `text` with the edits of `fix` applied. The fix must have been found in `text`."""
    starts = line_starts(text)
    for edit in sorted(fix.edits, key=lambda edit: edit.range, reverse=True):
        start = starts[edit.range.start_line] + edit.range.start_column
        end = starts[edit.range.end_line] + edit.range.end_column
        text = text[:start] + edit.new_text + text[end:]
    return text


def shifted_range(place: TextRange, n_lines: int) -> TextRange:
    """Return the range moved `n_lines` down."""
    return TextRange(place.start_line + n_lines, place.start_column, place.end_line + n_lines, place.end_column)


def shifted_finding(finding: RuleFinding, n_lines: int) -> RuleFinding:
    """Return the finding with its fixes moved `n_lines` down."""
    fixes = tuple(_shifted_fix(fix, n_lines) for fix in finding.fixes)
    return replace(finding, range=shifted_range(finding.range, n_lines), fixes=fixes)


def line_starts(text: str) -> list[int]:
    """Return the offset of each line's first character."""
    starts = [0]
    position = text.find("\r")
    if position < 0:
        while (position := text.find("\n", starts[-1])) >= 0:
            starts.append(position + 1)
        return starts
    for position, character in enumerate(text):
        if character == "\n" or (character == "\r" and text[position + 1 : position + 2] != "\n"):
            starts.append(position + 1)
    return starts


def _shifted_fix(fix: QuickFix, n_lines: int) -> QuickFix:
    edits = tuple(TextEdit(shifted_range(edit.range, n_lines), edit.new_text) for edit in fix.edits)
    return QuickFix(fix.title, edits, fix.is_safe)
