"""KL207 and KL208: races between threads in shared memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import (
    ERROR,
    WARNING,
    barriers_in,
    conditions_around,
    declare,
    hit,
    indentation,
    is_barrier,
)
from kernel_lsp.rules.cuda.memory.pointers import index_of
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.simulation.assumed_block import whole_text
from kernel_lsp.rules.cuda.simulation.hits import and_simulated, simulated_hits
from kernel_lsp.rules.cuda.threads.threads import depends_on_thread, growth, may_depend_on_thread
from kernel_lsp.rules.cuda.threads.unordered import Unordered, is_harmless, overtaken_read, shared_array, unordered_read
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit

MAX_STATEMENTS = 40
"""Maximum statements after a write to shared memory that are searched for a read."""


@declare(
    "KL207",
    "missing-barrier",
    ERROR,
    on="device",
    needs=("__shared__ smem shmem sdata shared",),
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
    if _launches_one_warp(function):
        return
    yield from _unwaited_copies(function)
    reported: set[int] = set()
    for write in function.beginning(function.assignments, function.shared_names):
        array = _shared_target(function, write)
        found = _broadcast_read(function, write) if array is None else unordered_read(function, write, array)
        if found is not None:
            reported.add(found.read.start_point[0])
            message = "missing `__syncthreads()`: another thread writes this element of shared memory above"
            yield hit(function.file, found.read, message, *_barrier_before(function, found.statement))
        elif array is not None and (statement := overtaken_read(function, write, array)) is not None:
            reported.add(write.start_point[0])
            message = "missing `__syncthreads()`: other threads may still read the element that this overwrites"
            yield hit(function.file, write, message, *_barrier_before(function, statement))
    yield from simulated_hits(function, "KL207", reported)


@declare(
    "KL208",
    "missing-barrier-in-loop",
    WARNING,
    on="kernel",
    needs=("__shared__", "["),
    summary="A loop writes shared memory again while other threads may still read it",
    why="""
    One barrier between writing a tile and reading it is not enough in a loop: a fast thread begins the next round, and
    writes the tile that a slow one still reads. A second barrier at the end of the body, or two tiles in turn, is
    needed. A reduction that adds the elements of other threads needs one barrier in each round.
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
@and_simulated("KL208")
def missing_barrier_in_loop(function: Function) -> Iterator[Hit]:
    file = function.file
    for loop in function.loops:
        write = _unprotected_write(function, loop)
        if write is not None:
            message = "missing barrier: the next iteration overwrites what other threads may still read"
            yield hit(file, write, message, *_barrier_at_end(function, loop))
            continue
        write = _unordered_step(function, loop)
        if write is not None:
            message = "missing `__syncthreads()`: each iteration reads what other threads wrote in the one before"
            yield hit(file, write, message, *_barrier_at_end(function, loop))


def _barrier_before(function: Function, statement: Node) -> Iterator[QuickFix]:
    """Yield a fix that adds a barrier before a statement that all threads reach."""
    parsed = function.file.parsed
    if _is_uniform(function, statement):
        indent = indentation(function, statement)
        edits = (parsed.insert(statement.start_byte, f"__syncthreads();\n{indent}"),)
        yield QuickFix("Insert `__syncthreads()`", edits, not function.returns)


def _barrier_at_end(function: Function, loop: Node) -> Iterator[QuickFix]:
    """Yield a fix that adds a barrier at the end of a loop whose iterations are uniform across the block."""
    body = loop.child_by_field_id(fields.BODY)
    if body is None or body.type != "compound_statement" or not body.named_children:
        return
    last = body.named_children[-1]
    condition = loop.child_by_field_id(fields.CONDITION)
    if _is_uniform(function, last) and not may_depend_on_thread(function, condition):
        edits = (function.file.parsed.insert(last.end_byte, f"\n{indentation(function, last)}__syncthreads();"),)
        yield QuickFix("End each iteration with `__syncthreads()`", edits, not function.returns)


def _is_uniform(function: Function, statement: Node) -> bool:
    return not any(may_depend_on_thread(function, each) for each in conditions_around(function, statement))


def _shared_target(function: Function, write: Node) -> Variable | None:
    """Return the shared array that the assignment writes at a distinct index per thread."""
    if not function.file.parsed.data.startswith(function.shared_names, write.start_byte):
        return None
    left = write.child_by_field_id(fields.LEFT)
    array = shared_array(function, left)
    if array is None or left is None or not depends_on_thread(function, left) or "volatile" in array.words:
        return None
    return array


_COPIES = re.compile(r"\w*(?:memcpy_async|cp_?async(?!\w*(?:commit|wait|fence)))\w*")
_WAITS = re.compile(r"(?i)wait|__syncthreads_async|mbarrier")


def _unwaited_copies(function: Function) -> Iterator[Hit]:
    """Yield the last copy to shared memory that runs by itself in a kernel that never waits for any."""
    if not function.is_kernel or "async" not in function.text or _WAITS.search(whole_text(function)):
        return
    copies = [call for call in function.calls if _COPIES.fullmatch(function.callee(call).rpartition("::")[2])]
    if copies:
        message = "asynchronous copy is never waited for: wait, and then call `__syncthreads()`, before the first read"
        barriers = (each for each in barriers_in(function) if each.start_byte > copies[-1].end_byte)
        yield hit(function.file, next(barriers, copies[-1]), message)


def _launches_one_warp(function: Function) -> bool:
    return "__launch_bounds__(32" in function.head.replace(" ", "")


def _unprotected_write(function: Function, loop: Node) -> Node | None:
    """Return a write to a shared array at the top of a loop's body that no barrier separates from the reads of the
    previous iteration."""
    body = loop.child_by_field_id(fields.BODY)
    if body is None or body.type != "compound_statement":
        return None
    barriers = [c for c in function.calls.within(body) if not is_harmless(function, c)]
    if len(barriers) != 1 or not is_barrier(function, barriers[0]) or function.loop_around(barriers[0]) != loop:
        return None
    changing = function.written_in(loop)
    changing |= {name for name in function.declared_in(loop) if _is_made_of(function, name, changing)}
    for write in function.assignments.within(body):
        array = _shared_target(function, write)
        left = write.child_by_field_id(fields.LEFT)
        if array is None or left is None or write.start_byte > barriers[0].start_byte:
            continue
        if not function.names_in(left).isdisjoint(changing):
            continue
        reads = [s for s in function.subscripts.within(body) if s.start_byte > barriers[0].end_byte]
        written = function.source(left)
        if any(shared_array(function, r) is array and function.source(r) != written for r in reads):
            return write
    return None


def _is_made_of(function: Function, name: str, names: frozenset[str]) -> bool:
    """Return whether a variable's initial value depends on one of the names: ``buffer = step % 2``."""
    return any(v.value is not None and not function.names_in(v.value).isdisjoint(names) for v in function.named(name))


def _unordered_step(function: Function, loop: Node) -> Node | None:
    """Return ``data[t] += data[t + s]`` in a loop without a barrier. An iteration reads elements that other threads
    wrote in the previous one."""
    body = loop.child_by_field_id(fields.BODY)
    if body is None or any(not is_harmless(function, call) for call in function.calls.within(body)):
        return None
    own = function.declared_in(loop) - function.declared_in(body)
    for write in function.assignments.within(body):
        array, left = _shared_target(function, write), write.child_by_field_id(fields.LEFT)
        if array is None or left is None or function.loop_around(write) != loop:
            continue
        if _is_in_step_with(function, loop, left):
            is_other = partial(_is_other, function, left, array)
        elif growth(function, index_of(left)) == 1 and function.names_in(left).isdisjoint(own):
            is_other = partial(_is_of_a_neighbour, function, left, array)
        else:
            continue  # each iteration has elements of its own
        if any(map(is_other, function.subscripts.within(write))):
            return write
    return None


def _is_in_step_with(function: Function, loop: Node, target: Node) -> bool:
    """Return whether the loop changes the distance between the elements of neighbouring threads, as a tree does:
    ``data[(t + 1) * distance - 1]``. An element then belongs to another thread in the next iteration."""
    changing = function.written_in(loop)
    names = function.names_in(target)
    values = (v.value for name in names for v in function.named(name) if v.value is not None and not v.writes)
    return any(
        _is_stretched(function, node, changing) for root in (index_of(target), *values) for node in _products(root)
    )


def _products(root: Node | None) -> Iterator[Node]:
    waiting = [] if root is None else [root]
    while waiting:
        node = waiting.pop()
        if node.type in ("binary_expression", "parenthesized_expression"):
            waiting += node.named_children
            yield node


def _is_stretched(function: Function, product: Node, changing: frozenset[str]) -> bool:
    """Return whether a thread's index is multiplied with, or shifted by, what the loop changes."""
    left, right = product.child_by_field_id(fields.LEFT), product.child_by_field_id(fields.RIGHT)
    if function.operator(product) not in ("*", "<<") or left is None or right is None:
        return False
    sides = [(left, right), (right, left)] if function.operator(product) == "*" else [(left, right)]
    return any(
        depends_on_thread(function, one) and not function.names_in(other).isdisjoint(changing) for one, other in sides
    )


def _is_of_a_neighbour(function: Function, own: Node, array: Variable, read: Node) -> bool:
    """Return whether the read is of a different element of the same array, distinct for each thread."""
    return _is_other(function, own, array, read) and growth(function, index_of(read)) == 1


def _is_other(function: Function, own: Node, array: Variable, read: Node) -> bool:
    return shared_array(function, read) is array and function.source(read) != function.source(own)


def _broadcast_read(function: Function, write: Node) -> Unordered | None:
    """Return the read of a broadcast without a barrier: ``if (threadIdx.x == 0) mean = ...;`` and then ``x - mean``."""
    left = write.child_by_field_id(fields.LEFT)
    array = None if left is None else _shared_one(function, left)
    branch = next(function.branches_around(write), None)
    if array is None or left is None or branch is None or not _is_for_one(function, branch):
        return None
    following: Node | None = branch
    for _ in range(MAX_STATEMENTS):
        following = following.next_named_sibling if following is not None else None
        if following is None:
            return None
        call = next((c for c in function.calls.within(following) if not is_harmless(function, c)), None)
        if call is not None:
            return Unordered(call, following) if _counts(function, call, left) else None
        read = _mention(function, following, left) if array.is_array else _use(function, following, array)
        if read is not None:
            return None if _is_set(function, read) else Unordered(read, following)
    return None


def _counts(function: Function, call: Node, element: Node) -> bool:
    """Return whether the call is ``atomicAdd(&count, 1)`` of the element, by whichever threads come."""
    first = next(iter(function.arguments(call)), None) if function.callee(call).startswith("atomic") else None
    is_it = first is not None and function.source(first).replace(" ", "") == f"&{function.source(element)}"
    return is_it and not any(_is_for_one(function, b) for b in function.branches_around(call))


def _shared_one(function: Function, target: Node) -> Variable | None:
    """Return the shared variable, or the shared array, of which an assignment writes one element for all threads."""
    if not function.file.parsed.data.startswith(function.shared_names, target.start_byte):
        return None
    variable = function.variable(target) if target.type == "identifier" else shared_array(function, target)
    is_one = variable is not None and function.is_in_shared(variable) and "volatile" not in variable.words
    is_same_place = target.type == "identifier" or not may_depend_on_thread(function, target)
    return variable if is_one and is_same_place else None


def _is_for_one(function: Function, branch: Node) -> bool:
    """Return whether the branch is ``if (threadIdx.x == 0)`` without an `else`."""
    condition = branch.child_by_field_id(fields.CONDITION)
    is_plain = branch.type == "if_statement" and branch.child_by_field_id(fields.ALTERNATIVE) is None
    if not is_plain or condition is None or not depends_on_thread(function, condition):
        return False
    text = function.source(condition)
    return "==" in text and "||" not in text and not function.subscripts.within(condition)


def _mention(function: Function, statement: Node, element: Node) -> Node | None:
    """Return the same element in a statement."""
    text = function.source(element)
    return next((s for s in function.subscripts.within(statement) if function.source(s) == text), None)


def _use(function: Function, statement: Node, variable: Variable) -> Node | None:
    """Return the first mention of the variable in a statement."""
    length = len(variable.name.encode())
    for start in function.mentions(variable.name):
        if statement.start_byte <= start < statement.end_byte:
            node = function.body.descendant_for_byte_range(start, start + length)
            if node is not None and function.variable(node) is variable:
                return node
    return None


def _is_set(function: Function, node: Node) -> bool:
    """Return whether the node overwrites the variable, or is executed only by the thread that wrote it."""
    parent = function.parent(node)
    left = None if parent is None else parent.child_by_field_id(fields.LEFT)
    is_target = left is not None and parent is not None and left.id == node.id
    is_own = any(_is_for_one(function, b) for b in function.branches_around(node) if b.type == "if_statement")
    return is_own or (is_target and parent is not None and parent.type == "assignment_expression")
