"""KL274 and KL275: indices and sizes that 32 bits do not hold."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import WARNING, declare, hit
from kernel_lsp.rules.cuda.host.integer_values import known_value
from kernel_lsp.rules.cuda.memory.pointers import index_of
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.variables import WIDE_INTEGERS, Variable, parameters_of, type_bytes, type_facts
from kernel_lsp.rules.rule import Hit

MAX_NARROW = 2**31 - 1
MAX_DEPTH = 20
"""Maximum nesting of an expression whose width is asked for."""
_NARROWER = frozenset(("short", "unsigned short", "int16_t", "uint16_t", "char", "unsigned char", "int8_t", "uint8_t"))


@declare(
    "KL274",
    "narrowed-index",
    WARNING,
    on="device",
    needs=("size_t int64_t ptrdiff_t long short int16_t int8_t char", "[ ("),
    summary="A 64-bit index or offset is stored in 32 bits, or an index in 16",
    why="""
    A product that was computed in 64 bits loses its upper half when an `int` holds it, when it is cast to one, or when
    a function takes it as one. From 2³¹ elements on the index is negative or that of another element. Keep the type.
    """,
    bad="""
    __global__ void gather(const float* __restrict__ x, float* __restrict__ out, int64_t n, int64_t stride) {
        int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
        int from = blockIdx.y * stride + i;
        if (i < n) out[i] = x[from];
    }
    """,
    good="""
    __global__ void gather(const float* __restrict__ x, float* __restrict__ out, int64_t n, int64_t stride) {
        int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
        int64_t from = blockIdx.y * stride + i;
        if (i < n) out[i] = x[from];
    }
    """,
)
def narrowed_index(function: Function) -> Iterator[Hit]:
    indices = [index for subscript in function.subscripts if (index := index_of(subscript)) is not None]
    names = frozenset(name for index in indices for name in function.names_in(index))
    for variable in function.all_variables():
        value = variable.value
        if value is None or not variable.is_integer or variable.is_wide_integer:
            continue
        is_index = variable.name in names
        is_product = value.type == "binary_expression" and function.operator(value) == "*"
        value = _cast_value(function, value) or value
        if (is_index or is_product) and _is_large(function, value):
            yield hit(function.file, value, f"32-bit `{variable.name}` holds a 64-bit index: it overflows from 2^31 on")
        elif is_index and variable.element in _NARROWER and _counts_to_size(function, variable):
            yield hit(function.file, variable.declaration, f"`{variable.element}` index `{variable.name}` overflows")
    casts = (node for index in indices for node in _casts_in(function, index))
    for cast in {node.id: node for node in casts}.values():
        yield hit(function.file, cast, "a cast to 32 bits narrows a 64-bit index: it overflows from 2^31 on")
    for call in function.calls:
        yield from _narrowed_arguments(function, call)


@declare(
    "KL275",
    "size-overflow",
    WARNING,
    on="host",
    needs=("*",),
    summary="A product of sizes overflows 32 bits before it is widened, or as it is stored",
    why="""
    A product of `int`s is an `int`, also where the result goes to a `size_t`: 65536 * 65536 is 0. Widen the first
    factor: `static_cast<size_t>(rows) * cols`.
    """,
    bad="""
    cudaError_t allocate(float** x, int rows, int cols) {
        size_t n = rows * cols;
        return cudaMalloc(x, n * sizeof(float));
    }
    """,
    good="""
    cudaError_t allocate(float** x, int rows, int cols) {
        size_t n = static_cast<size_t>(rows) * cols;
        return cudaMalloc(x, n * sizeof(float));
    }
    """,
)
def size_overflow(function: Function) -> Iterator[Hit]:
    for variable in function.all_variables():
        value = variable.value
        if value is None or not variable.is_integer or value.type != "binary_expression":
            continue
        if variable.is_wide_integer and (product := _open_product(function, value)) is not None:
            yield hit(function.file, product, "32-bit overflow: the product of sizes wraps before it is widened")
        elif variable.element == "int" and _is_size_of_open_product(function, variable, value):
            message = f"32-bit `{variable.name}` holds a number of bytes: it overflows from 2 GiB on"
            yield hit(function.file, value, message)
    for product in _outermost_products(function):
        number = _narrow_number(function, product)
        if number is not None and number > MAX_NARROW:
            yield hit(function.file, product, f"32-bit overflow: the product is {number:,}")


def _counts_to_size(function: Function, variable: Variable) -> bool:
    """Return whether a loop's counter is compared with a parameter."""
    loop = function.parent(variable.declaration)
    condition = None if loop is None else loop.child_by_field_id(fields.CONDITION)
    return not function.names_in(condition).isdisjoint(each.name for each in function.parameters)


def _is_large(function: Function, node: Node | None, depth: int = 0) -> bool:
    """Return whether a value is a 64-bit sum or product, or a name for one. A remainder or a quotient is small."""
    if node is None or depth > MAX_DEPTH:
        return False
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        return _is_large(function, node.named_children[0], depth + 1)
    if node.type == "identifier":
        variable = function.variable(node)
        is_wide = variable is not None and variable.is_wide_integer and variable not in function.parameters
        return variable is not None and is_wide and _is_large(function, variable.value, depth + 1)
    operator = function.operator(node) if node.type == "binary_expression" else ""
    sides = [node.child_by_field_id(part) for part in (fields.LEFT, fields.RIGHT)]
    if operator == "*":
        return "sizeof" not in function.source(node) and any(_is_wide(function, side, depth + 1) for side in sides)
    return operator in ("+", "-") and any(_is_large(function, side, depth + 1) for side in sides)


def _is_wide(function: Function, node: Node | None, depth: int = 0) -> bool:
    """Return whether the type of an expression is an integer of 64 bits."""
    if node is None or depth > MAX_DEPTH:
        return False
    if node.type == "identifier":
        variable = function.variable(node)
        return function.source(node) in _counters(function) if variable is None else variable.is_wide_integer
    if node.type == "subscript_expression":
        array = function.variable(node.child_by_field_id(fields.ARGUMENT))
        return array is not None and (array.is_pointer or array.is_array) and type_facts(array.type_text).is_wide
    target = _cast_target(function, node)
    if target:
        return target in WIDE_INTEGERS or "long" in target
    if node.type in ("sizeof_expression", "call_expression"):
        return node.type == "sizeof_expression" or function.callee(node).endswith((".numel", ".size", ".stride"))
    inside = node.named_children if node.type in ("binary_expression", "parenthesized_expression") else []
    return any(_is_wide(function, child, depth + 1) for child in inside)


def _counters(function: Function) -> frozenset[str]:
    """Return the 64-bit counters that macros of the file declare by an argument: ``KERNEL_LOOP(i, n) { ... }``."""
    cache = function.caches.setdefault("counters", {})
    if not cache:
        cache[""] = frozenset(_counters_in(function))
    return cache[""]


def _counters_in(function: Function) -> Iterator[str]:
    for name, (parameters, text) in function.file.macros.items():
        for place, parameter in enumerate(parameters or ()):
            if name in function.text and re.search(rf"\bfor\s*\(\s*{_WIDE}\s+{parameter}\s*=", text):
                uses = re.finditer(rf"\b{name}\s*\(([^();{{}}]*)", function.text)
                yield from (given[place].strip() for use in uses if place < len(given := use[1].split(",")))


_WIDE = r"(?:const\s+)?(?:std::)?(?:u?int64_t|size_t|ptrdiff_t|(?:unsigned\s+)?long\s+long)"


def _cast_target(function: Function, node: Node) -> str:
    """Return the type in ``(int)x``, ``static_cast<int>(x)`` or ``int(x)``; an empty text for other expressions."""
    if node.type == "cast_expression":
        target = node.child_by_field_id(fields.TYPE)
        return "" if target is None else function.source(target).removeprefix("std::")
    if node.type != "call_expression" or len(function.arguments(node)) != 1:
        return ""
    callee = node.child_by_field_id(fields.FUNCTION)
    text = "" if callee is None else function.source(callee)
    name = text.partition("<")[2].rpartition(">")[0] if text.startswith("static_cast") else text
    name = name.strip().removeprefix("std::")
    return name if type_facts(name).is_integer and type_bytes(name) is not None else ""


def _cast_value(function: Function, node: Node) -> Node | None:
    """Return what the node casts to an integer of at most 32 bits; None for other nodes."""
    target = _cast_target(function, node)
    if not target or target in WIDE_INTEGERS or "long" in target:
        return None
    return node.child_by_field_id(fields.VALUE) or next(iter(function.arguments(node)), None)


def _casts_in(function: Function, index: Node) -> Iterator[Node]:
    """Yield the casts to 32 bits of a large value within an index."""
    waiting = [index]
    while waiting:
        node = waiting.pop()
        if _is_large(function, _cast_value(function, node)):
            yield node
        waiting += node.named_children


def _narrowed_arguments(function: Function, call: Node) -> Iterator[Hit]:
    """Yield the large values that a function of the file takes as 32-bit integers."""
    arguments = function.arguments(call)
    if not any(_is_large(function, argument) for argument in arguments):
        return
    callees = function.file.functions_by_name.get(function.callee(call).rpartition("::")[2], [])
    if len(callees) != 1 or callees[0].declarator is None or callees[0].body is None:
        return
    parameters = parameters_of(function.file.parsed, callees[0].declarator, callees[0].body)
    for parameter, argument in zip(parameters, arguments, strict=False):
        if parameter.is_integer and not parameter.is_wide_integer and _is_large(function, argument):
            message = f"`{parameter.name}` of `{function.callee(call)}` narrows a 64-bit index to 32 bits"
            yield hit(function.file, argument, message)


def _outermost_products(function: Function) -> Iterator[Node]:
    waiting = [function.body]
    while waiting:
        node = waiting.pop()
        if node.type == "binary_expression" and function.operator(node) == "*":
            yield node
        else:
            waiting += node.named_children


def _narrow_number(function: Function, node: Node) -> int | None:
    """Return the value of the widest part of a product that is computed in 32 bits; None where it is unknown."""
    if _is_wide(function, node):
        left = node.child_by_field_id(fields.LEFT)
        is_product = left is not None and left.type == "binary_expression" and function.operator(left) == "*"
        return _narrow_number(function, left) if is_product and left is not None else None
    factors = _factors(function, node)
    is_whole = all(_is_narrow(function, factor) for factor in factors)
    return known_value(function, node) if is_whole else None


def _is_narrow(function: Function, node: Node) -> bool:
    """Return whether a factor is an `int`: a literal without a suffix, or a name for one."""
    if node.type == "number_literal":
        return function.source(node).replace("'", "").isdigit()
    variable = function.variable(node)
    if node.type != "identifier" or (variable is not None and (not variable.is_integer or variable.is_wide_integer)):
        return False
    return variable is not None or function.source(node) in function.file.constants


def _factors(function: Function, node: Node) -> list[Node]:
    if node.type != "binary_expression" or function.operator(node) != "*":
        return [node]
    sides = (node.child_by_field_id(part) for part in (fields.LEFT, fields.RIGHT))
    return [factor for side in sides if side is not None for factor in _factors(function, side)]


def _open_product(function: Function, value: Node) -> Node | None:
    """Return the part of a product, computed in 32 bits, that has two sizes or more that the text does not know."""
    node: Node | None = value
    while node is not None and _is_wide(function, node):
        node = node.child_by_field_id(fields.LEFT) if function.operator(node) == "*" else None
    factors = [] if node is None or function.operator(node) != "*" else _factors(function, node)
    is_of_sizes = len(factors) > 1 and all(_is_narrow(function, factor) for factor in factors)
    return node if is_of_sizes and len([f for f in factors if known_value(function, f) is None]) > 1 else None


def _is_size_of_open_product(function: Function, variable: Variable, value: Node) -> bool:
    """Return whether an `int` is a number of bytes of two unknown sizes or more, which an allocation or copy takes."""
    factors = _factors(function, value)
    sizes = [factor for factor in factors if factor.type != "sizeof_expression"]
    if len(sizes) == len(factors) or len([each for each in sizes if known_value(function, each) is None]) < 2:
        return False
    calls = function.calls_with(b"cudaM")
    return any(variable.name in function.names_in(argument) for call in calls for argument in function.arguments(call))
