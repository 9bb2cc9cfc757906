"""Python text: expressions of a launch plan as Python, and brackets laid out as `ruff format` lays them out."""

from __future__ import annotations

import keyword
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence

from kernel_lsp.core.expression import (
    COMPARISONS,
    NEGATION_PRECEDENCE,
    NOT_PRECEDENCE,
    PRECEDENCE,
    Binary,
    Call,
    Constant,
    Expression,
    Name,
    Number,
    Unary,
    parenthesized,
)

LINE_LENGTH = 120
INDENT = "    "
MAX_CALL_LINES = 3
"""Lines of a call with all arguments on one line; longer calls pass rows of arguments."""

_TIGHTEST = 8

Rename = Callable[[str], str]


def python_expression(expression: Expression, rename: Rename = str) -> str:
    """Return the expression as Python with the same value, its names passed through `rename`."""
    return _python(expression, rename, 0)


def differs(name: str, value: Number) -> str:
    """Return a condition that is true where the variable is not `value`."""
    if isinstance(value, bool):
        return f"not {name}" if value else name
    return f"{name} != {python_number(value)}"


def may_divide_by_zero(expression: Expression) -> bool:
    """Return True if evaluation may divide by anything but a nonzero constant."""
    match expression:
        case Unary(_, operand):
            return may_divide_by_zero(operand)
        case Binary(operator, left, right):
            safe = isinstance(right, Constant) and right.value != 0
            divides = operator in ("/", "//", "%") and not safe
            return divides or may_divide_by_zero(left) or may_divide_by_zero(right)
        case Call("ceil_div", (left, right)):
            return may_divide_by_zero(Binary("//", left, right))
        case Call(_, arguments):
            return any(map(may_divide_by_zero, arguments))
    return False


def python_number(value: Number) -> str:
    """Return a literal that evaluates to `value`."""
    if isinstance(value, float) and not math.isfinite(value):
        return "math.nan" if math.isnan(value) else ("math.inf" if value > 0 else "-math.inf")
    return repr(value)


def tuple_text(items: Sequence[str]) -> str:
    """Print ``(a,)`` for one item, ``(a, b)`` for more."""
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def bracketed(before: str, items: Sequence[str], after: str, depth: int = 0) -> list[str]:
    """Print a call or a signature, ``before`` + items + ``after``, where `before` ends with the opening bracket: on one
    line, else all items on one line of their own, else one line each. `depth` is the indentation of the lines."""
    width = LINE_LENGTH - len(INDENT) * depth
    joined = ", ".join(items)
    if len(one_line := f"{before}{joined}{after}") <= width:
        return [one_line]
    if len(body := INDENT + joined) <= width:
        return [before, body, after]
    return [before, *(f"{INDENT}{item}," for item in items), after]


def call_of_lines(before: str, lines: Sequence[str], after: str, depth: int = 0) -> list[str]:
    """Print a call whose arguments fill `lines`, each of which may go over several: as `bracketed` does where none
    does."""
    if all(line.endswith(",") and not line.startswith(INDENT) for line in lines):
        return bracketed(before, [line.removesuffix(",") for line in lines], after, depth)
    return [before, *indented(lines), after]


def signature_lines(before: str, items: Sequence[str], after: str) -> list[str]:
    """Print a definition: as `bracketed` does, or in rows where that takes many lines."""
    if len(lines := bracketed(before, items, after)) <= MAX_CALL_LINES:
        return lines
    listed = textwrap.wrap(", ".join(item.replace(" ", "\0") for item in items), LINE_LENGTH - len(INDENT))
    return [before, *(INDENT + line.replace("\0", " ") for line in listed), f"{after}  # fmt: skip"]


def dict_rows(before: str, items: Sequence[str]) -> list[str]:
    """Print a dict as an argument of a call at depth 2 over few lines: where it is long, as several dicts side by
    side."""
    if len(lines := literal(before, items, "},", 2)) == 1:
        return lines
    return literal(before, ["**{" + ", ".join(row) + "}" for row in rows(items, 3)], "},", 2)


def literal(before: str, items: Sequence[str], after: str, depth: int = 0) -> list[str]:
    """Return a tuple, list or dict, where `before` ends with the opening bracket: on one line, else one line per
    item."""
    comma = "," if len(items) == 1 and before.endswith("(") else ""
    if len(one_line := f"{before}{', '.join(items)}{comma}{after}") <= LINE_LENGTH - len(INDENT) * depth:
        return [one_line]
    return [before, *(f"{INDENT}{item}," for item in items), after]


def rows(items: Sequence[str], depth: int) -> list[list[str]]:
    """Split items into as few rows as fit into lines ``*(a, b),`` at this depth."""
    found: list[list[str]] = [[]]
    for item in items:
        if found[-1] and len(", ".join([*found[-1], item])) > LINE_LENGTH - len(INDENT) * depth - len("*(),,"):
            found.append([])
        found[-1].append(item)
    return found


def call(before: str, first: Sequence[str], items: Sequence[str], depth: int) -> list[str]:
    """Print a call of a function with `first` and `items`; many items in rows, as ``*(a, b),``."""
    lines = bracketed(before, [*first, *items], ")", depth)
    if len(lines) <= MAX_CALL_LINES:
        return lines
    return [before, *indented([*(f"{each}," for each in first), *_starred(items, depth)]), ")"]


def _starred(items: Sequence[str], depth: int) -> list[str]:
    return [f"*{tuple_text(row)}," for row in rows(items, depth + 1)]


def packed(before: str, items: Sequence[str], after: str, depth: int = 0) -> list[str]:
    """Print a tuple over few lines: where it is long, as several tuples side by side."""
    if len(lines := literal(before, items, after, depth)) == 1:
        return lines
    return literal(before, [f"*{tuple_text(row)}" for row in rows(items, depth + 1)], after, depth)


def unpacked(names: Sequence[str], source: str, depth: int = 0) -> list[str]:
    """Print ``a, b = source``."""
    left = f"({names[0]},)" if len(names) == 1 else ", ".join(names)
    if len(one_line := f"{left} = {source}") <= LINE_LENGTH - len(INDENT) * depth:
        return [one_line]
    return literal("(", names, f") = {source}", depth)


def returned(items: Sequence[str], depth: int) -> list[str]:
    """Print ``return a, b``; one item is returned alone."""
    if len(one_line := f"return {', '.join(items)}") <= LINE_LENGTH - len(INDENT) * depth:
        return [one_line]
    return packed("return (", items, ")", depth)


def indented(lines: Iterable[str], depth: int = 1) -> list[str]:
    """Indent the lines by one level; empty ones stay empty."""
    return [INDENT * depth + line if line else "" for line in lines]


def section(*functions: Sequence[str]) -> list[str]:
    """Return top-level definitions, each after two empty lines."""
    return [line for function in functions if function for line in ("", "", *function)]


def python_identifier(name: str, reserved: frozenset[str]) -> str:
    """Return `name` with an underscore appended when Python or the surrounding file uses it."""
    return f"{name}_" if name in reserved or keyword.iskeyword(name) or keyword.issoftkeyword(name) else name


def string_literal(text: str) -> str:
    """Return a Python string in double quotes, as `ruff format` writes it."""
    body = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return repr(text) if '"' in text and "'" not in text else f'"{body}"'


def _python(expression: Expression, rename: Rename, outer: int) -> str:
    match expression:
        case Constant(value):
            text = python_number(value)
            return parenthesized(text, NEGATION_PRECEDENCE if text.startswith("-") else _TIGHTEST, outer)
        case Name(name):
            return rename(name)
        case Unary(operator, operand):
            precedence = NOT_PRECEDENCE if operator == "not" else NEGATION_PRECEDENCE
            sign = "not " if operator == "not" else "-"
            return parenthesized(sign + _python(operand, rename, precedence), precedence, outer)
        case Binary(operator, left, right):
            precedence = PRECEDENCE[operator]
            left_outer = precedence + 1 if operator in COMPARISONS else precedence
            text = f"{_python(left, rename, left_outer)} {operator} {_python(right, rename, precedence + 1)}"
            if operator in ("and", "or") and not (_is_boolean(left) and _is_boolean(right)):
                return f"bool({text})"  # Python's `and` and `or` return an operand, a plan's a truth value
            return parenthesized(text, precedence, outer)
        case Call(function, arguments):
            return f"{function}({', '.join(_python(argument, rename, 0) for argument in arguments)})"
    raise TypeError(f"not an expression: {expression!r}")


def _is_boolean(expression: Expression) -> bool:
    match expression:
        case Constant(value):
            return isinstance(value, bool)
        case Unary(operator, _):
            return operator == "not"
        case Binary(operator, _, _):
            return operator in ("and", "or", *COMPARISONS)
    return False
