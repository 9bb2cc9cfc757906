"""KL218: out-of-bounds indices of arrays with known sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.bounds.thread_range import (
    THREAD_INDICES,
    Place,
    block_size,
    bounds_grid,
    is_thread_index,
    place_of,
    thread_range,
)
from kernel_lsp.rules.cuda.declare import ERROR, conditions_around, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.simulation.hits import simulated_hits
from kernel_lsp.rules.cuda.threads.threads import (
    WARP,
    block_names,
    may_depend_on_thread,
)
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit

ELEMENTS = ("subscript_expression", "pointer_expression")
"""Node types of an element that is updated: ``out[i]`` and ``*out``."""


@declare(
    "KL218",
    "array-out-of-bounds",
    ERROR,
    on="device",
    needs=("[",),
    summary="An index is beyond an end of an array whose size the text says",
    why="""
    A constant, a loop counter or the thread's own number plus or minus one reaches an element that the array does not
    have: thread 0 reads `tile[-1]`, or a loop with `<=` goes one too far. In shared memory that is some other variable.
    Guard the access, or give the array the halo elements.
    """,
    bad="""
    __global__ void left(const float* __restrict__ x, float* __restrict__ out) {
        __shared__ float tile[256];
        tile[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = tile[threadIdx.x - 1];
    }
    """,
    good="""
    __global__ void left(const float* __restrict__ x, float* __restrict__ out) {
        __shared__ float tile[256];
        tile[threadIdx.x] = x[threadIdx.x];
        __syncthreads();
        out[threadIdx.x] = threadIdx.x > 0 ? tile[threadIdx.x - 1] : 0.0f;
    }
    """,
)
def array_out_of_bounds(function: Function) -> Iterator[Hit]:
    arrays = {v.name for v in function.all_variables() if v.is_array and v.sizes}
    reported: set[int] = set()
    for subscript in function.subscripts if arrays else ():
        array = _sized_array(function, subscript)
        if array is None:
            continue
        for index, size in zip(indices_of(subscript)[::-1], array.sizes, strict=False):
            message = _beyond(function, subscript, index, size)
            if message:
                reported.add(subscript.start_point[0])
                yield hit(function.file, subscript, f"index out of bounds: {message}", *_fixes(function, subscript))
                break
    yield from simulated_hits(function, "KL218", reported=reported)


def thread_reaches(function: Function) -> Iterator[tuple[Node, int, int, str]]:
    """Yield unguarded accesses to shared arrays by thread index, with the axis and the array's extent in threads
    along it. An extent that is a template parameter is named, and its number counts from the parameter's value."""
    for subscript in function.subscripts:
        array = _sized_array(function, subscript)
        if array is None or not array.is_shared:
            continue
        for index, size in zip(indices_of(subscript)[::-1], array.sizes, strict=False):
            place, limit = place_of(function, index), function.constant(size)
            named, more = ("", 0) if limit is not None else _name_and_rest(function, size)
            if place is None or place.counter is None or (limit is None and not named):
                continue
            text = function.source(place.counter).replace(" ", "")
            if text not in THREAD_INDICES or _is_guarded(function, subscript, place.counter):
                continue
            if _is_for_length(function, subscript, size):
                continue
            if not _beyond(function, subscript, index, size):
                yield subscript, "xyz".index(text[-1]), (more if limit is None else limit) - place.offset, named


def row_reaches(function: Function) -> Iterator[tuple[Node, int, int, Node]]:
    """Yield unguarded writes ``x[blockIdx.x * LENGTH + threadIdx.x]``, with the axis of the threads, the offset and the
    length: threads beyond it write the row of the next block."""
    blocks = block_names(function)
    for write in function.assignments if "blockIdx" in function.text else ():
        access = write.child_by_field_id(fields.LEFT)
        index = None if access is None else next(iter(indices_of(access)), None)
        if access is None or index is None or function.operator(index) != "+":
            continue
        product, place = index.child_by_field_id(fields.LEFT), place_of(function, index.child_by_field_id(fields.RIGHT))
        if product is None or function.operator(product) != "*" or place is None or place.counter is None:
            continue
        axis = function.source(place.counter).replace(" ", "")
        row, length = product.child_by_field_id(fields.LEFT), product.child_by_field_id(fields.RIGHT)
        is_plain = length is not None and length.type in ("identifier", "number_literal")
        is_row = row is not None and _is_block(function, row, blocks) and axis in THREAD_INDICES and is_plain
        is_free = is_row and not _is_guarded(function, access, place.counter)
        if is_free and length is not None and not _is_for_length(function, access, length):
            yield access, "xyz".index(axis[-1]), place.offset, length


def _is_for_length(function: Function, access: Node, length: Node | None) -> bool:
    """Return whether a condition admits only some lengths: ``if constexpr (THREADS <= ROW)``."""
    names = frozenset[str]() if length is None else function.names_in(length)
    return any(names & function.names_in(condition) for condition in conditions_around(function, access))


def _is_block(function: Function, row: Node, blocks: frozenset[str]) -> bool:
    """Return whether the node is ``blockIdx.x``, or a name for it."""
    variable = function.variable(row)
    value = row if variable is None or variable.writes or variable.name not in blocks else variable.value
    return value is not None and re.fullmatch(r"blockIdx\s*\.\s*[xyz]", function.source(value)) is not None


def _name_and_rest(function: Function, size: Node | None) -> tuple[str, int]:
    """Return the name in ``N`` or ``N + 1``, and the constant; no name for another extent."""
    if size is None or size.type == "identifier":
        return ("" if size is None else function.source(size)), 0
    left, right = size.child_by_field_id(fields.LEFT), size.child_by_field_id(fields.RIGHT)
    rest = function.constant(right)
    if left is None or left.type != "identifier" or rest is None or function.operator(size) not in ("+", "-"):
        return "", 0
    return function.source(left), rest if function.operator(size) == "+" else -rest


def _sized_array(function: Function, subscript: Node) -> Variable | None:
    parent = function.parent(subscript)
    if parent is None or parent.type in ("subscript_expression", "sizeof_expression"):
        return None
    if parent.type == "pointer_expression" and not _is_for_atomic(function, parent):
        return None
    array = root_of(function, subscript)
    is_sized = array is not None and array.is_array and not array.is_pointer and bool(array.sizes)
    return array if is_sized else None


def _is_for_atomic(function: Function, address: Node) -> bool:
    """Return whether the address is an atomic operation's, which accesses the element; others may be the end's."""
    arguments = function.parent(address)
    call = None if arguments is None else function.parent(arguments)
    return call is not None and call.type == "call_expression" and function.callee(call).startswith("atomic")


def indices_of(subscript: Node) -> list[Node]:
    found: list[Node] = []
    node: Node | None = subscript
    while node is not None and node.type == "subscript_expression":
        inner = node.child_by_field_id(fields.INDICES)
        found += [] if inner is None else inner.named_children[:1]
        node = node.child_by_field_id(fields.ARGUMENT)
    return found


def root_of(function: Function, subscript: Node) -> Variable | None:
    node: Node | None = subscript
    while node is not None and node.type in ELEMENTS:
        node = node.child_by_field_id(fields.ARGUMENT)
    return function.variable(node)


def _beyond(function: Function, access: Node, index: Node, size: Node | None) -> str:
    """Return why the index is out of bounds, or an empty text."""
    (named, more), (sized, rest) = _name_and_rest(function, index), _name_and_rest(function, size)
    is_symbolic = bool(named) and function.constant(size) is None and not function.named(named)
    if is_symbolic and named == sized and more >= rest:
        return f"`{function.source(index)}` is beyond the {_said(function, size)} elements"
    place = place_of(function, index)
    if place is None:
        return _beyond_by_sum(function, access, index)
    limit = function.constant(size)
    if place.counter is None:
        is_beyond = place.offset < 0 or (limit is not None and place.offset >= limit)
        return f"{place.offset} is beyond the {_said(function, size)} elements" if is_beyond else ""
    if is_thread_index(function, place.counter):
        return _beyond_by_thread(function, access, place, size)
    if _is_guarded(function, access, place.counter):
        return ""
    counter = function.source(place.counter)
    first, last, is_past = _counted(function, place.counter, size)
    if first is not None and first + place.offset < 0:
        return f"`{counter}` begins at {first}, so the first index is {first + place.offset}"
    if last is not None and limit is not None and last + place.offset >= limit:
        return f"`{counter}` ends at {last}, so the last index is {last + place.offset} of {limit} elements"
    return f"`{counter}` reaches {_said(function, size)}" if is_past and place.offset >= 0 else ""


def _beyond_by_thread(function: Function, access: Node, place: Place, size: Node | None) -> str:
    """Return which thread's own index, plus an offset, is out of bounds, or an empty text."""
    threads = None if place.counter is None else thread_range(function, access, place.counter)
    limit = function.constant(size)
    if threads is None:
        return ""
    if threads.first + place.offset < 0:
        return f"thread {threads.first} has index {threads.first + place.offset}"
    is_halo = not threads.end or 0 < place.offset < WARP
    last = threads.last if threads.last is not None and is_halo else threads.first
    if limit is not None and last >= threads.first and last + place.offset >= limit:
        return f"thread {last} has index {last + place.offset} of {limit} elements"
    is_by_name = limit is None and size is not None and function.source(size) == threads.end
    return f"the last thread has index {threads.end} + {place.offset - 1}" if is_by_name and is_halo else ""


def _beyond_by_sum(function: Function, access: Node, index: Node) -> str:
    """Return why the sum of a thread's own index and a loop counter begins before the array, or an empty text."""
    parts = [index.child_by_field_id(part) for part in (fields.LEFT, fields.RIGHT)]
    places = [place_of(function, part) for part in parts]
    if index.type != "binary_expression" or function.operator(index) != "+" or None in places:
        return ""
    first = 0
    for place in places:
        if place is None or place.counter is None:
            return ""
        lowest = _lowest(function, access, place.counter)
        if lowest is None:
            return ""
        first += lowest + place.offset
    return f"the first one is {first}" if first < 0 else ""


def _lowest(function: Function, access: Node, counter: Node) -> int | None:
    """Return the lowest value of a counter that no condition around the access excludes."""
    if is_thread_index(function, counter):
        threads = thread_range(function, access, counter)
        return None if threads is None else threads.first
    return None if _is_guarded(function, access, counter) else _counted(function, counter, None)[0]


def _said(function: Function, size: Node | None) -> str:
    return "its" if size is None else function.source(size)


def _is_guarded(function: Function, access: Node, counter: Node) -> bool:
    """Return whether a condition may exclude a thread or an iteration from the access."""
    names = function.names_in(counter)
    variable = function.variable(counter)
    depends_on_threads = variable is None or may_depend_on_thread(function, variable.value)
    for condition in conditions_around(function, access):
        is_own_loop = variable is not None and _is_head_of(function, condition, variable)
        is_ineffective = is_own_loop or (variable is None and bounds_grid(function, condition))
        is_of_thread = depends_on_threads and may_depend_on_thread(function, condition)
        if not is_ineffective and (is_of_thread or names & function.names_in(condition)):
            return True
    known = function.caches.setdefault("guards", {})
    if not known:
        rights = [both.child_by_field_id(fields.RIGHT) for both in function.connections]
        known["rights"] = [(right.start_byte, right.end_byte) for right in rights if right is not None]
        known["leaves"] = any(word in function.text for word in ("break", "continue"))
    if any(start <= access.start_byte < end for start, end in known["rights"]):
        return True
    leaves = variable is not None and known["leaves"]
    return leaves or any(node.start_byte < access.start_byte for node in function.returns)


def _is_head_of(function: Function, condition: Node, variable: Variable) -> bool:
    """Return whether this is the condition of the loop that declares the variable."""
    loop = function.parent(variable.declaration)
    head = None if loop is None else loop.child_by_field_id(fields.CONDITION)
    return head is not None and head.id == condition.id


def _counted(function: Function, counter: Node, size: Node | None) -> tuple[int | None, int | None, bool]:
    """Return the first and last value of a loop that counts up by one, in one thread or in those of a block together,
    and whether its bound is the array's size."""
    variable = function.variable(counter)
    loop = None if variable is None else function.parent(variable.declaration)
    condition = None if loop is None else loop.child_by_field_id(fields.CONDITION)
    if variable is None or condition is None or condition.type != "binary_expression" or len(variable.writes) != 1:
        return None, None, False
    is_own = function.variable(condition.child_by_field_id(fields.LEFT)) is variable
    operator = function.operator(condition)
    write = function.source(variable.writes[0]).replace(" ", "")
    if is_own and write in (f"--{variable.name}", f"{variable.name}--", f"{variable.name}-=1"):
        return _counted_down(function, variable, condition)
    if not is_own or not _counts_by_one(function, variable):
        return None, None, False
    begin = place_of(function, variable.value)
    first = None if begin is None or not (begin.counter is None or _strides(function, variable)) else begin.offset
    right = condition.child_by_field_id(fields.RIGHT)
    limit = function.constant(right)
    last = None if limit is None or operator not in ("<", "<=") else limit - (operator == "<")
    is_same = right is not None and size is not None and function.source(right) == function.source(size)
    return first, last, operator == "<=" and is_same and first is not None


def _counted_down(function: Function, variable: Variable, condition: Node) -> tuple[int | None, int | None, bool]:
    """Return the lowest and highest value of ``for (i = 8; i > 0; --i)``."""
    operator, last = function.operator(condition), function.constant(variable.value)
    limit = function.constant(condition.child_by_field_id(fields.RIGHT))
    first = None if limit is None or operator not in (">", ">=") else limit + (operator == ">")
    return first, last, False


def _counts_by_one(function: Function, variable: Variable) -> bool:
    """Return whether a loop variable takes every value up to its bound, in one thread or in those of a block."""
    write, name = function.source(variable.writes[0]).replace(" ", ""), variable.name
    return write in (f"++{name}", f"{name}++", f"{name}+=1") or _strides(function, variable)


def _strides(function: Function, variable: Variable) -> bool:
    """Return whether the threads of a block count together: ``i = threadIdx.x`` with ``i += blockDim.x``."""
    place = place_of(function, variable.value)
    if place is None or place.counter is None or not is_thread_index(function, place.counter):
        return False
    axis = function.source(place.counter).replace(" ", "")[-1]
    steps = {f"blockDim.{axis}", block_size(function, axis) or "-"}
    return function.source(variable.writes[0]).replace(" ", "").removeprefix(f"{variable.name}+=") in steps


def _fixes(function: Function, access: Node) -> Iterator[QuickFix]:
    """Yield fixes: ``i > 0 ? tile[i - 1] : 0`` for a read, and `<` for a loop with an off-by-one bound."""
    parsed, index = function.file.parsed, indices_of(access)[0]
    place = place_of(function, index)
    if place is None or place.counter is None:
        return
    parent = function.parent(access)
    is_target = parent is not None and parent.type in ("assignment_expression", "update_expression")
    left = None if parent is None else parent.child_by_field_id(fields.LEFT)
    is_read = not is_target or (left is not None and left.id != access.id)
    if place.offset < 0 and is_read:
        text = f"({function.source(place.counter)} >= {-place.offset} ? {function.source(access)} : 0)"
        yield QuickFix("Read 0 in front of the array", (parsed.replace(access, text),), False)
    variable = function.variable(place.counter)
    loop = None if variable is None else function.parent(variable.declaration)
    condition = None if loop is None else loop.child_by_field_id(fields.CONDITION)
    operator = None if condition is None else condition.child_by_field_id(fields.OPERATOR)
    if operator is not None and function.source(operator) == "<=" and place.offset == 0:
        yield QuickFix("Count with `<`", (parsed.replace(operator, "<"),), False)
