"""KL210 to KL219: how memory is reached."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import takewhile

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import INFORMATION, LOOP_WORDS, WARNING, declare, hit, rewrite
from kernel_lsp.rules.cuda.model import Function, Meaning
from kernel_lsp.rules.cuda.outline import CudaFile as File
from kernel_lsp.rules.cuda.threads import (
    BLOCK_SOURCES,
    THREAD_SOURCES,
    Growth,
    Stride,
    growth,
    is_loop_variable,
    may_depend_on_thread,
)
from kernel_lsp.rules.cuda.type_text import type_bytes
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit

MAX_NEIGHBOUR_STRIDE = 4
"""Elements: up to it the other elements of the same sectors are usually used by the next lines."""
SECTOR_ELEMENTS = 8
"""Of 4 bytes in a sector of 32 bytes."""
_MACRO_NAME = re.compile(r"[A-Z_][A-Z0-9_]+")
N_BANKS = 32
BANK_BYTES = 4
"""Shared memory has 32 banks of 4 bytes (CUDA C++ Programming Guide, compute capability 5.x and later)."""
_ATOMICS = ("atomicAdd", "atomicSub", "atomicMax", "atomicMin", "atomicOr", "atomicAnd", "atomicXor", "atomicInc")
_WIDE_CASTS = ("size_t", "long long", "int64_t", "uint64_t", "ptrdiff_t", "long")
_WIDE_LITERAL = re.compile(r"\b\d[\d'a-fA-FxX]*[uU]?[lL]")
_INDEX_SOURCES = ("blockIdx", "gridDim")


@declare(
    "KL210",
    "strided-access",
    WARNING,
    on="kernel",
    needs=("threadIdx", "["),
    summary="Neighbouring threads access elements that are far apart",
    why="""
    A warp reads memory in sectors of 32 bytes. When the index grows by more than a few elements from thread to thread,
    each thread needs a sector of its own: 32 of them instead of 4 for one warp's floats. Let `threadIdx.x` run along
    the contiguous dimension.
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
    file, source = function.file, function.source
    arrays = tuple(parameter.name for parameter in function.parameters if parameter.is_pointer)
    reported: set[str] = set()
    far: dict[Meaning, bool] = {}
    for subscript in function.subscripts:
        text = source(subscript)
        if text in reported or not text.startswith(arrays):
            continue
        meaning = function.meaning_of(text, subscript)
        is_far = far.get(meaning)
        if is_far is None:
            is_far = far[meaning] = _is_far(function, subscript)
        if not is_far or _is_in_tail(function, subscript):
            continue
        array, step = _global_array(function, subscript), growth(function, _index(subscript))
        if array is not None and not _is_wrapped(function, subscript) and not _uses_all_between(function, array, step):
            reported.add(text)
            distance = "a variable stride" if isinstance(step, Stride) else f"{abs(step)} elements"
            yield hit(file, subscript, f"neighbouring threads are {distance} apart: up to 32 sectors per warp")


@declare(
    "KL211",
    "bank-conflict",
    WARNING,
    on="device",
    needs=("__shared__",),
    summary="A column of a shared tile lies in one bank",
    why="""
    Shared memory has 32 banks of 4 bytes. In `float tile[32][32]` all elements of a column are in the same bank, so a
    warp that reads a column is served one thread at a time. One more element per row spreads the column.
    """,
    bad="""
    __global__ void transpose(const float* __restrict__ x, float* __restrict__ out, int n) {
        __shared__ float tile[32][32];
        tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * n + threadIdx.x];
        __syncthreads();
        out[threadIdx.y * n + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
    }
    """,
    good="""
    __global__ void transpose(const float* __restrict__ x, float* __restrict__ out, int n) {
        __shared__ float tile[32][33];
        tile[threadIdx.y][threadIdx.x] = x[threadIdx.y * n + threadIdx.x];
        __syncthreads();
        out[threadIdx.y * n + threadIdx.x] = tile[threadIdx.x][threadIdx.y];
    }
    """,
)
def bank_conflict(function: Function) -> Iterator[Hit]:
    if not any(_has_full_rows(function, variable) for variable in function.all_variables()):
        return
    file = function.file
    reported: set[str] = set()
    for subscript in function.subscripts:
        row = subscript.child_by_field_id(fields.ARGUMENT)
        if row is None or row.type != "subscript_expression":
            continue
        tile = function.variable(row.child_by_field_id(fields.ARGUMENT))
        if tile is None or tile.name in reported or not _has_full_rows(function, tile):
            continue
        if growth(function, _index(row)) == 1 and growth(function, _index(subscript)) == 0:
            reported.add(tile.name)
            message = "the 32 threads of a warp read one bank, one after the other: pad the row by one element"
            yield hit(file, subscript, message, *_padding_fix(function, tile))


@declare(
    "KL212",
    "dynamic-local-array",
    INFORMATION,
    on="device",
    needs=("[",),
    summary="A local array with an index that is not known when compiling",
    why="""
    Registers cannot be indexed: such an array lies in local memory, which is device memory behind the caches. Loops
    with constant bounds are unrolled and keep it in registers. ptxas has the last word: see its stack figure.
    """,
    bad="""
    __global__ void pick(const float* __restrict__ x, float* __restrict__ out, const int* __restrict__ which) {
        float part[4];
        for (int i = 0; i < 4; ++i) part[i] = x[4 * threadIdx.x + i];
        int k = which[threadIdx.x];
        out[threadIdx.x] = part[k];
    }
    """,
    good="""
    __global__ void pick(const float* __restrict__ x, float* __restrict__ out, const int* __restrict__ which) {
        float part[4];
        for (int i = 0; i < 4; ++i) part[i] = x[4 * threadIdx.x + i];
        int k = which[threadIdx.x];
        float found = 0.0f;
        for (int i = 0; i < 4; ++i) found = i == k ? part[i] : found;
        out[threadIdx.x] = found;
    }
    """,
)
def dynamic_local_array(function: Function) -> Iterator[Hit]:
    if not any(variable.is_array and _is_in_registers(variable) for variable in function.all_variables()):
        return
    file = function.file
    reported: set[str] = set()
    for subscript in function.subscripts:
        array = function.variable(subscript.child_by_field_id(fields.ARGUMENT))
        if array is None or not array.is_array or array.name in reported or not _is_in_registers(array):
            continue
        index = function.variable(_index(subscript))
        if index is not None and _is_runtime_value(function, index):
            reported.add(array.name)
            yield hit(file, subscript, f"`{array.name}` is indexed at run time: it goes to local memory")


@declare(
    "KL213",
    "accumulate-in-memory",
    WARNING,
    on="kernel",
    needs=("+= -= *=", LOOP_WORDS),
    patterns=(r"\]\s*[-+*]=",),
    summary="A loop accumulates into an element of global memory",
    why="""
    The element is read and written in every round: the compiler may not keep it in a register when another pointer
    could reach it, and each addition waits for memory. Sum up in a local variable and store once.
    """,
    bad="""
    __global__ void sum_rows(const float* __restrict__ x, float* __restrict__ out, int d) {
        int row = blockIdx.x;
        for (int j = 0; j < d; ++j) out[row] += x[row * d + j];
    }
    """,
    good="""
    __global__ void sum_rows(const float* __restrict__ x, float* __restrict__ out, int d) {
        int row = blockIdx.x;
        float sum = 0.0f;
        for (int j = 0; j < d; ++j) sum += x[row * d + j];
        out[row] = sum;
    }
    """,
)
def accumulate_in_memory(function: Function) -> Iterator[Hit]:
    file = function.file
    for write in function.assignments:
        left = write.child_by_field_id(fields.LEFT)
        if left is None or function.operator(write) not in ("+=", "-=", "*="):
            continue
        array, loop = _global_array(function, left), function.loop_around(write)
        if (
            array is not None
            and loop is not None
            and function.names_in(_index(left)).isdisjoint(_changed_in(function, loop))
        ):
            yield hit(file, write, "this element is read and written in every round: sum in a local variable")


@declare(
    "KL214",
    "same-address-atomic",
    WARNING,
    on="kernel",
    needs=("atomic",),
    summary="All threads do an atomic operation on one address",
    why="""
    Atomic operations on one address are done one after the other: a million threads make a queue of a million. Reduce
    within the warp or block first, and let one thread of it do the atomic operation.
    """,
    bad="""
    __global__ void total(const float* __restrict__ x, float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) atomicAdd(&out[0], x[i]);
    }
    """,
    good="""
    __global__ void total(const float* __restrict__ x, float* __restrict__ out, int n) {
        float sum = 0.0f;
        for (int i = threadIdx.x; i < n; i += 32) sum += x[i];
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
        if (threadIdx.x == 0) atomicAdd(&out[0], sum);
    }
    """,
)
def same_address_atomic(function: Function) -> Iterator[Hit]:
    file = function.file
    for call in function.calls_named(_ATOMICS):
        arguments = function.arguments(call)
        if not arguments:
            continue
        address = arguments[0]
        names = {name for name in function.names_in(address) if name in function.variables}
        variables = [variable for name in names for variable in function.named(name)]
        is_one = bool(names) and all(variable in function.parameters for variable in variables)
        has_fixed_index = address.type == "identifier" or "[0]" in function.source(address).replace(" ", "")
        if is_one and has_fixed_index and not _is_for_few_threads(function, call):
            yield hit(file, call, "every thread waits for this one address: reduce in the block first")


@declare(
    "KL215",
    "index-overflow",
    WARNING,
    on="device",
    needs=("blockIdx gridDim", "size_t int64_t ptrdiff_t long", "*"),
    summary="A product is computed in 32 bits and then stored in 64",
    why="""
    `blockIdx.x * blockDim.x` is an unsigned 32-bit product: from 2³² on it wraps, before it is widened. Widen one
    factor first. When everything fits 32 bits, the variable can be an int.
    """,
    bad="""
    __global__ void fill(float* __restrict__ out, size_t n) {
        size_t i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) out[i] = 0.0f;
    }
    """,
    good="""
    __global__ void fill(float* __restrict__ out, size_t n) {
        size_t i = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x;
        if (i < n) out[i] = 0.0f;
    }
    """,
)
def index_overflow(function: Function) -> Iterator[Hit]:
    file = function.file
    for variable in function.all_variables():
        if variable.value is None or not variable.is_wide_integer:
            continue
        text = function.source(variable.value)
        if any(cast in text for cast in _WIDE_CASTS) or _WIDE_LITERAL.search(text):
            continue
        product = _narrow_product(function, variable.value)
        left = None if product is None else product.child_by_field_id(fields.LEFT)
        if product is not None and left is not None:
            wide = variable.element
            fix = rewrite(file, left, f"static_cast<{wide}>({function.source(left)})")
            yield hit(file, product, "this product wraps at 2^32 before it is widened", fix)


@declare(
    "KL216",
    "narrow-loop-index",
    WARNING,
    on="device",
    needs=("size_t int64_t ptrdiff_t long", "for"),
    summary="An `int` counts up to a 64-bit size",
    why="For sizes from 2³¹ on the counter overflows, which is undefined. Count in the type of the size.",
    bad="""
    __global__ void fill(float* __restrict__ out, size_t n) {
        for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = 0.0f;
    }
    """,
    good="""
    __global__ void fill(float* __restrict__ out, size_t n) {
        for (size_t i = threadIdx.x; i < n; i += blockDim.x) out[i] = 0.0f;
    }
    """,
)
def narrow_loop_index(function: Function) -> Iterator[Hit]:
    file = function.file
    for loop in function.loops:
        condition = loop.child_by_field_id(fields.CONDITION)
        if loop.type != "for_statement" or condition is None or condition.type != "binary_expression":
            continue
        index = function.variable(condition.child_by_field_id(fields.LEFT))
        size = function.variable(condition.child_by_field_id(fields.RIGHT))
        if index is None or size is None or function.operator(condition) not in ("<", "<="):
            continue
        is_narrow = index.is_integer and not index.is_wide_integer and is_loop_variable(function, index)
        if is_narrow and size.is_wide_integer:
            type_node = index.declaration.child_by_field_id(fields.TYPE)
            fixes = () if type_node is None else (_retyped(file, type_node, size.element),)
            yield hit(file, condition, f"`{index.name}` has 32 bits and `{size.name}` 64", *fixes)


# --- below: arrays and indices


def _index(subscript: Node) -> Node | None:
    indices = subscript.child_by_field_id(fields.INDICES)
    return indices.named_children[0] if indices is not None and indices.named_child_count == 1 else None


def _global_array(function: Function, subscript: Node) -> Variable | None:
    """The pointer parameter that a subscript is about."""
    if subscript.type != "subscript_expression":
        return None
    array = function.variable(subscript.child_by_field_id(fields.ARGUMENT))
    return array if array is not None and array.is_pointer and array in function.parameters else None


def _is_far(function: Function, subscript: Node) -> bool:
    """Whether it is about global memory, and neighbouring threads access elements far apart."""
    if _global_array(function, subscript) is None:
        return False
    index = _index(subscript)
    if not may_depend_on_thread(function, index):
        return False
    step = growth(function, index)
    return step is Stride.VARIABLE or (isinstance(step, int) and abs(step) > MAX_NEIGHBOUR_STRIDE)


def _is_in_tail(function: Function, subscript: Node) -> bool:
    """``if (i + 4 <= n) {...} else for (int k = i; k < n; ++k) y[k] = ...``: one thread does what is left over."""
    loop = function.loop_around(subscript) if function.loops else None
    if loop is None or loop.type != "for_statement":
        return False
    parents = takewhile(lambda parent: parent.type in ("compound_statement", "else_clause"), function.around(loop))
    return any(parent.type == "else_clause" for parent in parents)


def _is_wrapped(function: Function, subscript: Node) -> bool:
    """Where a whole vector may be accessed: the one argument of a macro, as in ``LDST128BITS(x[i])``, or the address
    that is made another pointer, as in ``reinterpret_cast<float4*>(&x[i])``."""
    arguments = function.parent(subscript)
    if arguments is not None and arguments.type == "pointer_expression":
        cast = function.parent(function.parent(arguments))
        is_old = any(node is not None and node.type == "cast_expression" for node in (function.parent(arguments), cast))
        return is_old or (cast is not None and function.callee(cast) == "reinterpret_cast")
    call = function.parent(arguments)
    if arguments is None or call is None or arguments.type != "argument_list" or call.type != "call_expression":
        return False
    return arguments.named_child_count == 1 and _MACRO_NAME.fullmatch(function.callee(call)) is not None


def _uses_all_between(function: Function, array: Variable, step: Growth) -> bool:
    """Whether the function accesses as many of the elements in between as it leaves out, as of a record with five
    numbers: then the sectors that one access fetches serve the next ones."""
    if not isinstance(step, int) or abs(step) > SECTOR_ELEMENTS:
        return False
    cache = function.caches.setdefault("elements", {})
    key = (array.name_node.id, step)
    if key not in cache:
        cache[key] = {
            function.source(other)
            for other in function.subscripts
            if _global_array(function, other) is array and growth(function, _index(other)) == step
        }
    return 2 * len(cache[key]) >= abs(step)


def _has_full_rows(function: Function, tile: Variable) -> bool:
    """A shared array of 4-byte elements whose rows fill the banks."""
    if not tile.is_shared or len(tile.sizes) < 2 or type_bytes(tile.element) != BANK_BYTES:
        return False
    width = function.constant(tile.sizes[-1])
    return width is not None and width > 0 and width % N_BANKS == 0


def _padding_fix(function: Function, tile: Variable) -> tuple[QuickFix, ...]:
    """One more element per row, when the tile is only ever used with all its indices."""
    size = tile.sizes[-1]
    if size is None:
        return ()
    edit = function.file.parsed.insert(size.end_byte, " + 1")
    new_text = f"{function.source(size)} + 1"
    if size.type == "number_literal":
        new_text = str((function.constant(size) or 0) + 1)
        edit = function.file.parsed.replace(size, new_text)
    n_uses = function.source(function.body).count(tile.name)
    n_subscripts = sum(function.variable(s.child_by_field_id(fields.ARGUMENT)) is tile for s in function.subscripts)
    return (QuickFix(f"Pad the row to `[{new_text}]`", (edit,), n_uses == n_subscripts + 1),)


def _is_in_registers(array: Variable) -> bool:
    words = array.words
    return not array.is_shared and words.isdisjoint(("static", "constexpr", "__constant__", "extern"))


def _is_runtime_value(function: Function, index: Variable) -> bool:
    """An index that no unrolling makes constant: loaded from memory, a parameter, or counted to such a size."""
    if is_loop_variable(function, index):
        return False
    if index in function.parameters:
        return function.is_kernel
    if index.value is None or (index.is_const and function.constant(index.value) is not None):
        return False
    value = index.value
    is_loaded = value.type == "subscript_expression" and _global_array(function, value) is not None
    return is_loaded or (value.type != "call_expression" and may_depend_on_thread(function, value))


def _changed_in(function: Function, loop: Node) -> frozenset[str]:
    """The names that change within the loop, and the ones declared there."""
    cache = function.caches.setdefault("changed", {})
    if loop.id not in cache:
        cache[loop.id] = function.written_in(loop) | function.declared_in(loop)
    return cache[loop.id]


def _is_for_few_threads(function: Function, call: Node) -> bool:
    """Whether a condition compares a thread's number with `==`, or asks for something else than the size."""
    for parent in function.around(call):
        if parent.type == "if_statement":
            condition = parent.child_by_field_id(fields.CONDITION)
            text = "" if condition is None else function.source(condition)
            comparison = condition.named_children[0] if condition is not None and condition.named_children else None
            is_bound = comparison is not None and function.operator(comparison) in ("<", "<=")
            if "==" in text or "!" in text or not is_bound:
                return True
    return call.start_byte >= _first_way_out(function)


def _first_way_out(function: Function) -> int:
    """Where the first branch ends that asks for something with ``!=`` and returns; behind the body without one."""
    cache = function.caches.setdefault("way out", {})
    if not cache:
        texts = ((node, function.source(node)) for node in function.branches)
        ends = (node.end_byte for node, text in texts if "return" in text and "!=" in text)
        cache[0] = min(ends, default=function.body.end_byte + 1)
    return cache[0]


def _narrow_product(function: Function, value: Node) -> Node | None:
    """``blockIdx.x * n`` of 32-bit factors, at the top of the value or in a sum."""
    node: Node | None = value
    for _ in range(8):
        if node is None or node.type not in ("binary_expression", "parenthesized_expression"):
            return None
        if node.type == "parenthesized_expression":
            node = node.named_children[0] if node.named_children else None
            continue
        operator = function.operator(node)
        if operator == "*":
            return node if _is_narrow_index_product(function, node) else None
        if operator not in ("+", "-"):
            return None
        node = node.child_by_field_id(fields.LEFT)
    return None


def _is_narrow_index_product(function: Function, product: Node) -> bool:
    names = function.names_in(product)
    if names.isdisjoint(_INDEX_SOURCES) or names & {"size_t"}:
        return False
    known = THREAD_SOURCES | BLOCK_SOURCES | {"blockDim", "gridDim", "x", "y", "z"}
    for name in names - known:
        variables = function.named(name)
        if not variables and name not in function.file.constants:
            return False
        if any(not variable.is_integer or variable.is_wide_integer for variable in variables):
            return False
    return True


def _retyped(file: File, type_node: Node, new_type: str) -> QuickFix:
    edit = file.parsed.replace(type_node, new_type)
    return QuickFix(f"Count in `{new_type}`", (edit,), True)
