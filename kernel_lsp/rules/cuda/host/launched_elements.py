"""Compare the threads of a launch with the elements of the arrays that its kernel indexes by them, unchecked."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda.host.integer_values import calls_by_others, known_value
from kernel_lsp.rules.cuda.host.memory_sides import pointer_of
from kernel_lsp.rules.cuda.host.transfers import ALLOCATIONS, RESIZES, product_of
from kernel_lsp.rules.cuda.literals import integer_literal
from kernel_lsp.rules.cuda.members import plain_name
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.variables import Variable, type_bytes

_CONTAINER = re.compile(r"\b(\w+)\s*<[^;<>{}]*>\s+(\w+)\s*[({]\s*(\w+)\s*[)}]\s*;")
_ON_GPU = "device"


def elements_of(function: Function) -> dict[str, int]:
    """Return the elements of each array that the function allocates, by the text that a launch passes it with."""
    found = dict(_allocated(function))
    for call, callee, inner, given in calls_by_others(function, tuple(ALLOCATIONS)):
        arguments = callee.arguments(inner)
        pointer = pointer_of(callee, arguments[0], 2) if len(arguments) > 1 else None
        numbers = {name: known_value(function, argument) for name, argument in given.items()}
        callee.given = {name: number for name, number in numbers.items() if number is not None}
        n = None if pointer is None else _count(callee, arguments[1], pointer)
        if pointer is not None and n is not None:
            passed = given.get(pointer.name)
            target = _assigned(function, call) if passed is None else function.source(passed).lstrip("& ")
            found |= {target: n} if function.named(target) else {}
    return found | dict(_contained(function))


def _allocated(function: Function) -> Iterator[tuple[str, int]]:
    """Yield the pointers that this function allocates itself."""
    for call in function.calls_named(tuple(ALLOCATIONS)):
        arguments = function.arguments(call)
        pointer = pointer_of(function, arguments[0], 2) if len(arguments) > 1 else None
        n = None if pointer is None else _count(function, arguments[1], pointer)
        if pointer is not None and function.named(pointer.name) and n is not None:
            yield pointer.name, n


def _count(function: Function, size: Node, pointer: Variable) -> int | None:
    """Return the elements of an allocation: of ``n * sizeof(T)`` those of any type."""
    n_bytes, element = known_value(function, size), function.file.structure_bytes.get(pointer.element)
    width = type_bytes(pointer.element) or element
    if n_bytes is not None and width:
        return n_bytes // width
    factors = product_of(function, size)
    counts = [each for each in factors if each.type != "sizeof_expression"]
    held = [function.source(each).removeprefix("sizeof").strip(" ()") for each in factors if each not in counts]
    numbers = [known_value(function, each) for each in counts]
    is_of_elements = len(held) == 1 and plain_name(held[0]) in (plain_name(pointer.element), pointer.name)
    return math.prod(each or 0 for each in numbers) if is_of_elements and numbers and None not in numbers else None


def _assigned(function: Function, call: Node) -> str:
    """Return the variable that holds the result of a call, or an empty text."""
    known = (each for each in function.all_variables() if each.value is not None and not each.writes)
    return next((each.name for each in known if each.value is not None and each.value.id == call.id), "")


def _contained(function: Function) -> Iterator[tuple[str, int]]:
    """Yield the texts for the pointer of a container with a number of elements: ``x.data().get()``."""
    sides = function.file.accessor_sides
    for structure, name, size in _CONTAINER.findall(function.text):
        methods = [method for method, owner, side in sides if (owner, side) == (structure, _ON_GPU)]
        is_known = structure == "device_vector" or (bool(methods) and _allocates_as_many(function, structure))
        n = _number(function, size) if is_known else None
        if n is not None and not re.search(rf"\b{name}\.{RESIZES}", function.text):
            for method in (*methods, "data().get"):
                yield f"{name}.{method}()", n
            yield f"thrust::raw_pointer_cast({name}.data())", n


def _allocates_as_many(function: Function, structure: str) -> bool:
    """Return whether a class of the file allocates as many elements as its constructor is given."""
    text = function.file.parsed.text
    made = re.search(rf"\b{structure}\s*\(\s*[\w:\s]*?(\w+)\s*\)([^;{{}}]*)\{{([^}}]*)", text)
    size = (
        None
        if made is None
        else re.search(r"cudaMalloc\w*\([^;,]*,\s*(?:(\w+)\s*\*\s*)?sizeof\s*\(\w+\)(?:\s*\*\s*(\w+))?\s*\)", made[3])
    )
    if made is None or size is None:
        return False
    named = size[1] or size[2]
    return named == made[1] or re.search(rf"\b{named}\s*[({{]\s*{made[1]}\s*[)}}]", made[2]) is not None


def _number(function: Function, name: str) -> int | None:
    """Return the value of a literal, of a constant of the file, or of a variable that is set once."""
    known, number = function.named(name), integer_literal(name)
    if len(known) == 1:
        return None if known[0].writes else known_value(function, known[0].value)
    return function.file.constants.get(name) if number is None else number


def too_many(function: Function, call: Node, n_threads: int | None, elements: dict[str, int]) -> str:
    """Return the message for a launch with more threads than an array has elements, or an empty text. The kernel must
    be in this file, have no bounds checks, and access the array at the thread's index across the grid."""
    kernel = function.launched(call)
    if n_threads is None or not elements or kernel not in function.file.unchecked_kernels:
        return ""
    for place, argument in enumerate(function.arguments(call)):
        n = elements.get(function.source(argument))
        if n is not None and n_threads > n and (kernel, place) in function.file.indexed_places:
            return f"launch has {n_threads} threads for the {n} elements of `{function.source(argument)}`"
    return ""
