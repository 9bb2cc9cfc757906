"""Elementary parsers of a directive: each returns the parsed part and the stripped rest, or raises a `Fault`."""

from __future__ import annotations

import re

from kernel_lsp.core.expression import FUNCTIONS, Expression, ExpressionError
from kernel_lsp.core.expression_parser import parse as parse_expression_text
from kernel_lsp.core.plan import Span
from kernel_lsp.plan.block import Piece
from kernel_lsp.plan.codes import PlanCode, finding

RESERVED_NAMES = frozenset({"and", "or", "not", "true", "false", "inf", "nan", "none", *FUNCTIONS})
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class Fault(Exception):
    """A directive that does not parse; the builder converts it to a finding."""

    def __init__(self, code: PlanCode, message: str, span: Span) -> None:
        super().__init__(message)
        self.finding = finding(code, message, span)


def take_name(piece: Piece, what: str) -> tuple[Piece, Piece]:
    """Take an identifier that is not a keyword of the plan; `what` names the expected item in the message."""
    match = _IDENTIFIER.match(piece.text)
    if match is None:
        raise Fault(PlanCode.SYNTAX, f"expected {what}{_found(piece)}", _first(piece))
    name = piece.part(0, match.end())
    if name.text in RESERVED_NAMES:
        raise Fault(PlanCode.BAD_NAME, f"'{name.text}' is a word of the plan and cannot be {what}", name.span)
    return name, piece.part(match.end()).strip()


def whole_name(piece: Piece, what: str) -> str:
    """Take an identifier with nothing after it."""
    name, rest = take_name(piece, what)
    expect_end(rest)
    return name.text


def take_parenthesized(piece: Piece, what: str) -> tuple[Piece, Piece]:
    """Return the contents of the leading parentheses, and the rest."""
    if not piece.text.startswith("("):
        raise Fault(PlanCode.SYNTAX, f"expected '(' and {what}{_found(piece)}", _first(piece))
    depth = 0
    for position, character in enumerate(piece.text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return piece.part(1, position), piece.part(position + 1).strip()
    raise Fault(PlanCode.SYNTAX, f"the '(' before {what} is not closed", piece.part(0, 1).span)


def cut(piece: Piece, mark: str, what: str) -> tuple[Piece, Piece]:
    """Return the parts before and after `mark`."""
    position = piece.text.find(mark)
    if position < 0:
        raise Fault(PlanCode.SYNTAX, f"expected {what}", piece.span)
    return piece.part(0, position), piece.part(position + len(mark))


def expect(piece: Piece, mark: str, what: str) -> Piece:
    """Return the part after `mark`, which must come first."""
    if not piece.text.startswith(mark):
        raise Fault(PlanCode.SYNTAX, f"expected '{mark}' and {what}{_found(piece)}", _first(piece))
    return piece.part(len(mark)).strip()


def without_comment(rest: Piece) -> Piece:
    """Return the text after a statement's end, skipping a `;` and line comments."""
    rest = rest.strip()
    if rest.text.startswith(";"):
        rest = rest.part(1).strip()
    while rest.text.startswith("//"):
        rest = rest.next_lines().strip()
    return rest


def expect_end(piece: Piece) -> None:
    """Reject trailing text."""
    if piece.text:
        raise Fault(PlanCode.SYNTAX, f"unexpected '{_shorten(piece.text)}' after the end", piece.span)


def parse_expression(piece: Piece, what: str) -> Expression:
    """Parse the piece as an expression; a fault points at the offending column."""
    if not piece.text.strip():
        raise Fault(PlanCode.SYNTAX, f"expected {what} here", piece.span)
    try:
        return parse_expression_text(piece.text)
    except ExpressionError as error:
        message = f"'{_shorten(piece.text)}' is not {what}: {error.message}"
        raise Fault(PlanCode.BAD_EXPRESSION, message, _first(piece.part(error.column))) from None


def _first(piece: Piece) -> Span:
    return piece.part(0, 1).span


def _found(piece: Piece) -> str:
    return f", and found '{_shorten(piece.text)}'" if piece.text else ""


def _shorten(text: str, limit: int = 40) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
