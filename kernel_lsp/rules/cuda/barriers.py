"""KL201 to KL209: bounds, barriers, and what the threads of a block or warp must do together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import (
    BLOCK_WORDS,
    ERROR,
    LOOP_WORDS,
    THREAD_WORDS,
    WARNING,
    declare,
    hit,
    is_barrier,
)
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.nodes import LOOPS, within
from kernel_lsp.rules.cuda.outline import CONDITIONAL_COMPILATION
from kernel_lsp.rules.cuda.threads import (
    WARP,
    block_names,
    depends_on_thread,
    may_depend_on_thread,
    thread_names,
)
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.finding import QuickFix, TextEdit
from kernel_lsp.rules.rule import Hit
from kernel_lsp.rules.words import words

_ROUNDING = re.compile(r"blockDim|[Rr]ound|[Cc]eil|\bBLOCK")
_FULL_MASK = 0xFFFFFFFF
_LEGACY = ("__shfl", "__shfl_up", "__shfl_down", "__shfl_xor", "__any", "__all", "__ballot")
_BARRIER_WORDS = "__syncthreads cg::sync __barrier_sync .sync"
_BRANCH = r"(?:\b(?:if|for|while|switch|do)\b|\?)"
"""What a branch or loop begins with."""
_SHUFFLES = ("__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync")
_VOTES = ("__any_sync", "__all_sync", "__ballot_sync")
_PLAIN_STATEMENTS = ("expression_statement", "declaration", "return_statement")
MAX_STATEMENTS = 40
"""Statements behind a write to shared memory that are searched for a read."""
_BRANCHES = ("if_statement", "switch_statement", "conditional_expression")
_ORDERING = ("__syncwarp", "__threadfence_block", "__threadfence")
_HARMLESS_CALLS = words(
    """
    min max fminf fmaxf expf exp logf log sqrtf sqrt rsqrtf fabsf abs float int static_cast reinterpret_cast
    __ldg make_float2 make_float4 make_int2 make_int4 __float2half __half2float __float2bfloat16
    __bfloat162float powf tanhf fmaf fma __expf __fdividef size_t unsigned
    """
)
"""Calls that are no barrier for sure. Behind any other one nothing is said about shared memory."""


@declare(
    "KL201",
    "missing-bound-check",
    WARNING,
    on="kernel",
    needs=(BLOCK_WORDS, THREAD_WORDS, "[", "* ["),
    summary="A global index is used without any check against the size",
    why="""
    The grid is rounded up to whole blocks: when the size is no multiple of the block, the last threads access memory
    behind the end. Check the index, or state in the launch plan that the size divides (`where: N % 256 == 0`).
    """,
    bad="""
    __global__ void scale(const float* __restrict__ x, float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        out[i] = x[i] / n;
    }
    """,
    good="""
    __global__ void scale(const float* __restrict__ x, float* __restrict__ out, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) {
            out[i] = x[i] / n;
        }
    }
    """,
)
def missing_bound_check(kernel: Function) -> Iterator[Hit]:
    if kernel.file.promises_divisibility:
        return
    file = kernel.file
    if _has_any_check(kernel):
        return
    access = next((node for node in kernel.subscripts if _is_global_access(kernel, node)), None)
    if access is not None:
        yield hit(file, access, "nothing checks this index against the size", *_bound_fix(kernel, access))


@declare(
    "KL202",
    "divergent-barrier",
    ERROR,
    on="device",
    needs=(_BARRIER_WORDS, THREAD_WORDS),
    pattern=rf"{_BRANCH}.*sync",
    summary="A barrier in a branch that not all threads of the block take",
    why="""
    `__syncthreads()` waits for every thread of the block. When some of them do not come, the kernel hangs or its
    behaviour is undefined. Move the barrier out of the branch, and guard only the work.
    """,
    bad="""
    __global__ void shift(const float* __restrict__ x, float* __restrict__ out, int n) {
        __shared__ float tile[256];
        if (threadIdx.x < n) {
            tile[threadIdx.x] = x[threadIdx.x];
            __syncthreads();
            out[threadIdx.x] = tile[n - 1 - threadIdx.x];
        }
    }
    """,
    good="""
    __global__ void shift(const float* __restrict__ x, float* __restrict__ out, int n) {
        __shared__ float tile[256];
        if (threadIdx.x < n) {
            tile[threadIdx.x] = x[threadIdx.x];
        }
        __syncthreads();
        if (threadIdx.x < n) {
            out[threadIdx.x] = tile[n - 1 - threadIdx.x];
        }
    }
    """,
)
def divergent_barrier(function: Function) -> Iterator[Hit]:
    file = function.file
    for call in function.calls:
        if is_barrier(function, call):
            condition = _divergent_condition(function, call)
            if condition is not None:
                text = _shortened(function.source(condition))
                yield hit(file, call, f"not all threads of the block come here: `{text}` differs between them")


@declare(
    "KL203",
    "barrier-after-return",
    WARNING,
    on="kernel",
    needs=(_BARRIER_WORDS, THREAD_WORDS, "return"),
    pattern=rf"{_BRANCH}.*\breturn\b.*sync",
    summary="A barrier behind a `return` that some threads take",
    why="""
    Threads that have returned do not reach the barrier. Hardware lets a warp that ended count as arrived, but within a
    warp the behaviour is undefined. Keep the threads, and guard the work instead.
    """,
    bad="""
    __global__ void reverse(const float* __restrict__ x, float* __restrict__ out, int n) {
        __shared__ float tile[256];
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i >= n) return;
        tile[threadIdx.x] = x[i];
        __syncthreads();
        out[i] = tile[blockDim.x - 1 - threadIdx.x];
    }
    """,
    good="""
    __global__ void reverse(const float* __restrict__ x, float* __restrict__ out, int n) {
        __shared__ float tile[256];
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        tile[threadIdx.x] = i < n ? x[i] : 0.0f;
        __syncthreads();
        if (i < n) out[i] = tile[blockDim.x - 1 - threadIdx.x];
    }
    """,
)
def barrier_after_return(kernel: Function) -> Iterator[Hit]:
    file = kernel.file
    early = [node for node in kernel.returns if _divergent_condition(kernel, node) is not None]
    if not early:
        return
    for call in kernel.calls:
        if is_barrier(kernel, call) and call.start_byte > early[0].end_byte:
            yield hit(file, call, "threads that took the `return` above never reach this barrier")
            break


@declare(
    "KL204",
    "legacy-shuffle",
    ERROR,
    on="device",
    needs=("__shfl __any __all __ballot",),
    pattern=r"__(?:shfl(?:_up|_down|_xor)?|any|all|ballot)\b",
    summary="A warp function without `_sync`",
    why="""
    `__shfl`, `__any`, `__all` and `__ballot` are gone since CUDA 9 for GPUs since Volta: threads of a warp no longer
    run in step, so the function must be told which take part.
    """,
    bad="""
    __device__ float sum_warp(float x) {
        for (int offset = 16; offset > 0; offset /= 2) x += __shfl_down(x, offset);
        return x;
    }
    """,
    good="""
    __device__ float sum_warp(float x) {
        for (int offset = 16; offset > 0; offset /= 2) x += __shfl_down_sync(0xffffffffu, x, offset);
        return x;
    }
    """,
)
def legacy_shuffle(function: Function) -> Iterator[Hit]:
    file = function.file
    for call in function.calls_named(_LEGACY):
        name = function.callee(call)
        arguments = function.arguments(call)
        is_called = name not in file.declared and arguments
        if is_called and not _is_conditionally_compiled(function, call):
            is_safe = not any(parent.type == "if_statement" for parent in function.around(call))
            edits = (
                file.parsed.replace(call.child_by_field_id(fields.FUNCTION) or call, f"{name}_sync"),
                file.parsed.insert(arguments[0].start_byte, "0xffffffffu, "),
            )
            fix = QuickFix(f"Use `{name}_sync` with all lanes", edits, is_safe)
            yield hit(file, call, f"`{name}` no longer exists: use `{name}_sync` with a mask", fix)


@declare(
    "KL205",
    "partial-mask",
    WARNING,
    on="device",
    needs=("_sync",),
    pattern=r"_sync\b(?!\s*\(\s*0[xX][fF]{8}[uUlL]*\s*,)",
    summary="A warp function with a mask that is not the full warp",
    why="""
    Every lane named by the mask must reach the call, and no other may. `__activemask()` only says which lanes happen to
    be there: the compiler may have split the warp. Compute the mask before the branch, or let the full warp take part.
    """,
    bad="""
    __device__ float sum_warp(float x) {
        for (int offset = 16; offset > 0; offset /= 2) x += __shfl_down_sync(__activemask(), x, offset);
        return x;
    }
    """,
    good="""
    __device__ float sum_warp(float x) {
        for (int offset = 16; offset > 0; offset /= 2) x += __shfl_down_sync(0xffffffffu, x, offset);
        return x;
    }
    """,
)
def partial_mask(function: Function) -> Iterator[Hit]:
    file = function.file
    for call in function.calls_named(_SHUFFLES + _VOTES):
        arguments = function.arguments(call)
        if not arguments:
            continue
        mask = arguments[0]
        value = function.constant(mask)
        if mask.type == "call_expression" and function.callee(mask) == "__activemask":
            yield hit(file, mask, "`__activemask()` is what happens to be active, not what should take part")
        elif value is not None and value & _FULL_MASK != _FULL_MASK:
            yield hit(file, mask, f"lanes outside of {value:#x} must not reach this call")


@declare(
    "KL206",
    "divergent-shuffle",
    ERROR,
    on="device",
    needs=("__shfl", "threadIdx"),
    pattern=rf"{_BRANCH}.*__shfl\w*_sync",
    summary="A shuffle over the full warp in a branch that only some of its lanes take",
    why="""
    The mask says that all 32 lanes take part, and those that did not take the branch never come: the value is
    undefined, or the kernel hangs. Shuffle first, branch afterwards.
    """,
    bad="""
    __device__ float last_sum(float x) {
        int lane = threadIdx.x % 32;
        if (lane < 16) x += __shfl_down_sync(0xffffffffu, x, 16);
        return x;
    }
    """,
    good="""
    __device__ float last_sum(float x) {
        int lane = threadIdx.x % 32;
        float other = __shfl_down_sync(0xffffffffu, x, 16);
        if (lane < 16) x += other;
        return x;
    }
    """,
)
def divergent_shuffle(function: Function) -> Iterator[Hit]:
    file = function.file
    for call in function.calls_named(_SHUFFLES):
        arguments = function.arguments(call)
        if not arguments:
            continue
        is_full = function.constant(arguments[0]) == _FULL_MASK
        if is_full and any(_splits_warp(function, condition) for condition in _conditions_around(function, call)):
            yield hit(file, call, "some lanes of the mask do not come here: shuffle before the branch")


@declare(
    "KL207",
    "missing-barrier",
    ERROR,
    on="kernel",
    needs=("__shared__", THREAD_WORDS),
    summary="Shared memory is read where another thread may not have written it yet",
    why="""
    A thread writes its own element and then reads the one of another thread, with no barrier in between. Put
    `__syncthreads()` between the two.
    """,
    bad="""
    __global__ void reverse(const float* __restrict__ x, float* __restrict__ out) {
        __shared__ float tile[256];
        int t = threadIdx.x;
        tile[t] = x[t];
        out[t] = tile[255 - t];
    }
    """,
    good="""
    __global__ void reverse(const float* __restrict__ x, float* __restrict__ out) {
        __shared__ float tile[256];
        int t = threadIdx.x;
        tile[t] = x[t];
        __syncthreads();
        out[t] = tile[255 - t];
    }
    """,
)
def missing_barrier(function: Function) -> Iterator[Hit]:
    file = function.file
    for write in function.assignments:
        array = _shared_target(function, write)
        if array is not None and not _launches_one_warp(function):
            read = _read_without_barrier(function, write, array)
            if read is not None:
                yield hit(file, read, "another thread writes this element above: `__syncthreads()` is missing")


@declare(
    "KL208",
    "missing-barrier-in-loop",
    WARNING,
    on="kernel",
    needs=("__shared__", THREAD_WORDS, _BARRIER_WORDS, LOOP_WORDS),
    summary="A loop writes shared memory again while other threads may still read it",
    why="""
    One barrier between writing a tile and reading it is not enough in a loop: a fast thread begins the next round, and
    writes the tile that a slow one still reads. A second barrier at the end of the body, or two tiles in turn, is
    needed.
    """,
    bad="""
    __global__ void sum_tiles(const float* __restrict__ x, float* __restrict__ out, int n) {
        __shared__ float tile[256];
        float sum = 0.0f;
        for (int start = 0; start < n; start += 256) {
            tile[threadIdx.x] = x[start + threadIdx.x];
            __syncthreads();
            sum += tile[255 - threadIdx.x];
        }
        out[threadIdx.x] = sum;
    }
    """,
    good="""
    __global__ void sum_tiles(const float* __restrict__ x, float* __restrict__ out, int n) {
        __shared__ float tile[256];
        float sum = 0.0f;
        for (int start = 0; start < n; start += 256) {
            tile[threadIdx.x] = x[start + threadIdx.x];
            __syncthreads();
            sum += tile[255 - threadIdx.x];
            __syncthreads();
        }
        out[threadIdx.x] = sum;
    }
    """,
)
def missing_barrier_in_loop(function: Function) -> Iterator[Hit]:
    file = function.file
    for loop in function.loops:
        write = _unprotected_write(function, loop)
        if write is not None:
            yield hit(file, write, "in the next round this overwrites what others may still read: add a barrier")


@declare(
    "KL209",
    "warp-synchronous",
    ERROR,
    on="device",
    needs=("volatile", "+="),
    summary="A reduction in shared memory that relies on warps running in step",
    why="""
    Since Volta the threads of a warp have their own program counters. `volatile` keeps the compiler from caching; it
    does not order the threads. Put `__syncwarp()` between the steps, or use `__shfl_down_sync`.
    """,
    bad="""
    __device__ void reduce_warp(volatile float* data, int t) {
        data[t] += data[t + 32];
        data[t] += data[t + 16];
        data[t] += data[t + 8];
    }
    """,
    good="""
    __device__ void reduce_warp(float* data, int t) {
        float sum = data[t] + data[t + 32];
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
        if (t == 0) data[0] = sum;
    }
    """,
)
def warp_synchronous(function: Function) -> Iterator[Hit]:
    file = function.file
    steps = [write for write in function.assignments if _is_reduction_step(function, write)]
    for first, second in pairwise(steps):
        if _step(function, first).next_named_sibling == _step(function, second):
            yield hit(file, second, "nothing orders this after the line above in other lanes: add `__syncwarp()`")
            break


# --- below: bounds


def _is_global_access(kernel: Function, subscript: Node) -> bool:
    """``p[i]`` of a pointer parameter, where i depends on block and thread."""
    array = kernel.variable(subscript.child_by_field_id(fields.ARGUMENT))
    if array is None or array not in kernel.parameters or not array.is_pointer:
        return False
    index = kernel.names_in(subscript.child_by_field_id(fields.INDICES))
    return not index.isdisjoint(thread_names(kernel)) and not index.isdisjoint(block_names(kernel))


def _has_any_check(kernel: Function) -> bool:
    """Whether any condition, clamp or helper function sees an index."""
    if kernel.lambdas or not any(parameter.is_integer for parameter in kernel.parameters):
        return True  # a size that is no parameter is a constant: the launch may fit it exactly
    if any(may_depend_on_thread(kernel, condition) for condition in kernel.conditions()):
        return True
    clamps = ("min", "max", "assert", "__builtin_assume", "umin")
    return any(kernel.callee(call) in clamps for call in kernel.calls)


def _bound_fix(kernel: Function, access: Node) -> tuple[QuickFix, ...]:
    """``if (i >= n) return;`` when there is one index variable and one integer parameter."""
    sizes = [parameter for parameter in kernel.parameters if parameter.is_integer]
    indices = access.child_by_field_id(fields.INDICES)
    names = [] if indices is None else [node for node in indices.named_children if node.type == "identifier"]
    variable = kernel.variable(names[0]) if len(names) == 1 else None
    if len(sizes) != 1 or variable is None or any(is_barrier(kernel, call) for call in kernel.calls):
        return ()
    declaration = variable.declaration
    line_start = kernel.file.parsed.data.rfind(b"\n", 0, declaration.start_byte) + 1
    indent = kernel.file.parsed.data[line_start : declaration.start_byte].decode("utf-8", errors="replace")
    text = f"\n{indent if not indent.strip() else ''}if ({variable.name} >= {sizes[0].name}) return;"
    edit = TextEdit(kernel.file.parsed.span(declaration.end_byte, declaration.end_byte), text)
    return (QuickFix(f"Return when `{variable.name} >= {sizes[0].name}`", (edit,), False),)


# --- branches


def _conditions_around(function: Function, node: Node) -> Iterator[Node]:
    """The conditions of the branches and loops that hold the node, not those whose head it is in."""
    child = node
    for parent in function.around(node):
        condition = parent.child_by_field_id(fields.CONDITION)
        is_branch = (
            parent.type in ("if_statement", "switch_statement", "conditional_expression") or parent.type in LOOPS
        )
        if is_branch and condition is not None and condition.id != child.id:
            yield condition
        child = parent


def _divergent_condition(function: Function, node: Node) -> Node | None:
    conditions = (c for c in _conditions_around(function, node) if depends_on_thread(function, c))
    return next((c for c in conditions if not _has_rounded_limit(function, c)), None)


def _has_rounded_limit(function: Function, condition: Node) -> bool:
    """``i < limit`` with a limit that is rounded up to whole blocks: then all threads do the same rounds."""
    right = condition.child_by_field_id(fields.RIGHT)
    variable = function.variable(right)
    value = "" if variable is None or variable.value is None else function.source(variable.value)
    return _ROUNDING.search(value) is not None


def _is_conditionally_compiled(function: Function, node: Node) -> bool:
    """Whether an `#if` holds the node: code for other compilers or older hardware."""
    is_inside = any(parent.type.startswith(CONDITIONAL_COMPILATION) for parent in function.around(node))
    return is_inside or function.definition.is_conditionally_compiled


def _splits_warp(function: Function, condition: Node) -> bool:
    """Whether lanes of one warp decide differently for sure: ``lane < 16``, ``threadIdx.x == 0``."""
    comparison = condition.named_children[0] if condition.type == "condition_clause" else condition
    if comparison.type != "binary_expression":
        return False
    left, right = comparison.child_by_field_id(fields.LEFT), comparison.child_by_field_id(fields.RIGHT)
    limit = function.constant(right)
    if left is None or limit is None or function.operator(comparison) not in ("<", "<=", "==", ">", ">="):
        return False
    if not _is_lane(function, left):
        return False
    return function.operator(comparison) == "==" or (limit + (function.operator(comparison) in ("<=", ">"))) % WARP != 0


def _is_lane(function: Function, node: Node) -> bool:
    """`threadIdx.x`, a name for it, or ``threadIdx.x % 32``."""
    variable = function.variable(node)
    if variable is not None and not variable.writes and variable.value is not None:
        node = variable.value
    text = function.source(node).replace(" ", "").strip("()")
    return text in ("threadIdx.x", "threadIdx.x%32", "threadIdx.x&31", "threadIdx.x%warpSize", "threadIdx.x&0x1f")


# --- shared memory


def _shared_array(function: Function, subscript: Node | None) -> Variable | None:
    """The shared array that a subscript (of any number of dims) is about."""
    for _ in range(4):
        if subscript is None or subscript.type != "subscript_expression":
            break
        subscript = subscript.child_by_field_id(fields.ARGUMENT)
    variable = function.variable(subscript)
    return variable if variable is not None and variable.is_shared else None


def _shared_target(function: Function, write: Node) -> Variable | None:
    """The shared array that the assignment writes at an index of its own for each thread."""
    left = write.child_by_field_id(fields.LEFT)
    array = _shared_array(function, left)
    if array is None or left is None or not depends_on_thread(function, left) or "volatile" in array.words:
        return None
    return array


def _launches_one_warp(function: Function) -> bool:
    return "__launch_bounds__(32" in function.head.replace(" ", "")


def _read_without_barrier(function: Function, write: Node, array: Variable) -> Node | None:
    """A read of another element in the statements that follow the write, before anything that could order them."""
    statement = function.parent(write)
    if statement is None or statement.type != "expression_statement":
        return None
    written = function.source(write.child_by_field_id(fields.LEFT) or write)
    exchanged = {function.source(each) for each in within(function.subscripts, statement)}
    following: Node | None = statement
    for _ in range(MAX_STATEMENTS):
        following = following.next_named_sibling if following is not None else None
        if following is None:
            return None
        counted = _counted(function, following, array, written)
        if counted is not None or following.type not in _PLAIN_STATEMENTS:
            return counted
        if any(not _is_harmless(function, call) for call in within(function.calls, following)):
            return None
        for read in within(function.subscripts, following):
            is_other = _shared_array(function, read) is array and function.source(read) not in exchanged
            if is_other and _is_outermost(function, read) and not _is_written(function, read):
                return None if _may_be_own_element(function, read, array) else read
    return None


def _counted(function: Function, statement: Node, array: Variable, written: str) -> Node | None:
    """``atomicAdd(&counts[bin], 1)`` in a statement without a barrier: the element of whichever thread it is."""
    calls = list(within(function.calls, statement))
    if any(is_barrier(function, call) for call in calls) or statement.type in LOOPS:
        return None
    for call in calls:
        arguments = function.arguments(call) if function.callee(call).startswith("atomic") else []
        target = arguments[0].child_by_field_id(fields.ARGUMENT) if arguments else None
        if target is None or arguments[0].type != "pointer_expression" or _shared_array(function, target) is not array:
            continue
        if function.source(target) != written and not _may_be_own_element(function, target, array):
            return target
    return None


def _may_be_own_element(function: Function, read: Node, array: Variable) -> bool:
    """An index by a variable that is not known to depend on the thread: nothing is said."""
    indices = function.names_in(read) - {array.name}
    return any(name in function.variables for name in indices) and not may_depend_on_thread(function, read)


def _is_harmless(function: Function, call: Node) -> bool:
    return function.callee(call) in _HARMLESS_CALLS


def _is_outermost(function: Function, subscript: Node) -> bool:
    parent = function.parent(subscript)
    return parent is None or parent.type != "subscript_expression"


def _is_written(function: Function, subscript: Node) -> bool:
    parent = function.parent(subscript)
    left = None if parent is None else parent.child_by_field_id(fields.LEFT)
    is_target = left is not None and left.id == subscript.id and parent is not None
    return (
        is_target and parent is not None and parent.type == "assignment_expression" and function.operator(parent) == "="
    )


def _unprotected_write(function: Function, loop: Node) -> Node | None:
    """A write of a shared array at the top of a loop's body that no barrier separates from the last round's reads."""
    body = loop.child_by_field_id(fields.BODY)
    if body is None or body.type != "compound_statement":
        return None
    barriers = [c for c in within(function.calls, body) if not _is_harmless(function, c)]
    if len(barriers) != 1 or not is_barrier(function, barriers[0]) or function.loop_around(barriers[0]) != loop:
        return None
    changing = function.written_in(loop)
    for write in within(function.assignments, body):
        array = _shared_target(function, write)
        left = write.child_by_field_id(fields.LEFT)
        if array is None or left is None or write.start_byte > barriers[0].start_byte:
            continue
        if not function.names_in(left).isdisjoint(changing):
            continue
        reads = [s for s in within(function.subscripts, body) if s.start_byte > barriers[0].end_byte]
        written = function.source(left)
        if any(_shared_array(function, r) is array and function.source(r) != written for r in reads):
            return write
    return None


def _is_inside(node: Node, outer: Node) -> bool:
    return outer.start_byte <= node.start_byte and node.end_byte <= outer.end_byte


def _step(function: Function, write: Node) -> Node:
    """The statement, with an ``if (size >= 64)`` that holds it alone."""
    statement = function.parent(write) or write
    while (parent := function.parent(statement)) is not None and parent.type == "if_statement":
        statement = parent
    return statement


def _is_reduction_step(function: Function, write: Node) -> bool:
    """``data[t] += data[t + 16]`` of a volatile pointer or array."""
    left, right = write.child_by_field_id(fields.LEFT), write.child_by_field_id(fields.RIGHT)
    if function.operator(write) != "+=" or left is None or right is None:
        return False
    if left.type != "subscript_expression" or right.type != "subscript_expression":
        return False
    array = function.variable(left.child_by_field_id(fields.ARGUMENT))
    same_array = array is function.variable(right.child_by_field_id(fields.ARGUMENT))
    is_volatile = array is not None and "volatile" in array.words
    parent = function.parent(write)
    is_statement = parent is not None and parent.type == "expression_statement"
    return is_volatile and same_array and is_statement


def _shortened(text: str, limit: int = 40) -> str:
    text = " ".join(text.split()).strip("()")
    return text if len(text) <= limit else text[: limit - 1] + "…"
