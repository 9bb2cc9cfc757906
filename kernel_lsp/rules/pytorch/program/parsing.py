"""Parse Python text into a syntax tree with code-point positions. Incomplete text yields the statements that parse."""

from __future__ import annotations

import ast
import re
import warnings
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from typing import TypeVar

from kernel_lsp.rules.cached import uncollected
from kernel_lsp.rules.finding import TextEdit, TextRange
from kernel_lsp.rules.rule import words

MAX_FAULTS = 8
"""Maximum faults in top-level statements. After these, each statement is parsed separately."""
MAX_REPAIRS = 6
"""Maximum lines blanked to make one top-level statement parse."""


@dataclass(frozen=True)
class ParsedModule:
    """A parsed file. `lines` have no line ends. `is_complete` is True if the whole text parsed."""

    text: str
    lines: tuple[str, ...]
    tree: ast.Module
    is_complete: bool

    def functions_named(self, name: str) -> list[ast.FunctionDef]:
        """Return the functions and methods of the file with this name."""
        return self._functions.get(name, [])

    def class_of(self, method: ast.AST) -> ast.ClassDef | None:
        """Return the class whose body defines a method."""
        return self._classes.get(id(method))

    def mentions(self, words: str) -> bool:
        """Return whether the text has these characters. They are searched once for all functions."""
        found = self._mentions.get(words)
        if found is None:
            found = self._mentions[words] = words in self.text
        return found

    @cached_property
    def _mentions(self) -> dict[str, bool]:
        return {}

    @cached_property
    def statements(self) -> list[ast.stmt]:
        """Return all statements, including those inside functions and blocks, level by level. Expressions are not
        visited."""
        found: list[ast.AST] = list(self.tree.body)
        for node in found:
            for name in ("body", "handlers", "orelse", "finalbody", "cases"):
                found += getattr(node, name, ())
        return [node for node in found if isinstance(node, ast.stmt)]

    @cached_property
    def _functions(self) -> dict[str, list[ast.FunctionDef]]:
        found: dict[str, list[ast.FunctionDef]] = {}
        for node in self.statements:
            if isinstance(node, ast.FunctionDef):
                found.setdefault(node.name, []).append(node)
        return found

    @cached_property
    def _classes(self) -> dict[int, ast.ClassDef]:
        classes = (node for node in self.statements if isinstance(node, ast.ClassDef))
        return {id(child): node for node in classes for child in node.body}

    def range(self, node: ast.expr | ast.stmt | ast.ExceptHandler | ast.keyword | ast.arg) -> TextRange:
        end_line = node.end_lineno or node.lineno
        end = node.col_offset if node.end_col_offset is None else node.end_col_offset
        return TextRange(
            node.lineno - 1, self.column(node.lineno, node.col_offset), end_line - 1, self.column(end_line, end)
        )

    def between(self, first: ast.expr | ast.stmt, last: ast.expr | ast.stmt) -> TextRange:
        """Return the range from the start of one node to the end of another."""
        start, end = self.range(first), self.range(last)
        return TextRange(start.start_line, start.start_column, end.end_line, end.end_column)

    def after(self, node: ast.expr, outer: ast.expr) -> TextRange:
        """Return the range in `outer` after the end of `node`."""
        start, end = self.range(node), self.range(outer)
        return TextRange(start.end_line, start.end_column, end.end_line, end.end_column)

    def source(self, node: ast.expr) -> str:
        """Return the source text of the node, without enclosing brackets."""
        place = self.range(node)
        if place.start_line == place.end_line:
            return self.lines[place.start_line][place.start_column : place.end_column]
        inner = self.lines[place.start_line + 1 : place.end_line]
        first = self.lines[place.start_line][place.start_column :]
        return "\n".join((first, *inner, self.lines[place.end_line][: place.end_column]))

    def operand(self, node: ast.expr) -> str:
        """Return the source text of the node, in brackets if it may bind more loosely than a call or an attribute."""
        source = self.source(node)
        return source if isinstance(node, _TIGHT) else f"({source})"

    def replace(self, node: ast.expr, new_text: str) -> TextEdit:
        return TextEdit(self.range(node), new_text)

    def column(self, line: int, utf8_offset: int) -> int:
        """Return the code points before the byte `utf8_offset` of the 1-based `line`."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        if text.isascii():
            column = utf8_offset
        else:
            column = len(text.encode("utf-8", errors="replace")[:utf8_offset].decode("utf-8", errors="replace"))
        return min(column + (line == 1 and self.text.startswith(_BYTE_ORDER_MARK)), len(text) + 1)


@uncollected
def parse(text: str) -> ParsedModule:
    """Parse `text`. Never raises: statements that do not parse are left out."""
    readable = text.encode("utf-8", errors="replace").decode("utf-8").removeprefix(_BYTE_ORDER_MARK)
    lines = tuple(_LINE_END.split(readable))
    tree = _try_parse("\n".join(lines))
    if isinstance(tree, ast.Module):
        return ParsedModule(text, lines, tree, True)
    return ParsedModule(text, lines, _parse_in_pieces(lines), False)


_BYTE_ORDER_MARK = "\ufeff"
_LINE_END = re.compile(r"\r\n|\n|\r")
_TIGHT = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.List, ast.Tuple)
_CONTINUES = re.compile(r"\s|[)\]}#]|$|(?:else|elif|except|finally)\b")
"""Starts of lines that cannot begin a top-level statement."""


def _try_parse(text: str) -> ast.Module | int:
    """Return the tree, or the 1-based line of the syntax error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in the user's strings would print warnings
            return ast.parse(text)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError):  # null characters; nesting beyond the parser's stack
        return 1


def _parse_in_pieces(lines: tuple[str, ...]) -> ast.Module:
    """Parse the text around each fault. A fault loses only its own top-level statement; the text before and after it
    is parsed as a whole."""
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
            # Blank lines above preserve the line numbers. They cost less than renumbering every node.
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


_NO_NODES = words(
    """
    arg asname attr conversion ctx id is_async kind kwd_attrs level lineno module name names op ops rest simple
    type_comment type_ignores
    """
)
"""Fields without child nodes, or whose nodes repeat what their parent determines, such as operators."""
_WITH_GAPS = frozenset(("keys", "kw_defaults"))
"""Fields whose lists may contain None."""


def nodes_in(root: ast.AST) -> list[ast.AST]:
    """Return the node and its descendants, level by level, in source order within a level. Operators, contexts and
    the names of imports are left out. A node keeps its descendants, for which many rules ask."""
    inside = root.__dict__.get("inside")
    if inside is None:
        inside = root.__dict__["inside"] = children_of(root)
        for node in inside:
            for name in _fields[node.__class__]:  # as in `children_of`, without a call for each node
                value = getattr(node, name, None)
                if value.__class__ is list:
                    inside += value if name not in _WITH_GAPS else [each for each in value if each is not None]
                elif value is not None:
                    inside.append(value)
    return [root, *inside]


Node = TypeVar("Node", bound=ast.AST)


def nodes_of(root: ast.AST, kind: type[Node]) -> Sequence[Node]:
    """Return those of `nodes_in` that are of a class. They are grouped once for all classes."""
    groups = root.__dict__.get("groups")
    if groups is None:
        groups = root.__dict__["groups"] = {}
        for node in nodes_in(root)[1:]:
            groups.setdefault(node.__class__, []).append(node)
    return [root, *groups.get(kind, ())] if isinstance(root, kind) else groups.get(kind, [])


def children_of(node: ast.AST) -> list[ast.AST]:
    """Return the children of a node in source order."""
    found: list[ast.AST] = []
    for name in _fields[node.__class__]:
        value = getattr(node, name, None)
        if value.__class__ is list:
            found += [each for each in value if each is not None]
        elif value is not None:
            found.append(value)
    return found


class _Fields(dict[type, tuple[str, ...]]):
    """The fields of each class that may have nodes."""

    def __missing__(self, kind: type[ast.AST]) -> tuple[str, ...]:
        self[kind] = tuple(name for name in kind._fields if name not in _NO_NODES)
        return self[kind]


_fields = _Fields({ast.Constant: (), ast.MatchSingleton: (), ast.Global: (), ast.Nonlocal: ()})
