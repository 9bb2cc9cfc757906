"""KL220 and KL221: unintended double precision among floats."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import INFORMATION, WARNING, declare, hit, rewrite
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.numbers.value_types import FLOAT, INTEGER, LITERAL, UNKNOWN, is_double_literal, value_type
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit, words

MAX_FLOAT = 3.4028235e38
MIN_NORMAL_FLOAT = 1.1754944e-38
_FLOAT_WORDS = re.compile(r"\b(?:float[234]?|half2?|__half2?|__nv_bfloat162?)\b")
_DOUBLE_WORDS = re.compile(r"\bdouble[234]?\b")
_DOUBLE_FUNCTIONS = words(
    """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt cbrt pow sin cos tan sinh cosh tanh erf erfc fabs floor
    ceil round fmod atan atan2 hypot fma fmax fmin copysign
    """
)
_RENAMED = {"max": "fmaxf", "min": "fminf", "abs": "fabsf"}
_CHOOSING = frozenset(f"{prefix}{name}" for prefix in ("", "std::") for name in (*_DOUBLE_FUNCTIONS, *_RENAMED))


@declare(
    "KL220",
    "double-literal",
    WARNING,
    on="device",
    summary="A double literal makes float arithmetic double",
    why="""
    `x * 0.5` converts x to double, multiplies in double precision at 1/2 to 1/64 of the speed, and converts back.
    Write `0.5f`.
    """,
    bad="""
    __global__ void halve(float* __restrict__ x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = x[i] * 0.5;
    }
    """,
    good="""
    __global__ void halve(float* __restrict__ x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = x[i] * 0.5f;
    }
    """,
)
def double_literal(function: Function) -> Iterator[Hit]:
    if not _may_have_doubles(function):
        return
    for number in function.doubles:
        text = function.source(number)
        promoted = _promoted(function, number) if is_double_literal(text) else UNKNOWN
        if promoted == FLOAT:
            fixes = (rewrite(function.file, number, f"{text}f"),) if _fits_float(text) else ()
            yield hit(function.file, number, f"`{text}` is a double: the arithmetic around it is too", *fixes)
        elif promoted:
            yield _of_parameter(function, number, promoted)


@declare(
    "KL221",
    "double-function",
    WARNING,
    on="device",
    summary="A function of floats is called with a double literal",
    why="""
    With one double argument the overload for doubles is chosen: `pow(x, 2.0)` or `max(x, 0.0)` run in double precision,
    or do not compile, for lack of a best overload. Call the float function with float literals.
    """,
    bad="""
    __global__ void relu(float* __restrict__ x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = max(x[i], 0.0);
    }
    """,
    good="""
    __global__ void relu(float* __restrict__ x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = fmaxf(x[i], 0.0f);
    }
    """,
)
def double_function(function: Function) -> Iterator[Hit]:
    if not _may_have_doubles(function):
        return
    for call in function.calls_named(_CHOOSING):
        name = function.callee(call).removeprefix("std::")
        literals = [a for a in function.arguments(call) if _is_double(function, a)]
        given = _given_type(function, call) if literals else UNKNOWN
        if given == FLOAT:
            new_name = _RENAMED.get(name, f"{name}f")
            fixes = _float_call_fix(function, call, new_name, literals)
        elif given:
            fixes = (_converted(function, literals, given),)
        else:
            continue
        yield hit(function.file, call, f"this is `{name}` of doubles", *fixes)


# --- below: doubles among floats


def _of_parameter(function: Function, number: Node, type_name: str) -> Hit:
    """Return the hit for a literal combined with a value of a type parameter, which may be double itself."""
    text = function.source(number)
    fix = QuickFix(
        f"Write `{type_name}({text})`", (function.file.parsed.replace(number, f"{type_name}({text})"),), False
    )
    message = f"`{text}` is a double: for a `{type_name}` of float the arithmetic is double all the same"
    return Hit(function.file.parsed.range(number), message, (fix,), INFORMATION)


def _may_have_doubles(function: Function) -> bool:
    """Return whether device code may contain a double literal but never names `double`. Its values are floats, or
    types that may be floats."""
    if not function.doubles or not function.is_on_device:
        return False
    text = function.text
    is_double = "double" in text and _DOUBLE_WORDS.search(text) is not None
    return not is_double and (function.is_template_of_types or _FLOAT_WORDS.search(text) is not None)


def _promoted(function: Function, number: Node) -> str:
    """Return the type that the literal promotes to double: float or a type parameter. `UNKNOWN` if the text does not
    determine it. Outside of templates every non-literal counts as a float."""
    node = number
    for parent in function.around(number):
        if parent.type in ("unary_expression", "parenthesized_expression"):
            node = parent
        elif parent.type == "binary_expression":
            sides = (parent.child_by_field_id(fields.LEFT), parent.child_by_field_id(fields.RIGHT))
            met = _met(function, next((side for side in sides if side is not None and side.id != node.id), None))
            if met not in (LITERAL, INTEGER):
                return met
            node = parent
        elif parent.type == "assignment_expression":
            is_arithmetic = function.operator(parent) in ("+=", "-=", "*=", "/=")
            return _if_type(_met(function, parent.child_by_field_id(fields.LEFT))) if is_arithmetic else UNKNOWN
        elif parent.type == "conditional_expression":
            return _if_type(_met(function, _other_choice(parent, node)))
        else:
            break
    return UNKNOWN


def _if_type(met: str) -> str:
    return UNKNOWN if met in (LITERAL, INTEGER) else met


def _met(function: Function, other: Node | None) -> str:
    """Return the type of the other operand of a literal."""
    if other is None or _is_constant_text(function.source(other)):
        return LITERAL
    return value_type(function, other) if function.is_template_of_types else FLOAT


def _other_choice(choice: Node, node: Node) -> Node | None:
    """Return the other branch of ``c ? x : 0.0``."""
    branches = (choice.child_by_field_id(fields.CONSEQUENCE), choice.child_by_field_id(fields.ALTERNATIVE))
    others = [branch for branch in branches if branch is not None and branch.id != node.id]
    return others[0] if len(others) == 1 else None


def _given_type(function: Function, call: Node) -> str:
    """Return the type of the arguments that are not double literals; `UNKNOWN` without any."""
    others = [a for a in function.arguments(call) if not _is_double(function, a)]
    if not others or not function.is_template_of_types:
        return FLOAT if others else UNKNOWN
    types = {value_type(function, other) for other in others} - {INTEGER, LITERAL}
    return types.pop() if len(types) == 1 else UNKNOWN


def _converted(function: Function, literals: list[Node], type_name: str) -> QuickFix:
    edits = tuple(function.file.parsed.replace(node, f"{type_name}({function.source(node)})") for node in literals)
    return QuickFix(f"Convert to `{type_name}`", edits, False)


def _is_constant_text(text: str) -> bool:
    return re.search(r"[A-Za-z_]\w*", re.sub(r"\d[\w.']*(?:[eE][+-]?\d+)?[fFuUlL]*", "", text)) is None


def _is_double(function: Function, node: Node) -> bool:
    return is_double_literal(function.source(node).strip("()- "))


def _fits_float(text: str) -> bool:
    value = abs(float(text.replace("'", "")))
    return value == 0 or MIN_NORMAL_FLOAT <= value <= MAX_FLOAT


def _float_call_fix(function: Function, call: Node, new_name: str, literals: list[Node]) -> tuple[QuickFix, ...]:
    callee = call.child_by_field_id(fields.FUNCTION)
    texts = [function.source(node).strip("()- ") for node in literals]
    if callee is None or not all(_fits_float(text) for text in texts):
        return ()
    edits = [function.file.parsed.replace(callee, new_name)]
    for node in literals:
        end = node.start_byte + len(function.source(node).rstrip(") ").encode())
        edits.append(function.file.parsed.insert(end, "f"))
    return (QuickFix(f"Use `{new_name}` and float literals", tuple(edits), _is_float_call(function, call)),)


def _is_float_call(function: Function, call: Node) -> bool:
    """Return whether every non-literal argument is provably a float. With integers the double overload may be
    intended."""
    names = [a for a in function.arguments(call) if not _is_double(function, a)]
    return all(_is_float_value(function, node) for node in names)


def _is_float_value(function: Function, node: Node) -> bool:
    if node.type == "subscript_expression":
        node = node.child_by_field_id(fields.ARGUMENT) or node
    variable = function.variable(node)
    return variable is not None and variable.element == "float"
