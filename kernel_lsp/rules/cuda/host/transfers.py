"""KL254 to KL257: allocations, copies and launches of host code, checked against the sizes of its arrays."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import ERROR, WARNING, declare, hit, launches_in, rewrite
from kernel_lsp.rules.cuda.host.values import axes, definition, expanded, known_value
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import MAX_DEPTH, names_in_text
from kernel_lsp.rules.cuda.variables import Variable, type_bytes
from kernel_lsp.rules.rule import Hit

_ALLOCATIONS = {"cudaMalloc": 1, "cudaMallocManaged": 1, "cudaMallocHost": 1, "cudaMallocAsync": 1}
_COPIES = {"cudaMemcpy": 2, "cudaMemcpyAsync": 2, "cudaMemset": 2, "cudaMemsetAsync": 2}
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
_SIZEOF = re.compile(r"\bsizeof\s*\(\s*([A-Za-z_][\w:\s]*?)\s*\)")
_CONTAINER_SIZE = re.compile(r"(?:\([\w\s:]+\)\s*|static_cast<[\w\s:]+>\()?\w+(?:\.|->)size\(\)\)?")
_BYTE_CONTAINER = re.compile(r"<\s*(?:const\s+)?(?:unsigned\s+char|char|(?:std::)?u?int8_t|std::byte)\b|\bstring\b")
_ROUNDED_DOWN = re.compile(r"\(?\s*([\w.]+)\s*/\s*([\w.]+)\s*\)?")


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
    for call in function.calls_named((*_ALLOCATIONS, *_COPIES)):
        name, arguments = function.callee(call), function.arguments(call)
        position = _ALLOCATIONS.get(name, _COPIES.get(name, 0))
        levels = 2 if name in _ALLOCATIONS else 1
        pointer = _pointer(function, arguments[0], levels) if len(arguments) > position else None
        if pointer is None and len(arguments) > position:
            yield from _bytes_of_member(function, arguments[0], arguments[position])
        if name in _COPIES and len(arguments) > position:
            yield from _bytes_of_container(function, arguments[:2], arguments[position])
        n_bytes = None if pointer is None else type_bytes(pointer.element)
        yield from _bytes_of_structure(function, pointer, arguments[position:])
        if pointer is None or n_bytes is None or n_bytes == 1:
            continue
        size = arguments[position]
        if name.startswith("cudaMemset") and _is_value_of_elements(function, arguments[1], pointer):
            value = function.source(arguments[1])
            message = f"`{name}` sets bytes: no `{pointer.element}` becomes {value}, fill them in a kernel"
            yield hit(function.file, arguments[1], message)
        text = expanded(function, size)
        other = _other_type(text, pointer.element, n_bytes)
        if other:
            yield hit(function.file, size, f"byte count of `{other}` for `{pointer.element}* {pointer.name}`")
        elif _is_count(function, size, text):
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
        return error;
    }
    """,
    good="""
    cudaError_t upload(const float* host_x, int n) {
        float* x = nullptr;
        cudaError_t error = cudaMalloc(&x, n * sizeof(float));
        if (error == cudaSuccess) error = cudaMemcpy(x, host_x, n * sizeof(float), cudaMemcpyHostToDevice);
        return error;
    }
    """,
)
def copy_direction(function: Function) -> Iterator[Hit]:
    for call in function.calls_named(("cudaMemcpy", "cudaMemcpyAsync")):
        arguments = function.arguments(call)
        kind = function.source(arguments[3]) if len(arguments) > 3 else ""
        if kind not in _KINDS.values():
            continue
        to, source = _side(function, arguments[0]), _side(function, arguments[1])
        right = _KINDS.get((source, to), "")
        stated = next(sides for sides, name in _KINDS.items() if name == kind)
        is_wrong = (source and source != stated[0]) or (to and to != stated[1])
        if is_wrong:
            where = f"the source is on the {source}" if source and source != stated[0] else f"the target is on the {to}"
            fixes = (rewrite(function.file, arguments[3], right),) if right else ()
            yield hit(function.file, arguments[3], f"copy direction `{kind}` is wrong: {where}", *fixes)


@declare(
    "KL256",
    "launch-misses-elements",
    WARNING,
    on="host",
    needs=("<<<", "cudaMalloc /"),
    summary="A launch has fewer or more threads than its array has elements",
    why="""
    A grid of `n / 256` blocks leaves out the last `n % 256` elements: round it up, and check the index in the kernel.
    A grid whose axes are swapped covers a square of an image alone. One with more threads than an array has elements
    writes behind its end where the kernel checks nothing.
    """,
    bad="""
    __global__ void zero(float* __restrict__ x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = 0.0f;
    }

    cudaError_t run(float* x) {
        const int n = 1000;
        zero<<<n / 256, 256>>>(x, n);
        return cudaGetLastError();
    }
    """,
    good="""
    __global__ void zero(float* __restrict__ x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] = 0.0f;
    }

    cudaError_t run(float* x) {
        const int n = 1000;
        zero<<<(n + 255) / 256, 256>>>(x, n);
        return cudaGetLastError();
    }
    """,
)
def launch_misses_elements(function: Function) -> Iterator[Hit]:
    elements = dict(_allocated(function))
    for call in launches_in(function):
        parts = _launch_parts(call)
        if len(parts) < 2:
            continue
        message = _rounded_down(function, function.callee(call), parts) or _swapped(function, call, parts)
        message = message or _rounded_up(function, call, parts)
        if message:
            yield hit(function.file, parts[0], message)
            continue
        message = _too_many(function, call, parts, elements)
        if message:
            yield hit(function.file, parts[0], message)


# --- below: pointers


def _pointer(function: Function, node: Node | None, levels: int = 1, depth: int = 0) -> Variable | None:
    """Return the pointer to elements in ``x`` or ``*out``, and with two levels in ``(void**)&x`` or ``out``."""
    if node is None or depth > 4:
        return None
    if node.type in ("cast_expression", "parenthesized_expression"):
        inner = node.child_by_field_id(fields.VALUE) or (node.named_children[-1] if node.named_children else None)
        return _pointer(function, inner, levels, depth + 1)
    if node.type == "pointer_expression":
        step = -1 if function.source(node).startswith("&") else 1
        return _pointer(function, node.child_by_field_id(fields.ARGUMENT), levels + step, depth + 1)
    if node.type == "call_expression" and function.callee(node) == "reinterpret_cast":
        return _pointer(function, next(iter(function.arguments(node)), None), levels, depth + 1)
    variable = function.variable(node)
    if variable is None or not variable.is_pointer or len(function.named(variable.name)) != 1:
        return None
    declared = function.source(variable.declaration).replace(" ", "")
    n_levels = 2 if f"**{variable.name}" in declared else 1
    return variable if n_levels == levels else None


def _other_type(text: str, element: str, n_bytes: int) -> str:
    """Return the type of a `sizeof` whose size differs from the element's."""
    named = [name for name in _SIZEOF.findall(text) if type_bytes(name) is not None]
    if len(named) != 1 or "sizeof(*" in text.replace(" ", ""):
        return ""
    return named[0] if type_bytes(named[0]) != n_bytes and named[0] != element else ""


_CASTS = re.compile(r"\bstatic_cast\s*<[^<>]*>|\(\s*size_t\s*\)|\bsize_t\b")


def _is_count(function: Function, size: Node, text: str) -> bool:
    """Return whether the size counts elements: a container's size, or known names none of which speaks of bytes."""
    text = _CASTS.sub("", text)
    is_plain = not _BYTES.search(text) and _is_known(function, size) and not _has_call(function, size)
    return is_plain or _is_container_size(function, size)


def _is_container_size(function: Function, size: Node) -> bool:
    """Return whether the size is ``v.size()`` of a container whose elements are no bytes, or a name for it."""
    text = function.source(definition(function, size) or size)
    is_count = _CONTAINER_SIZE.fullmatch(text) is not None
    return is_count and not _BYTE_CONTAINER.search(function.text)


def _is_known(function: Function, size: Node) -> bool:
    """Return whether the function and the file say what each name in the size is."""
    names = function.names_in(size)
    return bool(names) and all(function.named(name) or name in function.file.constants for name in names)


def _has_call(function: Function, node: Node) -> bool:
    return any(True for _ in function.calls.within(node))


def _side(function: Function, node: Node) -> str:
    """Return the side that a pointer points to, ``host`` or ``device``; an empty text if it is unknown."""
    text = function.source(node)
    if node.type == "pointer_expression" and text.startswith("*"):
        return _side_of_result(function, text)
    if re.search(r"\.data\(\)|\.c_str\(\)", text) or node.type == "pointer_expression":
        return "" if re.search(r"\bd_|\bdev|thrust", text) else "host"
    variable = _pointer(function, node)
    if variable is None:
        root = function.variable(node)
        if root is None:
            return _side_of_member(function, text)
        return "host" if root.is_array else ""
    body = function.source(function.body)
    name = re.escape(variable.name)
    if re.search(rf"cudaMalloc(?:Async)?\s*\(\s*(?:\(\s*void\s*\*\*\s*\)\s*)?&\s*{name}\b", body):
        return "device"
    if re.search(rf"\b(?:cudaMallocManaged|cudaHostAlloc)\s*\([^;]*&\s*{name}\b", body):
        return ""
    is_made = variable.value is not None and re.search(r"\b(?:malloc|calloc|new)\b", function.source(variable.value))
    if is_made or re.search(rf"\b{name}\s*=\s*(?:\([^()]*\)\s*)?(?:malloc|calloc|new)\b", body):
        return "host"
    return "host" if re.match(r"(?:h_|host_)", variable.name) else ""


def _side_of_result(function: Function, text: str) -> str:
    """Return the side of ``*out``, a pointer that the caller gets: ``device`` where this function allocates it so."""
    name = re.escape(text.lstrip("* "))
    is_made = re.search(rf"cudaMalloc(?:Async)?\s*\(\s*(?:\(\s*void\s*\*\*\s*\)\s*)?{name}\b", function.text)
    return "device" if is_made else ""


def _side_of_member(function: Function, text: str) -> str:
    """Return the side of a member, or of a pointer outside of functions, as the file allocates it."""
    name = re.fullmatch(r"(?:this\s*->\s*)?(\w+)", text)
    sides = {side for known, side in function.file.allocated_sides if name is not None and known == name[1]}
    return sides.pop() if len(sides) == 1 else ""


# --- below: sizes


def _copies_beyond(function: Function) -> Iterator[Hit]:
    """Yield the copies of more bytes than this function allocates for one of their pointers: ``2 * n`` for ``n``."""
    allocated: dict[str, tuple[int, frozenset[str]]] = {}
    for call in function.calls_named(tuple(_ALLOCATIONS)):
        arguments = function.arguments(call)
        pointer = _pointer(function, arguments[0], 2) if len(arguments) > 1 else None
        size = None if pointer is None else _factors(function, arguments[1])
        if pointer is not None and size is not None:
            allocated[pointer.name] = size if pointer.name not in allocated else (1 << 62, frozenset())
    for call in function.calls_named(tuple(_COPIES)) if allocated else ():
        arguments = function.arguments(call)
        size = _factors(function, arguments[2]) if len(arguments) > 2 else None
        n_sides = 1 if "Memset" in function.callee(call) else 2
        for argument in arguments[:n_sides] if size is not None else ():
            known = allocated.get(function.source(argument))
            if size is not None and known is not None and known[1] == size[1] and size[0] > known[0]:
                message = f"copy beyond the allocation: `{function.source(argument)}` has fewer bytes"
                yield hit(function.file, arguments[2], message)


def _factors(function: Function, node: Node | None, depth: int = 0) -> tuple[int, frozenset[str]] | None:
    """Return a product's constant and its other factors; None where it is no product of distinct factors."""
    if node is None or depth > MAX_DEPTH:
        return None
    value = known_value(function, node)
    if value is not None:
        return value, frozenset()
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        return _factors(function, node.named_children[0], depth + 1)
    if node.type == "binary_expression" and function.operator(node) == "*":
        sides = [_factors(function, node.child_by_field_id(f), depth + 1) for f in (fields.LEFT, fields.RIGHT)]
        left, right = sides
        if left is None or right is None or not left[1].isdisjoint(right[1]):
            return None
        return left[0] * right[0], left[1] | right[1]
    value_node = definition(function, node)
    if value_node is not None:
        return _factors(function, value_node, depth + 1)
    variable = function.variable(node)
    is_fixed = node.type == "sizeof_expression" or (variable is not None and not variable.writes)
    return (1, frozenset((function.source(node),))) if is_fixed else None


# --- below: launches


def _bytes_of_structure(function: Function, pointer: Variable | None, sizes: list[Node]) -> Iterator[Hit]:
    """Yield a count of a basic type's bytes for elements that are a structure of this file."""
    if pointer is not None and pointer.element in function.file.structures:
        named = set(_SIZEOF.findall(expanded(function, sizes[0])))
        if len(named) == 1 and type_bytes(next(iter(named))) is not None:
            message = f"byte count of `{named.pop()}` for `{pointer.element}* {pointer.name}`"
            yield hit(function.file, sizes[0], message)
        elif _is_count(function, sizes[0], expanded(function, sizes[0])):
            message = f"element count where bytes are expected: multiply with `sizeof({pointer.element})`"
            yield hit(function.file, sizes[0], message)


def _bytes_of_member(function: Function, target: Node, size: Node) -> Iterator[Hit]:
    """Yield a count of elements, or of another type's bytes, for a pointer that is a member of its class."""
    name = re.search(r"(\w+)\W*$", function.source(target))
    element = dict(function.file.member_pointers).get(name[1], "") if name is not None else ""
    n_bytes = type_bytes(element)
    if name is None or n_bytes is None or n_bytes == 1 or function.named(name[1]):
        return
    text = expanded(function, size)
    other = _other_type(text, element, n_bytes)
    if other:
        yield hit(function.file, size, f"byte count of `{other}` for `{element}* {name[1]}`")
    elif _is_count(function, size, text):
        message = f"element count where bytes are expected: multiply with `sizeof({element})`"
        yield hit(function.file, size, message)


_OF_CONTAINER = re.compile(r"(\w+)\s*\.\s*(?:get|data|ptr|begin)\(\)")
_HELD = r"<\s*(?:const\s+)?([\w:]+(?: (?:int|char|long))?)\s*(?:\[\s*\])?\s*(?:,[^<>;]*)?>\s*&?\s*%s\b"


def _bytes_of_container(function: Function, pointers: list[Node], size: Node) -> Iterator[Hit]:
    """Yield a count of another type's bytes for the elements of ``std::vector<double>`` or ``Buffer<double>``."""
    for node in pointers:
        found = _OF_CONTAINER.fullmatch(function.source(node))
        held = None if found is None else re.search(_HELD % found[1], function.text)
        n_bytes = None if held is None else type_bytes(held[1])
        if (
            held is not None
            and n_bytes is not None
            and (other := _other_type(expanded(function, size), held[1], n_bytes))
        ):
            yield hit(
                function.file,
                size,
                f"byte count of `{other}` for the `{held[1]}` elements of `{found[1] if found else ''}`",
            )
            return


def _is_value_of_elements(function: Function, value: Node, pointer: Variable) -> bool:
    """Return whether a byte for `cudaMemset` was meant as the value of each element: 1, or a float."""
    text, found = function.source(value), function.constant(value)
    is_plain = text.isdigit() or function.names_in(value) != frozenset()
    is_float = value.type == "number_literal" and found is None and pointer.element in ("float", "double")
    is_known = pointer.element in ("float", "double", "half", "__half") and found is not None
    return is_float or (is_plain and is_known and found is not None and 0 < found <= _LARGEST_VALUE)


def _shared_counts(function: Function) -> Iterator[Hit]:
    """Yield the launches that state a count of elements as the bytes of dynamic shared memory."""
    dynamic = dict(function.file.dynamic_shared_bytes)
    for call in launches_in(function) if dynamic else ():
        n_bytes, parts = dynamic.get(function.callee(call), 0), _launch_parts(call)
        if n_bytes < 2 or len(parts) < 3:
            continue
        text, shared = expanded(function, parts[2]), known_value(function, parts[2])
        is_threads = shared is not None and shared == known_value(function, parts[1])
        is_count = (
            shared is None
            and not _BYTES.search(text.replace("width", ""))
            and not re.search(r"\b(?:2|4|8|16)\b|<<", text)
        )
        if is_threads or (is_count and _is_known(function, parts[2]) and not _has_call(function, parts[2])):
            message = f"element count where bytes are expected: multiply with {n_bytes}, the size of an element"
            yield hit(function.file, parts[2], message)


def _launch_parts(call: Node) -> list[Node]:
    syntax = next(child for child in call.named_children if child.type == "kernel_call_syntax")
    return [child for child in syntax.named_children if child.type != "comment"]


def _allocated(function: Function) -> Iterator[tuple[str, int]]:
    """Yield the pointers of this function with the number of elements allocated for each."""
    for call in function.calls_named(tuple(_ALLOCATIONS)):
        arguments = function.arguments(call)
        pointer = _pointer(function, arguments[0], 2) if len(arguments) > 1 else None
        n_bytes = known_value(function, arguments[1]) if pointer is not None else None
        size = None if pointer is None else type_bytes(pointer.element)
        if pointer is not None and n_bytes is not None and size:
            yield pointer.name, n_bytes // size


def _rounded_down(function: Function, kernel: str, parts: list[Node]) -> str:
    """Return the message for ``n / 256`` blocks of 256 threads where n is provably no multiple, or where the kernel
    checks for a part of a block that this grid does not have; else an empty text."""
    blocks = axes(function, parts[1])
    for axis, grid in enumerate(axes(function, parts[0])):
        node = definition(function, grid) or grid
        found = _ROUNDED_DOWN.fullmatch(function.source(node))
        is_quotient = node.type in ("binary_expression", "parenthesized_expression")
        if found is None or not is_quotient or axis >= len(blocks):
            continue
        inner = node if node.type == "binary_expression" else node.named_children[0]
        left, right = inner.child_by_field_id(fields.LEFT), inner.child_by_field_id(fields.RIGHT)
        n, divisor, threads = (known_value(function, each) for each in (left, right, blocks[axis]))
        is_same = right is not None and function.source(right) == function.source(blocks[axis])
        if n is not None and divisor is not None and divisor == threads and n % divisor:
            return f"grid rounds down: the last {n % divisor} of {n} elements have no thread, round it up"
        is_checked = kernel in function.file.tail_checked_kernels and "%" not in function.text
        if n is None and is_checked and (is_same or (divisor is not None and divisor == threads)):
            return f"grid rounds down: the last `{found[1]} % {found[2]}` elements have no thread, round it up"
    return ""


_ROUNDED_UP = re.compile(r"(\w+)\+(\w+)-1\)?\)?/\2\b|\b(?:ceil_?div|cdiv|div_?up)\(", re.IGNORECASE)


def _rounded_up(function: Function, call: Node, parts: list[Node]) -> str:
    """Return the message for a grid that is rounded up for a kernel without any check of its index; else an empty
    text. Nothing is said where the host asks for a remainder, as where a caller pads, or the size is known."""
    text = _ROUNDING_LITERAL.sub(r"+\2-1)/\2", expanded(function, parts[0]).replace(" ", ""))
    rounded = _ROUNDED_UP.search(text)
    if rounded is None or function.callee(call) not in function.file.unchecked_kernels or "%" in function.text:
        return ""
    if known_value(function, parts[0]) is not None:
        return ""
    return f"grid is rounded up, and `{function.callee(call)}` checks no index: its last block writes beyond the end"


_ROUNDING_LITERAL = re.compile(r"\+(\d+)\)?/(\d+)\b")


def _swapped(function: Function, call: Node, parts: list[Node]) -> str:
    """Return the message for a grid whose x is made of the size that the kernel bounds y by, and the other way round;
    else an empty text."""
    positions = {axis: place for kernel, axis, place in function.file.axis_sizes if kernel == function.callee(call)}
    arguments, grid = function.arguments(call), axes(function, parts[0])
    if not positions or len(grid) < len(positions) or len(arguments) <= max(positions.values()):
        return ""
    sizes = {axis: function.source(arguments[place]) for axis, place in positions.items()}
    used = [names_in_text(expanded(function, node)) for node in grid]
    if sizes["x"] in used[1] - used[0] and sizes["y"] in used[0] - used[1]:
        return (
            f"grid axes are swapped: the kernel bounds x by `{sizes['x']}`, and the grid's x is made of `{sizes['y']}`"
        )
    return ""


def _too_many(function: Function, call: Node, parts: list[Node], elements: dict[str, int]) -> str:
    """Return the message for a launch with more threads than an array has elements, or an empty text. The kernel must
    be in this file and have no bounds checks."""
    blocks, threads = known_value(function, parts[0]), known_value(function, parts[1])
    if blocks is None or threads is None or function.callee(call) not in function.file.unchecked_kernels:
        return ""
    for argument in function.arguments(call):
        n = elements.get(function.source(argument))
        if n is not None and blocks * threads > n:
            return f"launch has {blocks * threads} threads for the {n} elements of `{function.source(argument)}`"
    return ""
