"""Infer the type of an expression from the text, as far as needed to separate floats and type parameters from
doubles."""

from __future__ import annotations

import re

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import MAX_DEPTH
from kernel_lsp.rules.rule import words

FLOAT, INTEGER, LITERAL, UNKNOWN = "float", "int", "literal", ""
"""Results of `value_type` besides the names of type parameters. A literal is a double whose effect depends on its
other operands."""
_DOUBLE_LITERAL = re.compile(r"(?:\d[\d']*\.[\d']*|\.\d[\d']*|\d[\d']*(?=[eE]))(?:[eE][+-]?\d+)?")
_FLOAT_FUNCTIONS = words(
    """
    expf exp2f exp10f expm1f logf log2f log10f log1pf sqrtf rsqrtf cbrtf powf sinf cosf tanf sinhf coshf tanhf erff
    erfcf fabsf floorf ceilf roundf rintf truncf fmodf atanf atan2f hypotf fmaf fmaxf fminf copysignf normcdff
    __expf __exp10f __logf __log2f __log10f __sinf __cosf __tanf __powf __fdividef __fmaf_rn __frcp_rn __fsqrt_rn
    __half2float __bfloat162float __low2float __high2float __int2float_rn __uint2float_rn __int_as_float
    """
)
_OVERLOADED = words(
    """
    exp exp2 expm1 log log2 log10 log1p sqrt rsqrt cbrt pow sin cos tan sinh cosh tanh erf erfc fabs floor ceil round
    fmod fma fmax fmin max min abs __ldg
    """
)
"""Overloaded functions that return the type of their arguments."""
_COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!=", "&&", "||"))
_CAST_TARGET = re.compile(r"static_cast\s*<\s*(?:const\s+)?([\w:]+)\s*>")


def type_parameters(function: Function) -> frozenset[str]:
    """Return the names of the function's template type parameters."""
    if "type parameters" not in function.caches:
        function.caches["type parameters"] = {0: _type_parameters(function)}
    return function.caches["type parameters"][0]


def value_type(function: Function, node: Node | None, depth: int = 0) -> str:
    """Return `FLOAT`, `INTEGER`, `LITERAL` or a type parameter; `UNKNOWN` for everything else."""
    if node is None or depth > MAX_DEPTH:
        return UNKNOWN
    cache = function.caches.setdefault("value types", {})
    if node.id not in cache:
        cache[node.id] = UNKNOWN  # guard against a name defined by itself
        reader = _READERS.get(node.type)
        cache[node.id] = UNKNOWN if reader is None else reader(function, node, depth + 1)
    return cache[node.id]


def is_double_literal(text: str) -> bool:
    """Return whether the text is a floating-point literal without a suffix."""
    return _DOUBLE_LITERAL.fullmatch(text) is not None


# --- below: one kind of node each


def _type_parameters(function: Function) -> frozenset[str]:
    outer = function.definition.outer
    parameters = outer.child_by_field_id(fields.PARAMETERS) if outer.type == "template_declaration" else None
    declared = () if parameters is None else parameters.named_children
    texts = [function.source(child) for child in declared if "type_parameter" in child.type]
    return frozenset(match[1] for text in texts if (match := re.match(r"(?:typename|class)\s+(\w+)", text)))


def _named(function: Function, type_text: str) -> str:
    """Return the value type named by a type's text."""
    if type_text == "float" or type_text in type_parameters(function):
        return type_text
    return INTEGER if type_text in _INTEGERS else UNKNOWN


_INTEGERS = words("int unsigned long short size_t int64_t int32_t uint32_t uint64_t bool char uint8_t int8_t")


def _of_literal(function: Function, node: Node, depth: int) -> str:
    text = function.source(node)
    if is_double_literal(text):
        return LITERAL
    return FLOAT if text[-1:] in "fF" and not text.startswith(("0x", "0X")) else INTEGER


def _of_name(function: Function, node: Node, depth: int) -> str:
    variable = function.variable(node)
    if variable is None or variable.is_pointer or variable.is_array:
        return UNKNOWN
    if variable.element == "auto":
        return value_type(function, variable.value, depth)
    return INTEGER if variable.is_integer else _named(function, variable.element)


def _of_element(function: Function, node: Node, depth: int) -> str:
    """Return the type of ``x[i]`` or ``tile[i][j]``."""
    array: Node | None = node
    while array is not None and array.type == "subscript_expression":
        array = array.child_by_field_id(fields.ARGUMENT)
    variable = function.variable(array)
    return UNKNOWN if variable is None else _named(function, variable.element)


def _of_inner(function: Function, node: Node, depth: int) -> str:
    inner = node.child_by_field_id(fields.ARGUMENT) or (node.named_children[-1] if node.named_children else None)
    return value_type(function, inner, depth)


def _of_cast(function: Function, node: Node, depth: int) -> str:
    target = node.child_by_field_id(fields.TYPE)
    return UNKNOWN if target is None else _named(function, function.source(target).strip())


def _of_call(function: Function, node: Node, depth: int) -> str:
    name = function.callee(node).removeprefix("std::").removeprefix("::")
    arguments = function.arguments(node)
    if name == "static_cast":
        match = _CAST_TARGET.match(function.source(node))
        return UNKNOWN if match is None else _named(function, match[1])
    if name in _FLOAT_FUNCTIONS:
        return FLOAT
    if name in _OVERLOADED and arguments:
        return _joined(function, [value_type(function, argument, depth) for argument in arguments])
    return _named(function, name)


def _of_binary(function: Function, node: Node, depth: int) -> str:
    if function.operator(node) in _COMPARISONS:
        return INTEGER
    sides = (node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT))
    return _joined(function, [value_type(function, side, depth) for side in sides])


def _of_choice(function: Function, node: Node, depth: int) -> str:
    branches = (node.child_by_field_id(fields.CONSEQUENCE), node.child_by_field_id(fields.ALTERNATIVE))
    return _joined(function, [value_type(function, branch, depth) for branch in branches])


def _joined(function: Function, types: list[str]) -> str:
    """Return the intended type of arithmetic on these types. Literals and integers adopt the type of the rest."""
    if UNKNOWN in types:
        return UNKNOWN
    parameters = [each for each in types if each in type_parameters(function)]
    if parameters:
        return parameters[0]
    return next((each for each in (FLOAT, LITERAL) if each in types), INTEGER)


_READERS = {
    "number_literal": _of_literal,
    "identifier": _of_name,
    "subscript_expression": _of_element,
    "parenthesized_expression": _of_inner,
    "unary_expression": _of_inner,
    "cast_expression": _of_cast,
    "call_expression": _of_call,
    "binary_expression": _of_binary,
    "conditional_expression": _of_choice,
}
