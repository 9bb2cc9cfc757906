"""KL204 to KL206 and KL209: warp-level operations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.bounds.thread_range import bare
from kernel_lsp.rules.cuda.declare import ERROR, THREAD_WORDS, WARNING, conditions_around, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import CONDITIONAL_COMPILATION
from kernel_lsp.rules.cuda.simulation.hits import simulated_hits
from kernel_lsp.rules.cuda.threads.threads import may_depend_on_thread
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit

_FULL_MASK = 0xFFFFFFFF
_LEGACY = ("__shfl", "__shfl_up", "__shfl_down", "__shfl_xor", "__any", "__all", "__ballot")
_BRANCH = r"[ifwsd?](?:(?<=\?)|(?<=\bi)f\b|(?<=\bf)or\b|(?<=\bw)hile\b|(?<=\bs)witch\b|(?<=\bd)o\b)"
"""Matches the start of a branch or loop. It begins with a character class, which makes the search fast, and then
looks behind."""
_SHUFFLES = ("__shfl_sync", "__shfl_up_sync", "__shfl_down_sync", "__shfl_xor_sync")
_VOTES = ("__any_sync", "__all_sync", "__ballot_sync")
_EXCHANGES = frozenset((*_SHUFFLES, *_VOTES))


@declare(
    "KL204",
    "legacy-shuffle",
    ERROR,
    on="device",
    needs=("__shfl __any __all __ballot",),
    patterns=(r"__(?:shfl(?:_up|_down|_xor)?|any|all|ballot)\b",),
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
        is_called = arguments and name not in file.declared and name not in file.functions_by_name
        if is_called and not _is_conditionally_compiled(function, call):
            is_safe = not any(parent.type == "if_statement" for parent in function.around(call))
            edits = (
                file.parsed.replace(call.child_by_field_id(fields.FUNCTION) or call, f"{name}_sync"),
                file.parsed.insert(arguments[0].start_byte, "0xffffffffu, "),
            )
            fix = QuickFix(f"Use `{name}_sync` with all lanes", edits, is_safe)
            yield hit(file, call, f"`{name}` no longer exists: use `{name}_sync` with a mask", fix)


def _guard_leaves_lanes_of(function: Function, call: Node, mask: int) -> bool:
    """Return whether a branch around the call leaves the lanes of the mask: ``if (lane < 8)`` for 0xff."""
    for condition in map(bare, conditions_around(function, call)):
        right = condition.child_by_field_id(fields.RIGHT)
        n_lanes = function.constant(right) if function.operator(condition) == "<" else None
        if n_lanes is not None and mask == (1 << n_lanes) - 1:
            return True
    return False


@declare(
    "KL205",
    "partial-mask",
    WARNING,
    on="device",
    needs=("_sync",),
    patterns=(r"_sync\b(?!\s*\(\s*0[xX][fF]{8}[uUlL]*\s*,)",),
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
            yield hit(file, mask, "`__activemask()` names the lanes that happen to be active: state the mask")
        elif (
            value is not None and value & _FULL_MASK != _FULL_MASK and not _guard_leaves_lanes_of(function, call, value)
        ):
            yield hit(file, mask, f"partial mask {value:#x}: lanes outside of it must not reach this call")


@declare(
    "KL206",
    "divergent-shuffle",
    ERROR,
    on="device",
    needs=(THREAD_WORDS,),
    patterns=(_BRANCH,),
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
    yield from simulated_hits(function, "KL206")


@declare(
    "KL209",
    "warp-synchronous",
    ERROR,
    on="device",
    needs=("+=",),
    patterns=(r"\[[^\]]*\]\s*\+=\s*\w+\s*\[",),
    summary="A reduction in shared memory that relies on warps running in step",
    why="""
    Since Volta the threads of a warp have their own program counters. `volatile` keeps the compiler from caching; it
    does not order the threads, and without it values may even stay in registers. Put `__syncwarp()` between the steps,
    or use `__shfl_down_sync`.
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
        is_next = _step(function, first).next_named_sibling == _step(function, second)
        if is_next and (_is_volatile(function, first) or _halves(function, first, second)):
            yield hit(file, second, "missing `__syncwarp()`: the lanes of a warp do not run in lockstep")
            break


def _is_conditionally_compiled(function: Function, node: Node) -> bool:
    """Return whether an `#if` contains the node, which is code for other compilers or older hardware."""
    is_inside = any(parent.type.startswith(CONDITIONAL_COMPILATION) for parent in function.around(node))
    return is_inside or function.definition.is_conditionally_compiled


def _step(function: Function, write: Node) -> Node:
    """Return the statement, including an ``if (size >= 64)`` around it alone."""
    statement = function.parent(write) or write
    while (parent := function.parent(statement)) is not None and parent.type == "if_statement":
        statement = parent
    return statement


def _is_reduction_step(function: Function, write: Node) -> bool:
    """Return whether the write is ``data[t] += data[t + 16]``."""
    left, right = write.child_by_field_id(fields.LEFT), write.child_by_field_id(fields.RIGHT)
    if function.operator(write) != "+=" or left is None or right is None:
        return False
    if left.type != "subscript_expression" or right.type != "subscript_expression":
        return False
    array = function.variable(left.child_by_field_id(fields.ARGUMENT))
    same_array = array is function.variable(right.child_by_field_id(fields.ARGUMENT))
    parent = function.parent(write)
    is_statement = parent is not None and parent.type == "expression_statement"
    return array is not None and same_array and is_statement


def _is_volatile(function: Function, write: Node) -> bool:
    left = write.child_by_field_id(fields.LEFT)
    array = None if left is None else function.variable(left.child_by_field_id(fields.ARGUMENT))
    return array is not None and "volatile" in array.words


def _halves(function: Function, first: Node, second: Node) -> bool:
    """Return whether two steps reduce the same element over a distance and over half of it."""
    lefts = [write.child_by_field_id(fields.LEFT) for write in (first, second)]
    own = [None if left is None else left.child_by_field_id(fields.INDICES) for left in lefts]
    texts = {function.source(index).strip("[] ") for index in own if index is not None}
    if len(texts) != 1 or not _may_be_of_thread(function, own[0]):
        return False
    distances = [_distance(function, write, texts) for write in (first, second)]
    return None not in distances and distances[0] == 2 * (distances[1] or 0)


def _may_be_of_thread(function: Function, index: Node | None) -> bool:
    """Return whether the index may be the thread's, which a device function may also be given."""
    given = {variable.name for variable in function.parameters} if not function.is_kernel else set()
    return may_depend_on_thread(function, index) or not function.names_in(index).isdisjoint(given)


def _distance(function: Function, write: Node, own: set[str]) -> int | None:
    """Return the constant in ``data[t + 16]`` where the own index is ``t``."""
    right = write.child_by_field_id(fields.RIGHT)
    indices = None if right is None else right.child_by_field_id(fields.INDICES)
    total = None if indices is None or not indices.named_children else indices.named_children[0]
    if total is None or total.type != "binary_expression" or function.operator(total) != "+":
        return None
    left, distance = (total.child_by_field_id(part) for part in (fields.LEFT, fields.RIGHT))
    is_own = left is not None and function.source(left) in own
    return function.constant(distance) if is_own else None
