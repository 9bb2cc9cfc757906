"""Print C++ expressions of a launch plan over the types of `plan_arithmetic.h`, with the same values as in Python."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from kernel_lsp.core.expression import COMPARISONS, Binary, Call, Constant, Expression, Name, Number, Unary

CppType = Literal["integer", "real", "bool"]
"""C++ type of an expression: `plan::Integer`, double or bool."""
_INFIX = {"+": 5, "-": 5, "*": 6}
_FUNCTIONS = {"//": "plan::floor_div", "%": "plan::floor_mod", "/": "plan::divide"}
_CALLS = {"ceil_div": "plan::ceil_div", "min": "plan::smaller", "max": "plan::larger"}
LINE_LENGTH = 110
CONTINUATION = " " * 8
INDENT = "    "
_STRING_OR_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|, ')
_COMPARISON, _NEGATION, _TIGHTEST = 4, 7, 8
_OR, _AND, _NOT = 1, 2, 7


@dataclass(frozen=True)
class CppNames:
    """C++ name and type of each name of a plan."""

    spelled: Mapping[str, str]
    types: Mapping[str, CppType]


@dataclass(frozen=True)
class CppExpression:
    """C++ text that gives the expression's value."""

    text: str
    type: CppType
    precedence: int = _TIGHTEST

    def inside(self, outer: int) -> str:
        """Return the text as an operand of an operator that binds as tightly as `outer`."""
        return f"({self.text})" if self.precedence < outer else self.text


def cpp_expression(expression: Expression, names: CppNames) -> CppExpression:
    """Return the expression as C++. Integer arithmetic throws `plan::Unfit` where 64 bits do not hold the result."""
    match expression:
        case Constant(value):
            return _constant(value)
        case Name(name):
            return CppExpression(names.spelled[name], names.types[name])
        case Unary("not", operand):
            return CppExpression(f"!{_truth(cpp_expression(operand, names)).inside(_NOT)}", "bool", _NOT)
        case Unary(_, operand):
            number = _number(cpp_expression(operand, names))
            return CppExpression(f"-{number.inside(_TIGHTEST)}", number.type, _NEGATION)
        case Binary("and" | "or" as operator, left, right):
            return _logical(operator, cpp_expression(left, names), cpp_expression(right, names))
        case Binary(operator, left, right):
            return _arithmetic(operator, cpp_expression(left, names), cpp_expression(right, names))
        case Call(function, arguments):
            return _call(function, [cpp_expression(argument, names) for argument in arguments])
    raise TypeError(f"not an expression: {expression!r}")


def cpp_integer(expression: Expression, names: CppNames) -> str:
    """Return the expression as a `plan::Integer`: sizes of grids, blocks and tensors."""
    found = _number(cpp_expression(expression, names))
    return found.text if found.type == "integer" else f"plan::Integer(plan::as<int64_t>({found.text}))"


def cpp_condition(expression: Expression, names: CppNames) -> str:
    """Return the expression as a bool."""
    return _truth(cpp_expression(expression, names)).text


def cpp_value(expression: Expression, names: CppNames, cpp_type: str) -> str:
    """Return the expression converted to a C++ number type. Throws `plan::Unfit` where the value does not fit."""
    return f"plan::as<{cpp_type}>({_number(cpp_expression(expression, names)).text})"


def cpp_string(text: str) -> str:
    """Return a C++ string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("?", "\\?")
    return f'"{escaped}"'


def cpp_double(value: float) -> str:
    """Return a C++ literal of the same double."""
    if math.isnan(value):
        return "std::numeric_limits<double>::quiet_NaN()"
    if math.isinf(value):
        return f"{'-' if value < 0 else ''}std::numeric_limits<double>::infinity()"
    return repr(float(value))


def cpp_lines(lines: Iterable[str]) -> list[str]:
    """Return the lines wrapped at commas outside of strings, without consecutive empty lines."""
    broken = [part for line in lines for part in _broken(line)]
    return [line for line, before in zip(broken, ["", *broken], strict=False) if line or before]


def cpp_function(head: str, body: Iterable[str]) -> list[str]:
    """Return the lines of a function, or of a block with a head."""
    return [f"{head} {{", *(INDENT + line if line else "" for line in body), "}"]


def cpp_scope(head: str, body: Iterable[str]) -> list[str]:
    """Return the lines of a block whose head is part of another line."""
    return [f"{head}{{", *(INDENT + line for line in body), "}"]


def _broken(line: str) -> Iterator[str]:
    indent = len(line) - len(line.lstrip())
    continued = " " * indent + ("//" if line.lstrip().startswith("//") else "") + CONTINUATION
    while len(line) > LINE_LENGTH:
        breaks = [m.end() for m in _STRING_OR_COMMA.finditer(line) if m[0] == ", " and m.end() > len(continued)]
        fitting = [position for position in breaks if position <= LINE_LENGTH] or breaks[:1]
        if not fitting:
            break
        yield line[: fitting[-1]].rstrip()
        line = continued + line[fitting[-1] :]
    yield line


def _constant(value: Number) -> CppExpression:
    if isinstance(value, bool):
        return CppExpression("true" if value else "false", "bool")
    text = f"{value}_i" if isinstance(value, int) else cpp_double(value)
    return CppExpression(text, "integer" if isinstance(value, int) else "real", _NEGATION if text[0] == "-" else 8)


def _number(found: CppExpression) -> CppExpression:
    """Return a truth value as an integer, like Python."""
    return CppExpression(f"plan::integer({found.text})", "integer") if found.type == "bool" else found


def _real(found: CppExpression) -> CppExpression:
    found = _number(found)
    return CppExpression(f"plan::real({found.text})", "real") if found.type == "integer" else found


def _truth(found: CppExpression) -> CppExpression:
    if found.type == "bool":
        return found
    zero = "0_i" if found.type == "integer" else "0.0"
    return CppExpression(f"{found.inside(_COMPARISON + 1)} != {zero}", "bool", _COMPARISON)


def _alike(found: list[CppExpression]) -> list[CppExpression]:
    """Convert numbers to one type: double if any of them is one."""
    numbers = [_number(each) for each in found]
    return numbers if all(n.type == "integer" for n in numbers) else [_real(number) for number in numbers]


def _logical(operator: str, left: CppExpression, right: CppExpression) -> CppExpression:
    precedence, sign = (_AND, "&&") if operator == "and" else (_OR, "||")
    # Parenthesize every mixture: GCC warns about `a || b && c`.
    operands = [_truth(each) for each in (left, right)]
    texts = [f"({o.text})" if o.precedence in (_AND, _OR) and o.precedence != precedence else o.text for o in operands]
    return CppExpression(f"{texts[0]} {sign} {texts[1]}", "bool", precedence)


def _arithmetic(operator: str, left: CppExpression, right: CppExpression) -> CppExpression:
    operands = [_real(left), _real(right)] if operator == "/" else _alike([left, right])
    if operator in _FUNCTIONS:
        return CppExpression(f"{_FUNCTIONS[operator]}({operands[0].text}, {operands[1].text})", operands[0].type)
    precedence = _COMPARISON if operator in COMPARISONS else _INFIX[operator]
    left_outer = precedence + 1 if operator in COMPARISONS else precedence
    text = f"{operands[0].inside(left_outer)} {operator} {operands[1].inside(precedence + 1)}"
    return CppExpression(text, "bool" if operator in COMPARISONS else operands[0].type, precedence)


def _call(function: str, arguments: list[CppExpression]) -> CppExpression:
    """Print a call of a function of two arguments. `min` and `max` of more are nested."""
    numbers = _alike(arguments)
    text = numbers[0].text
    for number in numbers[1:]:
        text = f"{_CALLS[function]}({text}, {number.text})"
    return CppExpression(text, numbers[0].type)
