"""KL271: results that begin with the wrong value, or with none."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import WARNING, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.variables import Variable, parameters_of, type_bytes
from kernel_lsp.rules.rule import Hit

_ZERO = re.compile(r"[-+]?0(?:\.0*)?[fFlLuU]*|(?:\w+\()?0(?:\.0*)?f?\)")
_SMALLEST = re.compile(r"\b(?:FLT_MIN|DBL_MIN)$|numeric_limits<(?:float|double|T|scalar_t)>::min\(\)$")
_LARGEST = re.compile(
    r"^(?:FLT_MAX|DBL_MAX|INFINITY|CUDART_INF(?:_F)?|INT_MAX)$"
    r"|^(?:std::|cuda::std::)?numeric_limits<\w+>::(?:max|infinity)\(\)$"
)
_LOWEST = re.compile(r"^-\s*(?:FLT_MAX|DBL_MAX|INFINITY|CUDART_INF(?:_F)?)$|numeric_limits<\w+>::lowest\(\)$")
_MAXIMA = ("max", "fmaxf", "fmax", "__hmax", "std::max")
_MINIMA = ("min", "fminf", "fmin", "__hmin", "std::min")
_FLOATS = ("float", "double", "half", "__half", "__nv_bfloat16", "scalar_t", "T")
_NOT_NEGATIVE = re.compile(
    r"abs|prob|mask|weight|count|len|dist|norm|mag|energy|power|sq|size|area|score|conf", re.IGNORECASE
)
_LOADS = re.compile(r"(?:__ldg|__half2float|__bfloat162float|static_cast<\w+>|float|to_float)\(")
_TAIL = re.compile(r"\b(\w+)\[[^\]]*\]\s*=\s*[^;?=]*\?\s*[^;:?]*:\s*(?:\w+\()?0(?:\.0*)?f?\)?\s*;")
_PRODUCT = re.compile(r"(?<!\w)(\w+)\[[^\]]*\]\s*\*=\s*\1\[")
_MINIMUM = re.compile(r"min(?:(?<=\bmin)|(?<=\bfmin))\w*\(\s*(\w+)\[[^\]]*\],\s*\1\[")


@declare(
    "KL271",
    "wrong-start-value",
    WARNING,
    on="device",
    needs=("max min fmaxf fminf += *= -= > <",),
    summary="A sum, product, maximum or minimum begins with the wrong value, or with none",
    why="""
    A local variable without a value holds what the register held. A maximum that begins with 0, or with `FLT_MIN`, the
    smallest positive number, is wrong for negative numbers, and a minimum or product that begins with 0 stays 0.
    """,
    bad="""
    __global__ void largest(const float* __restrict__ x, float* __restrict__ out, int n) {
        float best = 0.0f;
        for (int i = 0; i < n; ++i) best = fmaxf(best, x[i]);
        if (threadIdx.x == 0) out[0] = best;
    }
    """,
    good="""
    __global__ void largest(const float* __restrict__ x, float* __restrict__ out, int n) {
        float best = -INFINITY;
        for (int i = 0; i < n; ++i) best = fmaxf(best, x[i]);
        if (threadIdx.x == 0) out[0] = best;
    }
    """,
)
def wrong_start_value(function: Function) -> Iterator[Hit]:
    for variable in function.all_variables():
        if variable in function.parameters or variable.is_pointer or variable.is_shared:
            continue
        if variable.is_array:
            yield from _elements_without_value(function, variable)
            continue
        if variable.value is None:
            if type_bytes(variable.element) is not None and "static" not in variable.words:
                yield from _without_value(function, variable)
            continue
        message = _wrong_start(function, variable)
        if message:
            yield hit(function.file, variable.declaration, message)
    yield from _tails(function)


def _without_value(function: Function, variable: Variable) -> Iterator[Hit]:
    """Yield the first update of a variable that nothing has set: ``float sum; ... sum += x``."""
    if len(function.named(variable.name)) != 1 or variable.declaration.parent is None:
        return
    if "extern" in variable.words or variable.declaration.type != "declaration":
        return
    places = (place for place in function.mentions(variable.name) if place > variable.name_node.start_byte)
    first = next(places, None)
    node = None if first is None else function.body.descendant_for_byte_range(first, first + len(variable.name))
    write = function.parent(node)
    if node is not None and write is not None and write.type == "argument_list":
        if _reads_reference(function, write, node):
            yield hit(function.file, node, f"`{variable.name}` has no value yet: set it where it is declared")
        return
    if node is None or write is None or write.type != "assignment_expression":
        return
    left = write.child_by_field_id(fields.LEFT)
    if left is None or left.id != node.id:
        return
    operator, right = function.operator(write), write.child_by_field_id(fields.RIGHT)
    reads_itself = operator == "=" and variable.name in function.names_in(right)
    if operator in ("+=", "-=", "*=", "|=", "&=", "^=") or reads_itself:
        yield hit(function.file, write, f"`{variable.name}` has no value yet: set it where it is declared")


def _elements_without_value(function: Function, array: Variable) -> Iterator[Hit]:
    """Yield the update of a local array's elements that nothing else sets: ``float acc[4]; ... acc[i] += x``."""
    is_plain = type_bytes(array.element) is not None and {"static", "extern", "__constant__"}.isdisjoint(array.words)
    if array.value is not None or not is_plain or len(function.named(array.name)) != 1 or "asm" in function.text:
        return
    updates: list[Node] = []
    for place in function.mentions(array.name):
        node = function.body.descendant_for_byte_range(place, place + len(array.name))
        if node is None or place == array.name_node.start_byte or node.type != "identifier":
            continue
        element, parent, n_indices = node, function.parent(node), 0
        while parent is not None and parent.type == "subscript_expression":
            element, parent, n_indices = parent, function.parent(parent), n_indices + 1
        left = None if parent is None else parent.child_by_field_id(fields.LEFT)
        is_set = left is not None and left.id == element.id and parent is not None
        if n_indices != len(array.sizes) or parent is None or parent.type in _MAY_SET:
            return
        if is_set and parent.type == "assignment_expression":
            if function.operator(parent) == "=" and array.name not in function.names_in(
                parent.child_by_field_id(fields.RIGHT)
            ):
                return
            updates.append(parent)
    if updates:
        yield hit(function.file, array.declaration, f"`{array.name}` has no value yet: set it where it is declared")


_MAY_SET = frozenset(
    ("argument_list", "pointer_expression", "update_expression", "init_declarator", "field_expression")
)


def _reads_reference(function: Function, given: Node, node: Node) -> bool:
    """Return whether a function of the file takes the argument by reference, and reads it before it sets it."""
    call = function.parent(given)
    callees = function.file.functions_by_name.get(function.callee(call), []) if call is not None else []
    if len(callees) != 1 or callees[0].declarator is None or callees[0].body is None:
        return False
    parameters = parameters_of(function.file.parsed, callees[0].declarator, callees[0].body)
    pairs = zip(parameters, given.named_children, strict=False)
    name = next((each.name for each, argument in pairs if argument.id == node.id and each.is_reference), "")
    first = re.search(rf"\b{name}\b\s*(=(?!=))?", function.source(callees[0].body)) if name else None
    return first is not None and not first[1]


def _wrong_start(function: Function, variable: Variable) -> str:
    """Return the message for a start value that is not neutral, or an empty text."""
    value = variable.value
    if value is not None and value.type == "conditional_expression":
        value = value.child_by_field_id(fields.ALTERNATIVE)
    start = function.source(value).strip("{} ") if value is not None else ""
    is_zero = _ZERO.fullmatch(start) is not None
    if not (is_zero or _SMALLEST.search(start) or _LARGEST.search(start) or _LOWEST.search(start)):
        return ""
    for write in variable.writes:
        right = write.child_by_field_id(fields.RIGHT) if write.type == "assignment_expression" else None
        if right is None:
            continue
        kind, other = _extremum(function, variable, write, right)
        if kind == "min" and is_zero and other is not None and _is_of_another_thread(function, variable, other):
            return "a minimum over threads of which some begin with 0: begin with the largest number"
        if function.loop_around(write) is None or value is not variable.value:
            continue
        if function.operator(write) == "*=":
            is_product = is_zero and all(function.operator(each) == "*=" for each in variable.writes)
            return f"`{variable.name}` begins with 0, and a product with 0 stays 0: begin with 1" if is_product else ""
        raw = None if other is None else _raw_load(function, other)
        if kind == "max" and (_SMALLEST.search(start) or _LARGEST.search(start)):
            return f"a maximum that begins with `{start}` is wrong for negative numbers: begin with -INFINITY"
        if kind == "min" and (_LOWEST.search(start) or (is_zero and raw is not None)):
            return f"a minimum that begins with `{start}` misses larger numbers: begin with the largest one"
        is_float = raw is not None and raw.element in _FLOATS
        if kind == "max" and is_zero and is_float and raw is not None and not _NOT_NEGATIVE.search(raw.name):
            return "a maximum that begins with 0 is wrong for negative numbers: begin with -INFINITY"
    return ""


def _is_of_another_thread(function: Function, variable: Variable, node: Node) -> bool:
    """Return whether the value is the variable of another lane: ``__shfl_down_sync(mask, v, 1)``."""
    return "shfl" in function.callee(node) and variable.name in function.names_in(node)


def _extremum(function: Function, variable: Variable, write: Node, right: Node) -> tuple[str, Node | None]:
    """Return ``max`` or ``min`` and the other operand, of ``m = fmaxf(m, x)`` or ``if (x > m) m = x``."""
    if right.type == "call_expression":
        callee, arguments = function.callee(right), function.arguments(right)
        others = [each for each in arguments if function.source(each) != variable.name]
        kind = "max" if callee in _MAXIMA else "min" if callee in _MINIMA else ""
        return (kind, others[0]) if kind and len(arguments) == 2 and len(others) == 1 else ("", None)
    branch = next(function.branches_around(write), None)
    condition = None if branch is None else branch.child_by_field_id(fields.CONDITION)
    inner = condition.named_children[0] if condition is not None and condition.named_children else None
    if inner is None or function.operator(inner) not in ("<", ">"):
        return "", None
    sides = [function.source(side) for f in (fields.LEFT, fields.RIGHT) if (side := inner.child_by_field_id(f))]
    if sorted(sides) != sorted((variable.name, function.source(right))):
        return "", None
    return ("max" if (function.operator(inner) == ">") == (sides[1] == variable.name) else "min"), right


def _raw_load(function: Function, node: Node, depth: int = 0) -> Variable | None:
    """Return the array of which the value is an element as it is."""
    if node.type == "subscript_expression":
        array = function.variable(node.child_by_field_id(fields.ARGUMENT))
        return array if array is not None and array.is_pointer else None
    variable = function.variable(node)
    if variable is not None and variable.value is not None and not variable.writes and depth < 3:
        return _raw_load(function, variable.value, depth + 1)
    if node.type == "call_expression" and len(function.arguments(node)) == 1 and _LOADS.match(function.source(node)):
        argument = function.arguments(node)[0]
        inner = argument.child_by_field_id(fields.ARGUMENT) if argument.type == "pointer_expression" else argument
        return None if inner is None else _raw_load(function, inner, depth + 1)
    return None


def _tails(function: Function) -> Iterator[Hit]:
    """Yield the fill of an array's tail with 0 where the elements are then multiplied, or their minimum is taken."""
    tails = list(_TAIL.finditer(function.text)) if "?" in function.text else []
    combined = [set(pattern.findall(function.text)) for pattern in (_PRODUCT, _MINIMUM)] if tails else []
    for found in tails:
        is_product, is_minimum = (found[1] in names for names in combined)
        if is_product or is_minimum:
            start = function.node.start_byte + len(function.text[: found.start()].encode())
            node = function.body.descendant_for_byte_range(start, start + len(found[1]))
            what = "a product" if is_product else "a minimum"
            if node is not None:
                yield hit(function.file, node, f"0 is not neutral for {what}: fill the tail with another value")
