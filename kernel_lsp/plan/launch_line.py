"""Parse `launch:` lines, in CUDA's own syntax followed by attributes."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from kernel_lsp.core.expression import FUNCTIONS, Constant, Expression, ExpressionError, Name, free_names
from kernel_lsp.core.expression import parse as parse_expression_text
from kernel_lsp.core.plan import Launch, Span
from kernel_lsp.plan.block import Piece
from kernel_lsp.plan.codes import PlanCode, finding

ATTRIBUTES = {"cooperative": 1, "cluster": 16, "max_shared": 227 * 1024}
"""Launch attributes with their largest value. 16 blocks is the non-portable cluster limit of Hopper; 227 KiB is the
shared memory that one block can use there (CUDA C++ Programming Guide, table of technical specifications)."""
Size = tuple[Expression, Expression, Expression]
_KERNEL = re.compile(r"(?:::\s*)?[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)*", re.ASCII)
_CPP_TYPE = re.compile(
    r"(?:::\s*)?[A-Za-z_]\w*(?:(?:\s*::\s*|\s+)[A-Za-z_]\w*)*(?:\s*<[\w\s:<>*&,]*>)?[\s*&]*", re.ASCII
)
_DIM3 = re.compile(r"dim3\s*(?=\()")
_ATTRIBUTE = re.compile(r"\s*(\w+)\s*=\s*(\d{1,9})(?!\w)", re.ASCII)
MAX_SHOWN = 40
"""Maximum characters of the text that a message quotes."""
RESERVED_NAMES = frozenset({"and", "or", "not", "true", "false", "inf", "nan", "none", *FUNCTIONS})
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def parse_launch(value: Piece, condition: Expression | None, numbers: set[str]) -> Launch:
    """Parse a launch. `numbers` are the dims and scalars, which distinguish a numeric template argument from a C++
    type. Raises Fault."""
    target, rest = cut(value, "<<<", "a launch such as kernel<<<grid, block>>>(arguments)")
    configuration, rest = cut(rest, ">>>", "the '>>>' that ends the launch configuration")
    arguments, rest = take_parenthesized(rest.strip(), "the arguments")
    kernel, template_arguments = _parse_kernel(target.strip(), numbers)
    grid, block, shared_bytes = _parse_configuration(configuration)
    pieces = arguments.split()
    return Launch(
        kernel=kernel,
        template_arguments=template_arguments,
        grid=grid,
        block=block,
        shared_bytes=shared_bytes,
        arguments=tuple(parse_expression(piece, "an argument") for piece in pieces),
        condition=condition,
        attributes=_parse_attributes(rest),
        span=value.span,
        argument_spans=tuple(piece.span for piece in pieces),
    )


def _parse_kernel(target: Piece, numbers: set[str]) -> tuple[str, tuple[Expression | str, ...]]:
    match = _KERNEL.match(target.text)
    if match is None:
        raise Fault(PlanCode.SYNTAX, "expected the name of a kernel before '<<<'", target.span)
    name = re.sub(r"\s+", "", match.group())
    rest = target.part(match.end()).strip()
    if not rest.text:
        return name, ()
    if not (rest.text.startswith("<") and rest.text.endswith(">") and len(rest.text) > 1):
        message = f"expected '<template arguments>' between '{name}' and '<<<'"
        raise Fault(PlanCode.SYNTAX, message, rest.span)
    pieces = _with_types_whole(rest.part(1, len(rest.text) - 1).split(), numbers)
    return name, tuple(_parse_template_argument(piece, numbers) for piece in pieces)


def _with_types_whole(pieces: Sequence[Piece], numbers: set[str]) -> list[Piece]:
    """Return the arguments, keeping types with commas whole: ``Chain<Relu, Scale>``."""
    whole: list[Piece] = []
    for piece in pieces:
        opened = whole[-1] if whole else piece
        is_open = opened.text.count("<") > opened.text.count(">") and not _is_over(opened, numbers)
        if whole and is_open:
            whole[-1] = Piece(opened.source, opened.start, piece.end)
        else:
            whole.append(piece)
    return whole


def _is_over(piece: Piece, numbers: set[str]) -> bool:
    """Return True for an expression over dims and scalars: the `<` of ``N < 4`` opens no bracket."""
    try:
        return free_names(parse_expression_text(piece.text)) <= numbers
    except ExpressionError:
        return False


def _parse_template_argument(piece: Piece, numbers: set[str]) -> Expression | str:
    """Parse an expression over dims and scalars, or else the name of a C++ type or constant."""
    try:
        expression: Expression | None = parse_expression_text(piece.text)
    except ExpressionError:
        expression = None
    if expression is not None and free_names(expression) <= numbers:
        return expression
    if expression is None or isinstance(expression, Name):
        if _CPP_TYPE.fullmatch(piece.text):
            return re.sub(r"\s+", " ", piece.text)
        return parse_expression(piece, "a template argument")
    return expression


def _parse_configuration(piece: Piece) -> tuple[Size, Size, Expression]:
    """Parse grid, block and bytes of shared memory."""
    parts = piece.split()
    if not 2 <= len(parts) <= 3:
        message = f"expected <<<grid, block>>> or <<<grid, block, shared_bytes>>>, and found {len(parts)} values"
        raise Fault(PlanCode.SYNTAX, message, piece.span)
    shared_bytes = parse_expression(parts[2], "the bytes of shared memory") if len(parts) == 3 else Constant(0)
    return _parse_size(parts[0], "the grid"), _parse_size(parts[1], "the block"), shared_bytes


def _parse_size(piece: Piece, what: str) -> Size:
    one = Constant(1)
    match = _DIM3.match(piece.text)
    if match is None:
        return parse_expression(piece, what), one, one
    inner, rest = take_parenthesized(piece.part(match.end()), what)
    expect_end(rest)
    sizes = [parse_expression(part, what) for part in inner.split()]
    if not 1 <= len(sizes) <= 3:
        raise Fault(PlanCode.SYNTAX, f"dim3 takes 1 to 3 values, and has {len(sizes)}", piece.span)
    x, y, z = (*sizes, one, one)[:3]
    return x, y, z


def _parse_attributes(rest: Piece) -> tuple[tuple[str, int], ...]:
    attributes: dict[str, int] = {}
    rest = without_comment(rest)
    while rest.text:
        match = _ATTRIBUTE.match(rest.text)
        if match is None:
            message = "expected nothing more, or attributes such as cooperative=1"
            raise Fault(PlanCode.BAD_ATTRIBUTE, message, rest.span)
        name, value = match.group(1), int(match.group(2))
        _check_attribute(name, value, attributes, rest.part(*match.span(1)).span)
        attributes[name] = value
        rest = without_comment(rest.part(match.end()))
    return tuple(attributes.items())


def _check_attribute(name: str, value: int, seen: dict[str, int], span: Span) -> None:
    if name not in ATTRIBUTES:
        near = difflib.get_close_matches(name, ATTRIBUTES, n=1)
        suggestion = f"did you mean '{near[0]}'?" if near else f"there are {', '.join(ATTRIBUTES)}"
        raise Fault(PlanCode.BAD_ATTRIBUTE, f"no launch attribute '{name}': {suggestion}", span)
    if name in seen:
        raise Fault(PlanCode.BAD_ATTRIBUTE, f"'{name}' is given twice", span)
    if value > ATTRIBUTES[name]:
        raise Fault(PlanCode.BAD_ATTRIBUTE, f"{name}={value} is past the limit of {ATTRIBUTES[name]}", span)


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


def _shorten(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
