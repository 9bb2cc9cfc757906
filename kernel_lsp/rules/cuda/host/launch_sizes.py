"""KL256: launches of host code, checked against the sizes of its arrays and the limits of a grid."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import WARNING, declare, hit, launches_in
from kernel_lsp.rules.cuda.host.integer_values import (
    axes,
    definition,
    expanded,
    known_value,
    launch_parts,
    returned,
    said,
)
from kernel_lsp.rules.cuda.host.launch_shapes import counts_elements
from kernel_lsp.rules.cuda.host.launched_elements import elements_of, too_many
from kernel_lsp.rules.cuda.host.transfers import product_of
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.names import names_in_text
from kernel_lsp.rules.rule import Hit

MAX_BLOCKS_YZ = 65_535
"""Maximum blocks along y and z of a grid (CUDA C++ Programming Guide, technical specifications)."""
MAX_THREADS = 1024
MAX_NAMES = 4
"""Maximum names and conversions that a quotient is followed through."""


@declare(
    "KL256",
    "launch-misses-elements",
    WARNING,
    on="host",
    needs=("<<<",),
    summary="A launch has fewer or more threads than its array has elements",
    why="""
    A grid of `n / 256` blocks leaves out the last `n % 256` elements: round it up, and check the index in the kernel.
    A grid whose axes are swapped covers a square of an image alone, one made of a factor of the size (`rows` where the
    kernel checks `rows * cols`) covers a part. One with more threads than an array has elements
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
    elements: dict[str, int] | None = None
    for call in launches_in(function):
        parts = launch_parts(call)
        if len(parts) < 2:
            continue
        message = _rounded_down(function, function.launched(call), parts) or _swapped(function, call, parts)
        message = message or _truncated(function, parts[0]) or _capped(function, call, parts[0])
        message = message or _exchanged(function, parts) or _too_large(function, parts) or _without_tail(function, call)
        message = message or _rounded_up(function, call, parts) or _too_few(function, call, parts)
        if message:
            yield hit(function.file, parts[0], message)
            continue
        elements = elements_of(function) if elements is None else elements
        sizes = [_product(function, part) for part in parts[:2]]
        n_threads = None if None in sizes else math.prod(each or 0 for each in sizes)
        message = too_many(function, call, n_threads, elements)
        if message:
            yield hit(function.file, parts[0], message)


def _rounded_down(function: Function, kernel: str, parts: list[Node]) -> str:
    """Return the message for ``n / 256`` blocks of 256 threads where n is provably no multiple, or where the kernel
    checks for a part of a block that this grid does not have; else an empty text. A kernel that loops over its grid
    needs no such part."""
    if kernel in function.file.grid_loops:
        return ""
    (threads_of, blocks), (grid_of, grids) = axes(function, parts[1]), axes(function, parts[0])
    for axis, grid in enumerate(grids):
        if axis >= len(blocks):
            break
        if grid_of is not function:
            quotient = _of_caller(grid_of, _quotient(grid_of, grid))
        else:
            quotient = _quotient(function, grid) or _quotient_of_macro(function, grid, blocks[axis])
        if quotient is None:
            continue
        left, right, text = quotient
        n, threads = known_value(function, left), known_value(threads_of, blocks[axis])
        divisor = known_value(function, right)
        if divisor is not None and "/" not in text:
            divisor = 1 << min(max(divisor, 0), 30)
        is_multiple = divisor is not None and threads is not None and threads > 0 and divisor % threads == 0
        if n is not None and divisor is not None and is_multiple and n % divisor:
            return f"grid rounds down: the last {n % divisor} of {n} elements have no thread, round it up"
        is_checked = kernel in function.file.tail_checked_kernels and "%" not in _STRING.sub("", function.text)
        is_checked = is_checked and not (grid_of is function and _is_rounded(function, left, right, divisor))
        if n is None and is_checked and (is_multiple or threads_of.source(blocks[axis]) in _factors(function, right)):
            rest = f"{function.source(left)} % {divisor or function.source(right)}"
            return f"grid rounds down: the last `{rest}` elements have no thread, round it up"
    return ""


_ROUNDING_CALL = re.compile(r"round|pad|align|multiple", re.IGNORECASE)


def _is_rounded(function: Function, size: Node, right: Node, divisor: int | None) -> bool:
    """Return whether a size is defined as a multiple of the divisor: ``(n + 255) / 256 * 256`` or ``n & ~255``."""
    variable, value = function.variable(size), definition(function, size)
    if variable is not None and any(re.search(r"[*&+]|<<", function.source(write)) for write in variable.writes):
        return True
    if value is None:
        return False
    if value.type != "binary_expression":
        return value.type == "call_expression" and _ROUNDING_CALL.search(function.callee(value)) is not None
    if function.operator(value) != "*":
        return function.operator(value) in ("&", "<<")
    factors = product_of(function, value)
    numbers = [known_value(function, each) for each in factors]
    is_multiple = divisor is not None and any(each is not None and each % divisor == 0 for each in numbers)
    names = _factors(function, right)
    return is_multiple or (names != set() and names <= {function.source(each) for each in factors})


_CEILING = re.compile(r"\bceilf?\(\s*((?:\w+|\w+\.size\(\))\s*/\s*\w+)\s*\)")


def _truncated(function: Function, grid: Node) -> str:
    """Return the message for ``ceil(n / 256)`` of integers, or an empty text."""
    for found in _CEILING.finditer(expanded(function, grid)):
        left, right = (side.strip() for side in found[1].split("/"))
        if all(_is_integer(function, each) for each in (left, right)):
            return f"grid rounds down: `{found[1]}` divides integers before it is rounded up"
    return ""


_MINIMUM = re.compile(r"\bmin\s*(?:<[\w\s:]*>)?\(")


def _capped(function: Function, call: Node, grid: Node) -> str:
    """Return the message for a grid of at most so many blocks of a kernel without a loop, or an empty text."""
    kernel = function.launched(call)
    given = {name for argument in function.arguments(call) for name in function.names_in(argument)}
    sizes = [variable.value for name in given for variable in function.named(name) if variable.value is not None]
    is_of_size = any(_MINIMUM.search(function.source(size)) for size in sizes)
    is_checked = kernel in function.file.tail_checked_kernels and not is_of_size
    is_capped = is_checked and _MINIMUM.search(expanded(function, grid))
    return (
        f"grid is capped, and `{function.callee(call)}` handles one element per thread: loop over the grid"
        if is_capped
        else ""
    )


def _is_integer(function: Function, text: str) -> bool:
    """Return whether a text is an integer: a literal, ``x.size()`` or a name for one."""
    known = function.named(text)
    is_constant = text.isdigit() or text in function.file.constants or text.endswith(".size()")
    return all(variable.is_integer for variable in known) if known else is_constant


def _quotient(function: Function, node: Node, depth: int = 0) -> tuple[Node, Node, str] | None:
    """Return the parts and the operator of ``n / 256`` or ``n >> 8``, also converted or under a name."""
    if node.type == "binary_expression":
        left, right = node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT)
        operator = function.operator(node)
        if left is None or right is None or operator not in ("/", ">>"):
            return None
        is_quotient = left.type == "binary_expression" and _quotient(function, left, MAX_NAMES) is not None
        is_plain = (is_quotient or left.type in _PLAIN) and set() != _factors(function, right)
        return (left, right, operator) if is_plain or _is_converted_name(function, left) else None
    if (found := returned(function, node)) is not None and depth <= MAX_NAMES:
        callee, value, given = found
        callee.arguments_given = given
        return _of_caller(callee, _quotient(callee, value, depth + 1))
    inner = definition(function, node)
    if inner is None and node.type in ("parenthesized_expression", "cast_expression"):
        inner = node.child_by_field_id(fields.VALUE) or node.named_children[-1]
    if inner is None and node.type == "call_expression" and "cast" in function.callee(node):
        inner = next(iter(function.arguments(node)), None)
    return None if inner is None or depth > MAX_NAMES else _quotient(function, inner, depth + 1)


_PLAIN = ("identifier", "number_literal", "field_expression")


_MACRO_QUOTIENT = re.compile(r"[\s(]*(\w+)[\s)]*/[\s(]*(\w+)[\s)]*")


def _quotient_of_macro(function: Function, node: Node, threads: Node) -> tuple[Node, Node, str] | None:
    """Return the quotient that a macro of the file stands for, by an argument or by the threads of the launch."""
    parameters, text = function.file.macros.get(function.callee(node), (None, ""))
    found = _MACRO_QUOTIENT.fullmatch(text)
    if found is None or parameters is None:
        return None
    given = dict(zip(parameters, function.arguments(node), strict=False))
    left = given.get(found[1])
    right = given.get(found[2]) or (threads if function.source(threads) == found[2] else None)
    return None if left is None or right is None else (left, right, "/")


def _factors(function: Function, node: Node) -> set[str]:
    """Return the texts of the factors of a product of names and numbers; an empty set for any other expression."""
    factors = product_of(function, node)
    return {function.source(each) for each in factors} if all(each.type in _PLAIN for each in factors) else set()


def _of_caller(callee: Function, quotient: tuple[Node, Node, str] | None) -> tuple[Node, Node, str] | None:
    """Return a quotient of a function's parameters as one of its arguments; None where it is made of other names."""
    if quotient is None:
        return None
    given = callee.arguments_given
    left, right = (given.get(callee.source(each), each) for each in quotient[:2])
    is_of_given = all(not callee.names_in(each) or each in given.values() for each in (left, right))
    return (left, right, quotient[2]) if is_of_given else None


def _is_converted_name(function: Function, node: Node) -> bool:
    """Return whether the node is ``(int)n``, ``x.numel()``, or a method's result that a launch gets as well."""
    text = function.source(node)
    if re.fullmatch(r"\(\w+\)\s*\w+|\w+\.(?:numel|size)\(\w*\)", text) is not None:
        return True
    is_method = node.type == "call_expression" and re.fullmatch(r"\w+(?:\.|->)\w+\(\)", text) is not None
    given = (function.source(each) for call in launches_in(function) for each in function.arguments(call))
    return is_method and _ROUNDING_CALL.search(text) is None and text in given


_VECTOR_CAST = re.compile(r"reinterpret_cast<\s*(?:const\s+)?\w+([24])\s*\*>|\((?:const\s+)?\w+([24])\s*\*\)")
_STRING = re.compile(r'"[^"\n]*"')
_HANDLES_REST = re.compile(r"%|&\s*[37]\b|assert|CHECK\w*\([^;]*n")


def _without_tail(function: Function, call: Node) -> str:
    """Return the message for a launch over ``n / 4`` vectors that nothing else completes."""
    vectors = _VECTOR_CAST.search(function.source(call))
    if vectors is None or _HANDLES_REST.search(_STRING.sub("", function.text)) or len(launches_in(function)) > 1:
        return ""
    for argument in function.arguments(call):
        quotient = _quotient(function, argument)
        width = int(vectors[1] or vectors[2])
        if quotient is not None and function.source(quotient[1]) == str(width):
            known, n = known_value(function, quotient[0]), function.source(quotient[0])
            is_exact = known is not None and known % width == 0
            if is_exact or _is_rounded(function, quotient[0], quotient[1], width):
                return ""
            return f"the last `{n} % {width}` elements are in no vector: handle them, or check that there are none"
    return ""


def _exchanged(function: Function, parts: list[Node]) -> str:
    """Return the message for a launch whose grid is a number of threads and whose block is rounded up from a size."""
    grid, text = known_value(function, parts[0]), _SPACES.sub(r"\1", expanded(function, parts[1]))
    is_threads = grid is not None and 64 <= grid <= MAX_THREADS and grid % 32 == 0
    rounded = _ROUNDED_UP.search(_ROUNDING_LITERAL.sub(r"+\2-1)/\2", text))
    is_rounded = known_value(function, parts[1]) is None and rounded is not None
    message = "grid and block are exchanged: the second number counts the threads of a block"
    return message if is_threads and is_rounded else ""


def _too_large(function: Function, parts: list[Node]) -> str:
    """Return the message for more blocks along y or z than a grid can have."""
    scope, sizes = axes(function, parts[0])
    for axis, node in enumerate(sizes):
        blocks = known_value(scope, node)
        if axis and blocks is not None and blocks > MAX_BLOCKS_YZ:
            return f"{blocks:,} blocks along {'xyz'[axis]}: the limit is {MAX_BLOCKS_YZ:,}, use x"
    return ""


_ROUNDED_UP = re.compile(r"(\w+)\+(\w+)-1\)?\)?/\2\b|\b(?:ceil_?div|cdiv|div_?up)\(", re.IGNORECASE)


def _rounded_up(function: Function, call: Node, parts: list[Node]) -> str:
    """Return the message for a grid that is rounded up for a kernel without any check of its index; else an empty
    text. Nothing is said where the host asks for a remainder, as where a caller pads, or the size is known."""
    text = _ROUNDING_LITERAL.sub(r"+\2-1)/\2", _SPACES.sub(r"\1", expanded(function, parts[0])))
    rounded = _ROUNDED_UP.search(text)
    if (
        rounded is None
        or function.launched(call) not in function.file.unchecked_kernels
        or "%" in _STRING.sub("", function.text)
    ):
        return ""
    quotient = _quotient(function, parts[0])
    is_padded = quotient is not None and _is_rounded(function, *quotient[:2], known_value(function, quotient[1]))
    is_padded = is_padded or counts_elements(function.source(parts[0]), function.source(parts[1]), function.text)
    if is_padded or known_value(function, parts[0]) is not None:
        return ""
    return f"grid is rounded up, and `{function.callee(call)}` checks no index: its last block writes beyond the end"


_SPACES = re.compile(r"\s*([-+*/(),])\s*")
_ROUNDING_LITERAL = re.compile(r"\+(\d+)\)?/(\d+)\b")


def _swapped(function: Function, call: Node, parts: list[Node]) -> str:
    """Return the message for a grid whose x is made of the size that the kernel bounds y by, and the other way round;
    else an empty text."""
    kernel = function.launched(call)
    places = {axis: (place, member) for name, axis, place, member in function.file.axis_sizes if name == kernel}
    arguments, (scope, grid) = function.arguments(call), axes(function, parts[0])
    if not places or len(grid) < len(places) or len(arguments) <= max(place for place, _ in places.values()):
        return ""
    sizes = {axis: member or function.source(arguments[place]) for axis, (place, member) in places.items()}
    used = [names_in_text(said(function, scope, node)) for node in grid]
    if sizes["x"] in used[1] - used[0] and sizes["y"] in used[0] - used[1]:
        return (
            f"grid axes are swapped: the kernel bounds x by `{sizes['x']}`, and the grid's x is made of `{sizes['y']}`"
        )
    return ""


def _product(function: Function, node: Node) -> int | None:
    """Return the number of blocks or threads in all axes."""
    scope, nodes = axes(function, node)
    sizes = [known_value(scope, each) for each in nodes]
    return math.prod(each or 0 for each in sizes) if sizes and None not in sizes else None


def _too_few(function: Function, call: Node, parts: list[Node]) -> str:
    """Return the message for a grid that covers a part of the size by which the kernel checks its index, or an empty
    text. Launches of parts are left out: those in a loop, and those of a pointer that is moved."""
    arguments, place = function.arguments(call), dict(function.file.linear_sizes).get(function.launched(call))
    is_moved = any(each.type == "pointer_expression" or function.operator(each) == "+" for each in arguments)
    if place is None or place >= len(arguments) or is_moved or function.loop_around(call) is not None:
        return ""
    size, threads = arguments[place], _product(function, parts[1])
    blocks, n = _product(function, parts[0]), known_value(function, size)
    if blocks is not None and threads is not None and n is not None:
        message = f"grid has {blocks * threads} threads for the {n} elements of `{function.source(size)}`"
        return message if 0 < blocks * threads < n else ""
    rounded = _rounded_size(function, parts[0], parts[1])
    covered = Counter[str]() if rounded is None else _open_factors(function, rounded)
    whole = _open_factors(function, size)
    missing = " * ".join((whole - covered).elements())
    is_part = bool(covered) and bool(missing) and not covered - whole
    return f"grid covers a part of `{function.source(size)}`: `{missing}` is missing from its size" if is_part else ""


def _rounded_size(function: Function, node: Node, threads: Node, depth: int = 0) -> Node | None:
    """Return the size of a grid that is rounded up to blocks: n of ``(n + 255) / 256`` or ``ceil_div(n, 256)``."""
    arguments = function.arguments(node) if node.type == "call_expression" else []
    inner = definition(function, node)
    if node.type in ("parenthesized_expression", "cast_expression"):
        inner = node.child_by_field_id(fields.VALUE) or node.named_children[-1]
    elif len(arguments) == 1:
        inner = arguments[0]
    if inner is not None and depth <= MAX_NAMES:
        return _rounded_size(function, inner, threads, depth + 1)
    size, divisor = node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT)
    if len(arguments) == 2 and _ROUNDING_NAME.search(function.callee(node)):
        size, divisor = arguments
    elif size is None or divisor is None or function.operator(node) != "/" or "+" not in function.source(size):
        return None
    while size is not None and (function.operator(size) in ("+", "-") or size.type == "parenthesized_expression"):
        size = size.child_by_field_id(fields.LEFT) or next(iter(size.named_children), None)
    known = known_value(function, divisor)
    is_of_block = function.source(divisor) == function.source(threads) or function.source(divisor).endswith(".x")
    is_of_block = is_of_block or (known is not None and known == _product(function, threads))
    return size if is_of_block else None


_ROUNDING_NAME = re.compile(r"ceil|cdiv|div_?up|blocks", re.IGNORECASE)


def _open_factors(function: Function, node: Node, depth: int = 0) -> Counter[str]:
    """Return the names in a product and in the products that they stand for; none where it has other parts."""
    found: Counter[str] = Counter()
    for factor in product_of(function, node):
        inner = definition(function, factor) if depth <= MAX_NAMES else None
        if inner is not None and (parts := _open_factors(function, inner, depth + 1)):
            found += parts
        elif factor.type in ("identifier", "field_expression"):
            found[function.source(factor)] += 1
        else:
            return Counter()
    return found
