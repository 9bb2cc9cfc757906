"""KL210 and KL217: access strides between consecutive threads, and alignment of vector accesses."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import takewhile

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import ERROR, WARNING, conditions_around, declare, hit
from kernel_lsp.rules.cuda.memory.pointers import Reach, pointed, reach_of
from kernel_lsp.rules.cuda.model import Function, Meaning
from kernel_lsp.rules.cuda.names import names_in_text
from kernel_lsp.rules.cuda.simulation.hits import simulated_hits
from kernel_lsp.rules.cuda.threads.threads import (
    Stride,
    growth,
    is_loop_variable,
    may_depend_on_thread,
    possible_names,
)
from kernel_lsp.rules.cuda.variables import type_bytes
from kernel_lsp.rules.rule import Hit

MAX_NEIGHBOUR_STRIDE = 4
"""Maximum stride in elements between consecutive threads. Up to this, later lines usually use the other elements of
the same sectors."""
MAX_SMALL_BLOCK = 128
"""Maximum threads of a single block whose strides cost too little to report: one warp per scheduler."""
SECTOR_ELEMENTS = 8
"""Elements of 4 bytes per sector of 32 bytes."""
_MACRO_NAME = re.compile(r"[A-Z_][A-Z0-9_]+")
_VECTORS = "float2 float4 int2 int4 uint2 uint4 double2 half2 __half2 __nv_bfloat162 nv_bfloat162"
_POINTER_TO = re.compile(r"(?:const\s+)?(\w+)(?:\s+const)?\s*\*(?:\s*(?:const|__restrict__))*")
_OLD_CAST = re.compile((r"\(\s*(?:const\s+)?(?:" + "|".join(_VECTORS.split()) + r")(?:\s+const)?\s*\*\s*\)").encode())
_PICKS_THREADS = re.compile(r"[%&]|==")
"""Operators of a condition that may admit only threads with an aligned address."""


@declare(
    "KL210",
    "strided-access",
    WARNING,
    on="kernel",
    needs=("threadIdx",),
    summary="Neighbouring threads access elements that are far apart",
    why="""
    A warp reads memory in sectors of 32 bytes. When the index grows by more than a few elements from thread to thread,
    each thread needs a sector of its own: 32 of them instead of 4 for one warp's floats. Let `threadIdx.x` run along
    the contiguous dimension. A row and a column of one square matrix, read by the same thread, are left alone, and so
    is a kernel that is launched as one block only, of at most 128 threads or without a loop around the access.
    """,
    bad="""
    __global__ void copy_rows(const float* __restrict__ x, float* __restrict__ out, int n, int d) {
        int row = blockIdx.x * blockDim.x + threadIdx.x;
        if (row >= n) return;
        for (int j = 0; j < d; ++j) out[row * d + j] = x[row * d + j];
    }
    """,
    good="""
    __global__ void copy_rows(const float* __restrict__ x, float* __restrict__ out, int d) {
        int row = blockIdx.x;
        for (int j = threadIdx.x; j < d; j += blockDim.x) out[row * d + j] = x[row * d + j];
    }
    """,
)
def strided_access(function: Function) -> Iterator[Hit]:
    reported: set[int] = set()
    is_one_block = bool(function.launches) and all(launch.is_one_block for launch in function.launches)
    if is_one_block:  # waits for few sectors, except in the loops of many threads
        is_small = all(math.prod(launch.block) <= MAX_SMALL_BLOCK for launch in function.launches)
        yield from () if is_small else _strided_accesses(function, is_in_loop=True)
        return
    for found in _strided_accesses(function):
        reported.add(found.range.start_line)
        yield found
    yield from simulated_hits(function, "KL210", reported=reported)
    yield from _structures(function)


def _structures(function: Function) -> Iterator[Hit]:
    """Yield the accesses to members of large structures, one for each thread: ``particles[i].x``."""
    arrays = {v.name: v for v in function.parameters if v.is_pointer and v.element in function.file.structure_bytes}
    for access in function.subscripts if arrays and function.is_kernel else ():
        name = function.source(access.child_by_field_id(fields.ARGUMENT) or access)
        parent, index = function.parent(access), access.child_by_field_id(fields.INDICES)
        n_bytes = function.file.structure_bytes[arrays[name].element] if name in arrays else 0
        if n_bytes < MIN_STRUCTURE_BYTES or parent is None or parent.type != "field_expression" or index is None:
            continue
        if growth(function, index.named_children[0]) == 1:
            message = f"uncoalesced access: consecutive threads are {n_bytes} bytes apart, use an array per member"
            yield hit(function.file, access, message)
            return


MIN_STRUCTURE_BYTES = 32
"""Bytes of a structure from which each thread's member lies in a sector of its own."""


def _strided_accesses(function: Function, is_in_loop: bool = False) -> Iterator[Hit]:
    """Yield the accesses with a large stride between consecutive threads; `is_in_loop` leaves out those in no loop."""
    file, subscripts = function.file, function.subscripts
    arrays = tuple({variable.name for variable in function.all_variables() if variable.is_pointer})
    possible, settled = possible_names(function), set[str]()
    far: dict[Meaning, bool] = {}
    for index, text in enumerate(file.texts(subscripts)):
        if text in settled:
            continue
        if not text.startswith(arrays) or names_in_text(text).isdisjoint(possible):
            settled.add(text)
            continue
        meaning = function.meaning_of(text, subscripts.starts[index])
        is_far = far.get(meaning)
        if is_far is None:
            is_far = far[meaning] = _is_far(function, subscripts[index])
        if not is_far:
            if meaning is text:
                settled.add(text)
            continue
        subscript = subscripts[index]
        if _is_in_tail(function, subscript) or (is_in_loop and function.loop_around(subscript) is None):
            continue
        reach = reach_of(function, subscript)
        is_needed = _is_wrapped(function, subscript) or _is_read_transposed(function, subscript)
        is_needed = is_needed or _OF_BLOCK_IN_COLUMN.search(function.source(subscript)) is not None
        if reach is not None and not is_needed and not _uses_all_between(function, reach):
            settled.add(text)
            distance = "a variable stride" if isinstance(reach.step, Stride) else f"{abs(reach.step)} elements"
            yield hit(file, subscript, f"uncoalesced access: consecutive threads are {distance} apart")


@declare(
    "KL217",
    "misaligned-vector",
    ERROR,
    on="kernel",
    needs=("threadIdx", _VECTORS, "*"),
    summary="Threads read vectors from addresses at which none can begin",
    why="""
    A vector of 8 or 16 bytes must begin at a multiple of its size: anything else is a "misaligned address", and the
    kernel ends. Here the address moves by less from one thread to the next. Let each thread own a whole vector, as in
    `reinterpret_cast<const float4*>(x)[i]`.
    """,
    bad="""
    __global__ void copy(const float* __restrict__ x, float4* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = *reinterpret_cast<const float4*>(x + i);
    }
    """,
    good="""
    __global__ void copy(const float* __restrict__ x, float4* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = *reinterpret_cast<const float4*>(x + 4 * i);
    }
    """,
)
def misaligned_vector(function: Function) -> Iterator[Hit]:
    for cast, vector, pointer in vector_casts(function):
        reach, vector_bytes = pointed(function, pointer), type_bytes(vector)
        element_bytes = None if reach is None else type_bytes(reach.array.element)
        if reach is None or vector_bytes is None or element_bytes is None or not isinstance(reach.step, int):
            continue
        step_bytes = reach.step * element_bytes
        if step_bytes % vector_bytes and not _is_for_some_threads(function, cast):
            message = (
                f"neighbouring threads are {abs(step_bytes)} bytes apart here, and a `{vector}` begins only at "
                f"multiples of {vector_bytes}: misaligned address"
            )
            yield hit(function.file, cast, message)
        elif shift := _shift(function, pointer) * element_bytes % vector_bytes:
            message = f"the address is {shift} bytes beyond a multiple of {vector_bytes}, where no `{vector}` begins"
            yield hit(function.file, cast, message)


def _shift(function: Function, pointer: Node) -> int:
    """Return the constant that is added to a multiple of the vectors' size: 1 of ``&x[4 * i + 1]``."""
    text = function.source(pointer).replace(" ", "")
    found = re.search(r"[\[+(](?:\w+\*(\d+)|(\d+)\*\w+)\+(\d+)\]?\)?$", text)
    return int(found[3]) if found is not None and int(found[1] or found[2]) % 2 == 0 else 0


def _is_far(function: Function, subscript: Node) -> bool:
    """Return whether the access is to global memory with a large stride between consecutive threads."""
    if not may_depend_on_thread(function, subscript):
        return False
    reach = reach_of(function, subscript)
    if reach is None:
        return False
    return reach.step is Stride.VARIABLE or (isinstance(reach.step, int) and _is_wide_step(reach))


def _is_wide_step(reach: Reach) -> bool:
    """Return whether neighbouring threads are more than a few elements, of at most 4 bytes, apart."""
    n_bytes = min(type_bytes(reach.array.element) or 4, 4)
    return abs(reach.step) * n_bytes > 4 * MAX_NEIGHBOUR_STRIDE if isinstance(reach.step, int) else False


def _is_in_tail(function: Function, subscript: Node) -> bool:
    """Return whether the access is in a tail loop of one thread:
    ``if (i + 4 <= n) {...} else for (int k = i; k < n; ++k) y[k] = ...``."""
    loop = function.loop_around(subscript) if function.loops else None
    if loop is None or loop.type != "for_statement":
        return False
    parents = takewhile(lambda parent: parent.type in ("compound_statement", "else_clause"), function.around(loop))
    return any(parent.type == "else_clause" for parent in parents)


_OF_BLOCK_IN_COLUMN = re.compile(r"\*\s*gridDim\.x\s*\+\s*blockIdx\.x\s*\]$")
"""A column for each block, once: a scan that follows reads rows."""
_OF_MATRIX = re.compile(r"(?P<row>\w+)\*(?P<size>\w+)\+(?P<column>\w+)")
"""An index without spaces and casts."""


def _is_read_transposed(function: Function, subscript: Node) -> bool:
    """Return whether one thread reads a row and a column of a square matrix, or its diagonal: no order of threads makes
    both contiguous. ``m[i * n + k]`` and ``m[k * n + i]`` in a loop over `k`."""
    index = _matrix_index(function, subscript)
    if index is None:
        return False
    row, size, column = index.group("row", "size", "column")
    counters = [each for name in (row, column) for each in function.named(name) if is_loop_variable(function, each)]
    if row == column or not counters:
        return row == column
    array = function.source(subscript).partition("[")[0]
    others = (_matrix_index(function, each) for each in function.subscripts)
    transposed = f"{array}[{column}*{size}+{row}]"
    return any(each is not None and each.string == transposed for each in others)


def _matrix_index(function: Function, subscript: Node) -> re.Match[str] | None:
    text = _BRACKETED_NAME.sub(r"\1", _CAST.sub("", function.source(subscript))).replace(" ", "")
    return _OF_MATRIX.fullmatch(text, text.find("[") + 1, len(text) - 1)


_CAST = re.compile(r"static_cast\s*<[^<>]*>|\(\s*(?:size_t|u?int64_t|long long)\s*\)")
_BRACKETED_NAME = re.compile(r"(?<!\w)\(\s*(\w+)\s*\)")


def _is_wrapped(function: Function, subscript: Node) -> bool:
    """Return whether a whole vector may be accessed, or only the address is taken. Vector accesses are the single
    argument of a macro, as in ``LDST128BITS(x[i])``, or a pointer cast, as in ``reinterpret_cast<float4*>(&x[i])``."""
    arguments = function.parent(subscript)
    if arguments is not None and arguments.type == "pointer_expression":
        taken = function.parent(arguments)
        cast = function.parent(taken)
        is_old = any(node is not None and node.type == "cast_expression" for node in (taken, cast))
        is_argument = taken is not None and taken.type == "argument_list"
        return is_old or not is_argument or (cast is not None and function.callee(cast) == "reinterpret_cast")
    call = function.parent(arguments)
    if arguments is None or call is None or arguments.type != "argument_list" or call.type != "call_expression":
        return False
    return arguments.named_child_count == 1 and _MACRO_NAME.fullmatch(function.callee(call)) is not None


def _uses_all_between(function: Function, reach: Reach) -> bool:
    """Return whether the function accesses at least as many of the elements in between as it skips, as for a record
    with five numbers. The sectors that one access fetches then serve the next accesses."""
    if not isinstance(reach.step, int) or abs(reach.step) > SECTOR_ELEMENTS:
        return False
    cache = function.caches.setdefault("elements", {})
    key = (reach.array.name_node.id, reach.step)
    if key not in cache:
        cache[key] = {function.source(other) for other in function.subscripts if reach_of(function, other) == reach}
    return 2 * len(cache[key]) >= abs(reach.step)


def vector_casts(function: Function) -> Iterator[tuple[Node, str, Node]]:
    """Yield each cast to a pointer to a vector: its node, the vector type and the operand."""
    for call in function.calls_named(("reinterpret_cast",)):
        target = function.source(call.child_by_field_id(fields.FUNCTION) or call).partition("<")[2].rstrip("> ")
        arguments, pointer = function.arguments(call), _POINTER_TO.fullmatch(target.strip())
        if pointer is not None and len(arguments) == 1 and pointer[1] in _VECTORS.split():
            yield call, pointer[1], arguments[0]
    body = function.body
    for match in _OLD_CAST.finditer(function.file.parsed.data, body.start_byte, body.end_byte):
        bracket = body.descendant_for_byte_range(match.start(), match.start() + 1)
        cast = function.parent(bracket)
        value = None if cast is None else cast.child_by_field_id(fields.VALUE)
        pointer = _POINTER_TO.search(match.group().decode())
        if cast is not None and cast.type == "cast_expression" and value is not None and pointer is not None:
            yield cast, pointer[1], value


def _is_for_some_threads(function: Function, node: Node) -> bool:
    return any(_PICKS_THREADS.search(function.source(condition)) for condition in conditions_around(function, node))
