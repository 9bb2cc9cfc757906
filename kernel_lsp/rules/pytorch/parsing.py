"""Python text -> syntax tree with code-point positions. Text under edit gives the statements that do parse."""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter

from kernel_lsp.rules.finding import TextEdit, TextRange
from kernel_lsp.rules.gc_pause import uncollected

MAX_FAULTS = 8
"""In top-level statements, after which each of them is read by itself."""
MAX_REPAIRS = 6
"""Lines that may be blanked to make one top-level statement parse."""


@dataclass(frozen=True, slots=True)
class ParsedModule:
    """`lines` keep no line ends. `is_complete` says that the whole text parsed."""

    text: str
    lines: tuple[str, ...]
    tree: ast.Module
    is_complete: bool

    def range(self, node: ast.expr | ast.stmt | ast.ExceptHandler | ast.keyword | ast.arg) -> TextRange:
        end_line = node.end_lineno or node.lineno
        end = node.col_offset if node.end_col_offset is None else node.end_col_offset
        return TextRange(
            node.lineno - 1, self.column(node.lineno, node.col_offset), end_line - 1, self.column(end_line, end)
        )

    def between(self, first: ast.expr | ast.stmt, last: ast.expr | ast.stmt) -> TextRange:
        """From the start of one node to the end of another."""
        start, end = self.range(first), self.range(last)
        return TextRange(start.start_line, start.start_column, end.end_line, end.end_column)

    def after(self, node: ast.expr, outer: ast.expr) -> TextRange:
        """What `outer` has behind the end of `node`."""
        start, end = self.range(node), self.range(outer)
        return TextRange(start.end_line, start.end_column, end.end_line, end.end_column)

    def source(self, node: ast.expr) -> str:
        """The text of the node as it stands, brackets around it left out."""
        place = self.range(node)
        if place.start_line == place.end_line:
            return self.lines[place.start_line][place.start_column : place.end_column]
        inner = self.lines[place.start_line + 1 : place.end_line]
        first = self.lines[place.start_line][place.start_column :]
        return "\n".join((first, *inner, self.lines[place.end_line][: place.end_column]))

    def operand(self, node: ast.expr) -> str:
        """The text of the node, in brackets where it could bind looser than a call or an attribute."""
        source = self.source(node)
        return source if isinstance(node, _TIGHT) else f"({source})"

    def replace(self, node: ast.expr, new_text: str) -> TextEdit:
        return TextEdit(self.range(node), new_text)

    def column(self, line: int, utf8_offset: int) -> int:
        """Code points before the byte `utf8_offset` of the 1-based `line`."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        if text.isascii():
            column = utf8_offset
        else:
            column = len(text.encode("utf-8", errors="replace")[:utf8_offset].decode("utf-8", errors="replace"))
        return min(column + (line == 1 and self.text.startswith(_BYTE_ORDER_MARK)), len(text) + 1)


@uncollected
def parse(text: str) -> ParsedModule:
    """The tree of `text`. Never raises: what does not parse is left out, statement by statement."""
    readable = text.encode("utf-8", errors="replace").decode("utf-8").removeprefix(_BYTE_ORDER_MARK)
    lines = tuple(_LINE_END.split(readable))
    tree = _try_parse("\n".join(lines))
    if isinstance(tree, ast.Module):
        return ParsedModule(text, lines, tree, True)
    return ParsedModule(text, lines, _parse_in_pieces(lines), False)


# --- below: trees of text that has errors

_BYTE_ORDER_MARK = "\ufeff"
_LINE_END = re.compile(r"\r\n|\n|\r")
_TIGHT = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Tuple)
_CONTINUES = re.compile(r"\s|[)\]}#]|$|(?:else|elif|except|finally)\b")
"""Starts of lines that cannot begin a top-level statement."""


def _try_parse(text: str) -> ast.Module | int:
    """The tree, or the 1-based line that is at fault."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the user's strings are not ours to print
            return ast.parse(text)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError):  # null characters; nesting beyond the parser's stack
        return 1


def _parse_in_pieces(lines: tuple[str, ...]) -> ast.Module:
    """A fault costs only its own top-level statement: what stands before it is read as a whole, and what behind."""
    starts = [0, *(i for i, line in enumerate(lines) if i and _begins(line, lines[i - 1])), len(lines)]
    body: list[ast.stmt] = []
    waiting = [list(pairwise(starts))]
    n_faults = 0
    while waiting:
        pieces = waiting.pop()
        if len(pieces) == 1:
            start, stop = pieces[0]
            body += ast.increment_lineno(_parse_piece(list(lines[start:stop])), start).body
        elif n_faults >= MAX_FAULTS:
            waiting += [[piece] for piece in reversed(pieces)]
        elif pieces:
            # Empty lines above it cost less than counting the lines of every node anew.
            start, stop = pieces[0][0], pieces[-1][1]
            tree = _try_parse("\n" * start + "\n".join(lines[start:stop]))
            if isinstance(tree, ast.Module):
                body += tree.body
                continue
            n_faults += 1
            at = max(bisect_right(pieces, tree - 1, key=itemgetter(0)) - 1, 0)
            waiting += [pieces[at + 1 :], pieces[at : at + 1], pieces[:at]]
    return ast.Module(body=body, type_ignores=[])


def _begins(line: str, line_above: str) -> bool:
    return not _CONTINUES.match(line) and not line_above.startswith("@")


def _parse_piece(lines: list[str]) -> ast.Module:
    for _ in range(MAX_REPAIRS):
        tree = _try_parse("\n".join(lines))
        if isinstance(tree, ast.Module):
            return tree
        at = min(tree, len(lines)) - 1
        while at > 0 and not lines[at].strip():
            at -= 1
        indent = len(lines[at]) - len(lines[at].lstrip())
        lines[at] = lines[at][:indent] + ("pass" if lines[at].strip() != "pass" else "")
    return ast.Module(body=[], type_ignores=[])
