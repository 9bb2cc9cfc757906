"""Parse `library:` lines: calls of a vendor library through ATen."""

from __future__ import annotations

import re

from kernel_lsp.core.expression import Expression
from kernel_lsp.core.plan import LibraryArgument, LibraryStep
from kernel_lsp.plan.block import Piece
from kernel_lsp.plan.codes import PlanCode
from kernel_lsp.plan.pieces import (
    Fault,
    expect,
    expect_end,
    parse_expression,
    take_parenthesized,
    whole_name,
    without_comment,
)

_LIBRARY_FUNCTION = re.compile(r"[A-Za-z_]\w*::[A-Za-z_]\w*(?:\.\w+)?", re.ASCII)
MAX_LIST_NESTING = 4


def parse_library(value: Piece, condition: Expression | None, tensors: set[str]) -> LibraryStep:
    """Parse a library call. `tensors` are the tensor names; other arguments are values. Raises Fault."""
    match = _LIBRARY_FUNCTION.match(value.text)
    if match is None:
        raise Fault(PlanCode.SYNTAX, "expected a function such as aten::mm(a, b) -> (c)", value.span)
    arguments, rest = take_parenthesized(value.part(match.end()).strip(), "the arguments")
    rest = expect(rest, "->", "the results")
    results, rest = take_parenthesized(rest, "the results")
    expect_end(without_comment(rest))
    return LibraryStep(
        function=match.group(),
        arguments=tuple(_parse_argument(piece, tensors, 0) for piece in arguments.split()),
        results=tuple(whole_name(piece, "a result") for piece in results.split()),
        condition=condition,
        span=value.span,
    )


def _parse_argument(piece: Piece, tensors: set[str], depth: int) -> LibraryArgument:
    text = piece.text
    if text == "none":
        return None
    if text in tensors:
        return text
    if not text.startswith("["):
        return parse_expression(piece, "an argument")
    if not text.endswith("]") or depth >= MAX_LIST_NESTING:
        raise Fault(PlanCode.SYNTAX, "this list is not closed, or nested too deep", piece.span)
    inner = piece.part(1, len(text) - 1)
    return tuple(_parse_argument(part, tensors, depth + 1) for part in inner.split())
