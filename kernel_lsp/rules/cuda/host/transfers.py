"""KL254 and KL255: allocations and copies of host code, checked against the sizes of its arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import ERROR, WARNING, declare, hit, launches_in, rewrite
from kernel_lsp.rules.cuda.host.integer_values import calls_by_others, definition, expanded, known_value, launch_parts
from kernel_lsp.rules.cuda.host.memory_sides import pointer_of, side_of
from kernel_lsp.rules.cuda.kernel_texts import counts_of_elements, type_parameters
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import MAX_DEPTH
from kernel_lsp.rules.cuda.variables import Variable, type_bytes
from kernel_lsp.rules.rule import Hit

ALLOCATIONS = {"cudaMalloc": 1, "cudaMallocManaged": 1, "cudaMallocHost": 1, "cudaMallocAsync": 1}
_PITCHED = {"cudaMemcpy2D": 4, "cudaMemcpy2DAsync": 4, "cudaMemset2D": 3, "cudaMallocPitch": 2}
"""Positions of the width of a row, in bytes."""
_COPIES = {"cudaMemcpy": 2, "cudaMemcpyAsync": 2, "cudaMemset": 2, "cudaMemsetAsync": 2}
_SYMBOLS = {"cudaMemcpyToSymbol": 2, "cudaMemcpyToSymbolAsync": 2, "cudaMemcpyFromSymbol": 2}
_BYTES = re.compile(r"byte|size|sz|mem|len(?:gth)?_?b|sizeof|pitch|width", re.IGNORECASE)
_KINDS = {
    ("host", "device"): "cudaMemcpyHostToDevice",
    ("device", "host"): "cudaMemcpyDeviceToHost",
    ("device", "device"): "cudaMemcpyDeviceToDevice",
    ("host", "host"): "cudaMemcpyHostToHost",
}
"""Copy kinds by the sides of source and destination."""
_LARGEST_VALUE = 100
"""Largest byte that is taken for the value of an element: 127 and 255 are used for large and for negative numbers."""
MAX_ELEMENT_BYTES = 16
"""Bytes that an element whose type is a template's parameter is taken for: no factor of a size that is in bytes."""
MAX_SMALL = 20
"""Largest byte that is taken for the value of an integer: larger ones are patterns, as 0x3f is."""
_INTEGERS = ("int", "unsigned", "unsigned int", "int32_t", "uint32_t", "int64_t", "long long", "size_t")
_LARGEST = re.compile(r"-?(?:INT|UINT|FLT|DBL)_(?:MAX|MIN)|-?INFINITY|(?:std::)?numeric_limits<\w+>::\w+\(\)")
_OF_SEVERAL = re.compile(
    r"(?:u?(?:char|short|int|long|longlong)|float|double|half|__half|__nv_bfloat16)[234]|__nv_bfloat162"
)
"""Types of several numbers each."""
_SIZEOF = re.compile(r"\bsizeof\s*\(\s*([A-Za-z_][\w:\s]*?)\s*\)")
_CONTAINER_SIZE = re.compile(r"(?:\([\w\s:]+\)\s*|static_cast<[\w\s:]+>\()?(?:\w+(?:\.|->))+size\(\)\)?")
RESIZES = r"(?:resize|reserve|push_|pop_|assign|insert|emplace|erase|clear)"
"""Matches the start of a container's methods that may change how many elements it has room for."""
_BYTE_CONTAINER = re.compile(r"<\s*(?:const\s+)?(?:unsigned\s+char|char|(?:std::)?u?int8_t|std::byte)\b|\bstring\b")


@declare(
    "KL254",
    "byte-count",
    WARNING,
    on="host",
    needs=("cudaMalloc cudaMemcpy cudaMemset <<<",),
    summary="A count of elements, or of another type's bytes, where a count of bytes is wanted",
    why="""
    `cudaMalloc`, `cudaMemcpy` and `cudaMemset` count bytes. A count of elements allocates, or copies, a quarter of an
    array of floats; `sizeof` of another type is wrong by the ratio of the two. The third number of a launch counts the
    bytes of its dynamic shared memory.
    """,
    bad="""
    cudaError_t allocate(int n) {
        float* x = nullptr;
        return cudaMalloc(&x, n);
    }
    """,
    good="""
    cudaError_t allocate(int n) {
        float* x = nullptr;
        return cudaMalloc(&x, n * sizeof(float));
    }
    """,
)
def byte_count(function: Function) -> Iterator[Hit]:
    for call in function.calls_named((*ALLOCATIONS, *_COPIES, *_PITCHED, *_SYMBOLS)):
        name, arguments = function.callee(call), function.arguments(call)
        position = {**ALLOCATIONS, **_COPIES, **_PITCHED, **_SYMBOLS}[name]
        levels = 2 if "Malloc" in name else 1
        pointer = pointer_of(function, arguments[0], levels) if len(arguments) > position else None
        is_source = pointer is None and name.startswith("cudaMemcpy") and len(arguments) > position
        if is_source:
            pointer = pointer_of(function, arguments[1])
        if name in _SYMBOLS and len(arguments) > position:
            pointer = pointer_of(function, arguments["To" in name])
        if name in _COPIES and len(arguments) > position:
            yield from _bytes_of_container(function, arguments[:2], arguments[position])
        n_bytes = None if pointer is None else _element_bytes(function, pointer)
        yield from _bytes_of_structure(function, pointer, arguments[position:])
        if pointer is not None and pointer.name in _SIZEOF.findall(function.source(arguments[position])):
            message = f"`sizeof({pointer.name})` is the size of the pointer, not of what it points to"
            yield hit(function.file, arguments[position], message)
            continue
        if pointer is None or n_bytes is None or n_bytes == 1:
            continue
        size = arguments[position]
        if name.startswith("cudaMemset") and _is_value_of_elements(function, arguments[1], pointer):
            value = function.source(arguments[1])
            message = f"`{name}` sets bytes: no `{pointer.element}` becomes {value}, fill them in a kernel"
            yield hit(function.file, arguments[1], message)
        text = expanded(function, size)
        is_of_instance = type_bytes(pointer.element) is None and _is_member(function, call, pointer)
        other = "" if is_of_instance else _other_type(text, pointer.element, n_bytes)
        if other and is_source and _held(function, arguments[0]) in ("", other):
            continue
        if other:
            yield hit(function.file, size, f"byte count of `{other}` for `{pointer.element}* {pointer.name}`")
        elif _is_count(function, size, text, pointer.element) and not _may_be_bytes(function, pointer, size):
            message = f"element count where bytes are expected: multiply with `sizeof({pointer.element})`"
            counted = function.source(size) if size.type == "identifier" else f"({function.source(size)})"
            fix = rewrite(function.file, size, f"{counted} * sizeof({pointer.element})")
            yield hit(function.file, size, message, fix)
    yield from _shared_counts(function)
    yield from _copies_beyond(function)


@declare(
    "KL255",
    "copy-direction",
    ERROR,
    on="host",
    needs=("cudaMemcpy",),
    summary="A copy names another direction than that of its pointers",
    why="""
    `cudaMemcpyHostToDevice` needs a host source and a device destination. With the other direction the copy fails, or
    reads an address that means something else there.
    """,
    bad="""
    cudaError_t upload(const float* host_x, int n) {
        float* x = nullptr;
        cudaError_t error = cudaMalloc(&x, n * sizeof(float));
        if (error == cudaSuccess) error = cudaMemcpy(x, host_x, n * sizeof(float), cudaMemcpyDeviceToHost);
        cudaFree(x);
        return error;
    }
    """,
    good="""
    cudaError_t upload(const float* host_x, int n) {
        float* x = nullptr;
        cudaError_t error = cudaMalloc(&x, n * sizeof(float));
        if (error == cudaSuccess) error = cudaMemcpy(x, host_x, n * sizeof(float), cudaMemcpyHostToDevice);
        cudaFree(x);
        return error;
    }
    """,
)
def copy_direction(function: Function) -> Iterator[Hit]:
    for kind_node, arguments, kind in _copies(function):
        for argument in arguments:
            if function.source(argument).lstrip("& ") in function.file.device_symbols:
                message = f"`{function.source(argument)}` is a symbol of the device: use `cudaMemcpyToSymbol`"
                yield hit(function.file, argument, message)
        if kind not in _KINDS.values():
            continue
        to, source = side_of(function, arguments[0]), side_of(function, arguments[1])
        right = _KINDS.get((source, to), "")
        stated = next(sides for sides, name in _KINDS.items() if name == kind)
        is_wrong = (source and source != stated[0]) or (to and to != stated[1])
        if is_wrong:
            where = f"the source is on the {source}" if source and source != stated[0] else f"the target is on the {to}"
            is_here = function.source(kind_node) == kind
            fixes = (rewrite(function.file, kind_node, right),) if right and is_here else ()
            yield hit(function.file, kind_node, f"copy direction `{kind}` is wrong: {where}", *fixes)


def _copies(function: Function) -> Iterator[tuple[Node, list[Node], str]]:
    """Yield the copies of a function, and those of functions that it calls with both pointers: where the direction is
    written, or the call, with destination and source, and the direction."""
    names = ("cudaMemcpy", "cudaMemcpyAsync")
    for call in function.calls_named(names):
        arguments = function.arguments(call)
        if len(arguments) > 3:
            yield arguments[3], arguments[:2], function.source(arguments[3])
    for call, callee, inner, given in calls_by_others(function, names):
        texts = [callee.source(each) for each in callee.arguments(inner)]
        if len(texts) > 3 and texts[0] in given and texts[1] in given:
            kind = given.get(texts[3])
            text = texts[3] if kind is None else function.source(kind)
            yield kind or call, [given[texts[0]], given[texts[1]]], text


def _element_bytes(function: Function, pointer: Variable) -> int | None:
    """Return the bytes of the elements. Those of a template's parameter are taken for large ones."""
    n_bytes = type_bytes(pointer.element)
    if n_bytes is not None:
        return n_bytes
    return MAX_ELEMENT_BYTES if pointer.element in type_parameters(function.file.parsed.text) else None


def _may_be_bytes(function: Function, pointer: Variable, size: Node) -> bool:
    """Return whether a parameter may count bytes: no name of a count, or beside `void` pointers, for a template."""
    variable = function.variable(_written(function, size))
    if type_bytes(pointer.element) is not None or variable is None or variable not in function.parameters:
        return False
    is_untyped = any(each.is_pointer and each.element == "void" for each in function.parameters)
    return is_untyped or (variable.name not in ("n", "N") and _COUNT.fullmatch(variable.name) is None)


def _is_member(function: Function, call: Node, pointer: Variable) -> bool:
    """Return whether the call names the pointer as a member of a structure: of a template's instance, in which its
    elements have the type that was chosen."""
    return re.search(rf"(?<!\bthis)(?:\.|->)\s*{pointer.name}\b", function.source(call)) is not None


def _other_type(text: str, element: str, n_bytes: int) -> str:
    """Return the type of a `sizeof` whose size differs from the element's. Not one of several numbers, which may be
    counted one by one (`uint4*` for halves)."""
    named = [name for name in _SIZEOF.findall(text) if type_bytes(name) is not None]
    if len(named) != 1 or "sizeof(*" in text.replace(" ", ""):
        return ""
    if _OF_SEVERAL.fullmatch(element) and n_bytes % (type_bytes(named[0]) or 1) == 0:
        return ""
    return named[0] if type_bytes(named[0]) != n_bytes and named[0] != element else ""


_CASTS = re.compile(r"\bstatic_cast\s*<[^<>]*>|\(\s*size_t\s*\)|\bsize_t\b")


_COUNT = re.compile(r"(?:n_|num_)?(?:count|elem(?:ent)?s|pixels|cells)_?")
"""Names that count elements: a width among their factors is one in elements, too."""


def _speaks_of_bytes(function: Function, size: Node, said: str) -> bool:
    """Return whether a name of the size, or of what the size stands for, is one of bytes."""
    name = function.source(size)
    is_counted = _COUNT.fullmatch(name) is not None
    if function.variable(size) is None and name in counts_of_elements(function.file.parsed.text):
        return False  # a member that is multiplied by the size of an element elsewhere
    return _BYTES.search(_CASTS.sub("", said.replace("width", "") if is_counted else said)) is not None


def _is_count(function: Function, size: Node, text: str, element: str) -> bool:
    """Return whether the size counts elements: a container's size, or known names none of which speaks of bytes. What
    a name stands for says more than the name."""
    written = _written(function, size)
    sizes = [(size, text)] if written.id == size.id else [(size, text), (written, expanded(function, written))]
    n_bytes = type_bytes(element)
    if n_bytes is not None and any(
        function.constant(factor) == n_bytes for each, _ in sizes for factor in product_of(function, each)
    ):
        return False
    is_plain = any(
        not _speaks_of_bytes(function, each, said) and _is_known(function, each) and not _has_call(function, each)
        for each, said in sizes
    )
    return is_plain or _is_container_size(function, size)


def product_of(function: Function, node: Node) -> list[Node]:
    """Return the factors of a product of products, or the node alone."""
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        return product_of(function, node.named_children[0])
    if node.type != "binary_expression" or function.operator(node) != "*":
        return [node]
    sides = (node.child_by_field_id(field) for field in (fields.LEFT, fields.RIGHT))
    return [factor for side in sides if side is not None for factor in product_of(function, side)]


def _is_container_size(function: Function, size: Node) -> bool:
    """Return whether the size is ``v.size()`` of a container whose elements are no bytes, or a name for it."""
    text = function.source(definition(function, size) or size)
    is_count = _CONTAINER_SIZE.fullmatch(text) is not None
    return is_count and not _BYTE_CONTAINER.search(function.text)


def _is_known(function: Function, size: Node) -> bool:
    """Return whether the function and the file say what each name in the size is."""
    names, file = function.names_in(size), function.file
    return bool(names) and all(
        function.named(name) or name in file.constants or name in file.member_integers for name in names
    )


def _written(function: Function, size: Node) -> Node:
    """Return the expression that a name of a size stands for, and no conversion of it."""
    for _ in range(MAX_DEPTH):
        inner = definition(function, size)
        if inner is None and size.type == "call_expression" and "cast" in function.callee(size):
            inner = next(iter(function.arguments(size)), None)
        if inner is None:
            return size
        size = inner
    return size


def _has_call(function: Function, node: Node) -> bool:
    return any(True for _ in function.calls.within(node))


class Size(NamedTuple):
    """A product of a constant and of names, to each of which a constant is added: ``4 * (n + 1) * m``."""

    factor: int
    added: dict[str, int]


def _copies_beyond(function: Function) -> Iterator[Hit]:
    """Yield the copies of more bytes than this function allocates for one of their pointers: ``2 * n`` or ``n + 1``
    for ``n``."""
    allocated: dict[str, Size] = {}
    for call in function.calls_named(tuple(ALLOCATIONS)):
        arguments = function.arguments(call)
        pointer = pointer_of(function, arguments[0], 2) if len(arguments) > 1 else None
        size = None if pointer is None else _factors(function, arguments[1])
        if pointer is not None and size is not None:
            name = function.source(arguments[0]).rpartition("&")[2].strip(" ()") or pointer.name
            allocated[name] = size if name not in allocated else Size(1 << 62, {})
    for call in function.calls_named(tuple(_COPIES)) if allocated else ():
        arguments = function.arguments(call)
        size = _factors(function, arguments[2]) if len(arguments) > 2 else None
        n_sides = 1 if "Memset" in function.callee(call) else 2
        for argument in arguments[:n_sides] if size is not None else ():
            known = allocated.get(function.source(argument))
            if size is not None and known is not None and _exceeds(size, known):
                message = f"copy beyond the allocation: `{function.source(argument)}` has fewer bytes"
                yield hit(function.file, arguments[2], message)


def _exceeds(size: Size, known: Size) -> bool:
    """Return whether a size is larger than another one, whatever their names stand for. A constant may exceed
    any name."""
    if size.factor < known.factor or (size.added and not known.added):
        return False
    if size.added.keys() == known.added.keys():
        return size != known and all(number >= known.added[name] for name, number in size.added.items())
    return known.added.keys() < size.added.keys() and not any((*size.added.values(), *known.added.values()))


def _factors(function: Function, node: Node | None, depth: int = 0) -> Size | None:
    """Return a product's factors; None where it is no product of distinct factors, one of which may be a sum with a
    constant."""
    if node is None or depth > MAX_DEPTH:
        return None
    value = known_value(function, node)
    if value is not None:
        return Size(value, {})
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        return _factors(function, node.named_children[0], depth + 1)
    if node.type == "binary_expression" and function.operator(node) in ("*", "+", "-"):
        left, right = (_factors(function, node.child_by_field_id(f), depth + 1) for f in (fields.LEFT, fields.RIGHT))
        return None if left is None or right is None else _combined(function.operator(node), left, right)
    value_node = definition(function, node)
    if value_node is not None:
        return _factors(function, value_node, depth + 1)
    return Size(1, {function.source(node): 0}) if _is_fixed(function, node) else None


def _combined(operator: str, left: Size, right: Size) -> Size | None:
    """Return a product of two sizes that share no name, or the sum or difference of a name and a constant."""
    if operator == "*":
        is_distinct = left.added.keys().isdisjoint(right.added)
        return Size(left.factor * right.factor, left.added | right.added) if is_distinct else None
    if operator == "+" and not left.added:
        left, right = right, left
    number = right.factor if operator == "+" else -right.factor
    is_sum = left.factor == 1 and len(left.added) == 1 and not right.added
    return Size(1, {name: each + number for name, each in left.added.items()}) if is_sum else None


def _is_fixed(function: Function, node: Node) -> bool:
    """Return whether an expression has one value in the function: a name or member that it does not set, or the size
    of a container that it leaves as it is."""
    variable, text = function.variable(node), function.source(node)
    if node.type == "sizeof_expression":
        return True
    if (container := re.fullmatch(r"(\w+)\.size\(\)", text)) is not None:
        return not re.search(rf"\b{container[1]}\.{RESIZES}", function.text)
    if node.type == "field_expression" or (variable is None and text in function.file.member_integers):
        name = re.escape(text)
        return not re.search(rf"{name}\s*(?:[-+*/]?=(?!=)|\+\+|--)|(?:\+\+|--){name}", function.text)
    return variable is not None and not variable.writes


def _bytes_of_structure(function: Function, pointer: Variable | None, sizes: list[Node]) -> Iterator[Hit]:
    """Yield a count of a basic type's bytes for elements that are a structure of this file."""
    if pointer is not None and pointer.element in function.file.members:
        named = set(_SIZEOF.findall(expanded(function, sizes[0])))
        if len(named) == 1 and type_bytes(next(iter(named))) is not None:
            message = f"byte count of `{named.pop()}` for `{pointer.element}* {pointer.name}`"
            yield hit(function.file, sizes[0], message)
        elif _is_count(function, sizes[0], expanded(function, sizes[0]), pointer.element):
            message = f"element count where bytes are expected: multiply with `sizeof({pointer.element})`"
            yield hit(function.file, sizes[0], message)


_OF_CONTAINER = re.compile(r"(\w+)\s*\.\s*(?:get|data|ptr|begin)\(\)")
_HELD = r"<\s*(?:const\s+)?([\w:]+(?: (?:int|char|long))?)\s*(?:\[\s*\])?\s*(?:,[^<>;]*)?>\s*&?\s*%s\b"


def _bytes_of_container(function: Function, pointers: list[Node], size: Node) -> Iterator[Hit]:
    """Yield a count of another type's bytes for the elements of ``std::vector<double>`` or ``Buffer<double>``."""
    for node in pointers:
        held = _held(function, node)
        n_bytes = type_bytes(held)
        if n_bytes is not None and (other := _other_type(expanded(function, size), held, n_bytes)):
            container = re.split(r"\s*\.", function.source(node))[0]
            yield hit(function.file, size, f"byte count of `{other}` for the `{held}` elements of `{container}`")
            return


def _held(function: Function, node: Node) -> str:
    """Return the element type of the container in ``v.data()``; an empty text where the function does not state it."""
    found = _OF_CONTAINER.fullmatch(function.source(node))
    held = None if found is None else re.search(_HELD % found[1], function.text)
    return "" if held is None else held[1]


def _is_value_of_elements(function: Function, value: Node, pointer: Variable) -> bool:
    """Return whether a byte for `cudaMemset` was meant as the value of each element: 1, or a float."""
    text, found = function.source(value), function.constant(value)
    if _LARGEST.fullmatch(text) or (pointer.element in _INTEGERS and found is not None and 0 < found <= MAX_SMALL):
        return True
    is_plain = text.isdigit() or function.names_in(value) != frozenset()
    is_float = value.type == "number_literal" and found is None and pointer.element in ("float", "double")
    is_known = pointer.element in ("float", "double", "half", "__half") and found is not None
    return is_float or (is_plain and is_known and found is not None and 0 < found <= _LARGEST_VALUE)


def _shared_counts(function: Function) -> Iterator[Hit]:
    """Yield the launches that state a count of elements as the bytes of dynamic shared memory."""
    dynamic = dict(function.file.dynamic_shared_bytes)
    for call in launches_in(function) if dynamic else ():
        n_bytes, parts = dynamic.get(function.launched(call), 0), launch_parts(call)
        if n_bytes < 2 or len(parts) < 3:
            continue
        size = _written(function, parts[2])
        text, shared = _CASTS.sub("", expanded(function, size)), known_value(function, size)
        is_threads = shared is not None and shared == known_value(function, parts[1])
        is_count = (
            shared is None
            and not _BYTES.search(text.replace("width", ""))
            and not re.search(r"\b(?:2|4|8|16)\b|<<", text)
        )
        if is_threads or (is_count and _is_known(function, size) and not _has_call(function, size)):
            message = f"element count where bytes are expected: multiply with {n_bytes}, the size of an element"
            yield hit(function.file, parts[2], message)
