"""KL204 to KL206 and KL209: warp-level operations."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.bounds.thread_range import bare
from kernel_lsp.rules.cuda.declare import ERROR, THREAD_WORDS, WARNING, conditions_around, declare, hit
from kernel_lsp.rules.cuda.kernel_texts import FULL_WARP
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import CONDITIONAL_COMPILATION
from kernel_lsp.rules.cuda.simulation.hits import and_simulated
from kernel_lsp.rules.cuda.threads.threads import WARP, growth, is_read_from_memory, may_depend_on_thread
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
@and_simulated("KL206")
def divergent_shuffle(function: Function) -> Iterator[Hit]:
    file = function.file
    for call in function.calls:
        name, arguments = function.callee(call), function.arguments(call)
        is_full = name in _EXCHANGES and bool(arguments) and function.constant(arguments[0]) == _FULL_MASK
        if not is_full and not FULL_WARP.search(file.device_texts.get(name, "")):
            continue
        if any(_splits_warp(function, condition) for condition in conditions_around(function, call)):
            yield hit(file, call, "shuffle mask names inactive lanes: shuffle before the branch")
        elif not file.fits_its_launches and any(
            _splits_last_warp(function, branch) for branch in function.branches_around(call)
        ):
            yield hit(file, call, "shuffle mask names lanes beyond the size: shuffle before the branch")
        elif not file.fits_its_launches and _follows_return_of_lanes(function, call):
            yield hit(file, call, "shuffle mask names lanes that have returned: shuffle before the `return`")


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


def _splits_warp(function: Function, condition: Node) -> bool:
    """Return whether the condition provably diverges within a warp: ``lane < 16``, ``threadIdx.x == 0``."""
    comparison = condition.named_children[0] if condition.type == "condition_clause" else condition
    if comparison.type != "binary_expression":
        return False
    left, right = comparison.child_by_field_id(fields.LEFT), comparison.child_by_field_id(fields.RIGHT)
    limit = function.constant(right)
    if limit is None and left is not None and right is not None and function.operator(comparison) in ("<", "<="):
        return _is_lane(function, left) and is_read_from_memory(function, right)
    if left is None or limit is None or function.operator(comparison) not in ("<", "<=", "==", ">", ">="):
        return False
    if not _is_lane(function, left):
        return False
    return function.operator(comparison) == "==" or (limit + (function.operator(comparison) in ("<=", ">"))) % WARP != 0


def _splits_last_warp(function: Function, branch: Node, operator: str = "<") -> bool:
    """Return whether an `if` or a loop bounds an index across the grid, one element for each lane: ``if (i < n)``. The
    last warp is split unless n is a multiple of 32."""
    condition = branch.child_by_field_id(fields.CONDITION) if branch.type != "switch_statement" else None
    comparison = condition
    if comparison is not None and comparison.type == "condition_clause":
        comparison = comparison.named_children[0] if comparison.named_children else None
    if comparison is None or comparison.type != "binary_expression" or function.operator(comparison) != operator:
        return False
    left, right = comparison.child_by_field_id(fields.LEFT), comparison.child_by_field_id(fields.RIGHT)
    variable = function.variable(left)
    is_of_grid = variable is not None and variable.value is not None and "blockIdx" in function.source(variable.value)
    is_size = function.variable(right) in function.parameters and not may_depend_on_thread(function, right)
    return is_of_grid and is_size and growth(function, left) == 1


def _follows_return_of_lanes(function: Function, call: Node) -> bool:
    """Return whether ``if (i >= n) return;`` precedes the call."""
    ends = (node for node in function.returns if node.end_byte <= call.start_byte)
    branches = (next(function.branches_around(node), None) for node in ends)
    return any(
        branch is not None and branch.type == "if_statement" and _splits_last_warp(function, branch, ">=")
        for branch in branches
    )


def _is_lane(function: Function, node: Node) -> bool:
    """Return whether the node is the lane index: `threadIdx.x`, a name for it, or ``threadIdx.x % 32``."""
    variable = function.variable(node)
    if variable is not None and not variable.writes and variable.value is not None:
        node = variable.value
    text = function.source(node).replace(" ", "").strip("()")
    return text in ("threadIdx.x", "threadIdx.x%32", "threadIdx.x&31", "threadIdx.x%warpSize", "threadIdx.x&0x1f")


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
