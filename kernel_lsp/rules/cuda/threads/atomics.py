"""KL214 and KL247: atomic operations on one address, and totals that outlive a launch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import WARNING, declare, hit
from kernel_lsp.rules.cuda.memory.pointers import reach_of_variable
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.outline import MAX_DEPTH
from kernel_lsp.rules.cuda.threads.threads import WARP, is_read_from_memory, is_uniform, may_depend_on_thread
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.rule import Hit

_COUNTS = ("atomicAdd", "atomicSub", "atomicInc")
_ATOMICS = (*_COUNTS, "atomicMax", "atomicMin", "atomicOr", "atomicAnd", "atomicXor")
_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


@declare(
    "KL214",
    "same-address-atomic",
    WARNING,
    on="kernel",
    needs=("atomic",),
    summary="All threads do an atomic operation on one address",
    why="""
    Atomic operations on one address are done one after the other: a million threads make a queue of a million. Reduce
    within the warp or block first, and let one thread of it do the atomic operation. A ticket, whose value each thread
    uses, is left alone.
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
    for call in function.calls_named(_ATOMICS):
        arguments = function.arguments(call)
        parent = function.parent(call)
        is_dropped = parent is not None and parent.type == "expression_statement"
        is_one = bool(arguments) and is_dropped and _is_one_place(function, arguments[0])
        if is_one and not _is_for_few_threads(function, call):
            yield hit(function.file, call, "atomic contention: all threads update one address, reduce in the block")


@declare(
    "KL247",
    "unreset-total",
    WARNING,
    on="kernel",
    needs=("atomic",),
    summary="A `__device__` variable is added to and never reset",
    why="""
    A `__device__` variable keeps its value until the module is unloaded: the second launch adds to the result of the
    first. The last block that is done sets it to 0, or the host does (`cudaMemcpyToSymbol`, `cudaMemsetAsync`) before
    each launch; a total in an output that the caller clears needs no such variable.
    """,
    bad="""
    __device__ unsigned int n_done;

    __global__ void last_block(float* __restrict__ out) {
        if (threadIdx.x == 0 && atomicAdd(&n_done, 1u) == gridDim.x - 1) *out = 1.0f;
    }
    """,
    good="""
    __device__ unsigned int n_done;

    __global__ void last_block(float* __restrict__ out) {
        if (threadIdx.x == 0 && atomicAdd(&n_done, 1u) == gridDim.x - 1) {
            *out = 1.0f;
            n_done = 0;
        }
    }
    """,
)
def unreset_total(function: Function) -> Iterator[Hit]:
    reported: set[str] = set()
    for call in function.calls_named(_ATOMICS) if function.file.unreset_totals else ():
        address = next(iter(function.arguments(call)), None)
        total = next(iter(function.names_in(address) & function.file.unreset_totals), "")
        if total and total not in reported and not function.named(total):
            reported.add(total)
            message = f"`{total}` is never reset: the next launch adds to the result of this one"
            yield hit(function.file, call, message)


def _is_one_place(function: Function, address: Node) -> bool:
    """Return whether all threads of a block address the same element of global memory."""
    pointers = [v for name in function.names_in(address) for v in function.named(name) if v.is_pointer]
    return bool(pointers) and all(map(partial(_is_global, function), pointers)) and is_uniform(function, address)


def _is_global(function: Function, pointer: Variable) -> bool:
    return reach_of_variable(function, pointer) is not None


def _is_for_few_threads(function: Function, call: Node) -> bool:
    """Return whether a guard around the call, or an early return before it, leaves few threads of a block."""
    is_count = function.callee(call) in _COUNTS
    branches = [branch for branch in function.branches_around(call) if branch.type == "if_statement"]
    conditions = filter(None, [branch.child_by_field_id(fields.CONDITION) for branch in branches])
    if any(_leaves_few(function, condition, is_count=is_count) for condition in conditions):
        return True
    return call.start_byte >= _first_way_out(function)


def _leaves_few(function: Function, condition: Node, *, is_count: bool, depth: int = 0) -> bool:
    """Return whether few threads satisfy the condition, or the condition is undecidable. A comparison of loaded
    values admits many threads, which matters for a sum (`is_count`). For a maximum such a condition excludes most
    threads."""
    node = _bare(condition)
    variable = function.variable(node)
    if variable is not None and variable.value is not None and not variable.writes and depth < MAX_DEPTH:
        return _leaves_few(function, variable.value, is_count=is_count, depth=depth + 1)
    if node.type != "binary_expression" or depth >= MAX_DEPTH:
        return True
    left, right = node.child_by_field_id(fields.LEFT), node.child_by_field_id(fields.RIGHT)
    operator = function.operator(node)
    if left is None or right is None:
        return True
    if operator in ("&&", "||"):
        return any(_leaves_few(function, side, is_count=is_count, depth=depth + 1) for side in (left, right))
    if operator not in _COMPARISONS or function.source(left) == function.source(right):
        return True
    sides = [each for each in (left, right) if not is_read_from_memory(function, each)]
    if operator == "==" and any(may_depend_on_thread(function, each) for each in sides):
        return True
    if is_read_from_memory(function, node):
        return not is_count
    if not may_depend_on_thread(function, node):
        return False
    limit = function.constant(right)
    return operator == "==" or (operator in ("<", "<=") and limit is not None and limit <= WARP)


def _bare(condition: Node) -> Node:
    """Return the condition without its parentheses."""
    node = condition
    while node.type in ("condition_clause", "parenthesized_expression") and node.named_child_count == 1:
        node = node.named_children[0]
    return node


def _first_way_out(function: Function) -> int:
    """Return the end of the first branch in which most threads return, or one past the end of the body."""
    cache = function.caches.setdefault("way out", {})
    if not cache:
        exits = [branch for branch in function.branches if function.returns.within(branch)]
        ends = (branch.end_byte for branch in exits if _is_way_out(function, branch))
        cache[0] = min(ends, default=function.body.end_byte + 1)
    return cache[0]


def _is_way_out(function: Function, branch: Node) -> bool:
    """Return whether the condition makes most threads return: ``if (threadIdx.x != 0) return;`` or
    ``if (lane) return;``."""
    condition = branch.child_by_field_id(fields.CONDITION)
    node = None if condition is None else _bare(condition)
    return node is not None and (
        re.search(r"!=|>\s*0$", function.source(node)) is not None or node.type in ("identifier", "field_expression")
    )
