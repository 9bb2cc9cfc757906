"""KL249 and KL273: sums that lack the values of some threads where they are used."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import LOOP_WORDS, WARNING, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.simulation.assumed_block import whole_text
from kernel_lsp.rules.cuda.simulation.contributions import may_reduce
from kernel_lsp.rules.cuda.simulation.hits import simulated_hits
from kernel_lsp.rules.cuda.threads.threads import may_depend_on_thread, values_of
from kernel_lsp.rules.cuda.variables import Variable
from kernel_lsp.rules.rule import Hit

_DOWN = ("__shfl_down_sync", "__shfl_down")
_SHUFFLES = ("__shfl_sync", "__shfl", "__shfl_xor_sync", "__shfl_up_sync", *_DOWN)
_COMBINES = re.compile("reduce|sum|broadcast", re.IGNORECASE)
"""Names of functions that are given a part and return the whole."""
MAX_NAMES = 8
"""Variables that a partial sum is followed through."""


@declare(
    "KL249",
    "partial-sum-used",
    WARNING,
    on="kernel",
    needs=("__shfl_down", LOOP_WORDS),
    patterns=(r"__shfl_down",),
    summary="All lanes use a sum that `__shfl_down_sync` leaves in lane 0 alone",
    why="""
    Each step of `__shfl_down_sync` adds the value of a lane further up, so only lane 0 has the whole sum; the others
    hold sums of a part. Broadcast it with `__shfl_sync(mask, sum, 0)`, or reduce with `__shfl_xor_sync`, after which
    every lane has it.
    """,
    bad="""
    __global__ void center(const float* __restrict__ x, float* __restrict__ out) {
        float value = x[blockIdx.x * 32 + threadIdx.x], sum = value;
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
        out[blockIdx.x * 32 + threadIdx.x] = value - sum / 32.0f;
    }
    """,
    good="""
    __global__ void center(const float* __restrict__ x, float* __restrict__ out) {
        float value = x[blockIdx.x * 32 + threadIdx.x], sum = value;
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        out[blockIdx.x * 32 + threadIdx.x] = value - sum / 32.0f;
    }
    """,
)
def partial_sum_used(kernel: Function) -> Iterator[Hit]:
    reported: set[str] = set()
    for call in kernel.calls_named(_DOWN):
        loop, total = kernel.loop_around(call), _reduced(kernel, call)
        if loop is None or total is None or total.name in reported or not _steps(kernel, call, loop):
            continue
        use = _use_by_all(kernel, total, loop.end_byte, {total.name})
        if use is not None:
            reported.add(total.name)
            yield hit(kernel.file, use, f"`{total.name}` is whole in lane 0 alone: broadcast it with `__shfl_sync`")


@declare(
    "KL273",
    "incomplete-reduction",
    WARNING,
    on="device",
    summary="A reduction leaves the values of some threads out",
    why="""
    A warp has 32 lanes, so its first shuffle goes over 16. A tree that halves its distance needs a power of two: of 192
    threads, the last three become one without the third. Begin at the next power of two, and check that the other
    element exists.
    """,
    bad="""
    __global__ void sum_rows(const float* __restrict__ x, float* __restrict__ out) {
        float sum = x[blockIdx.x * 32 + threadIdx.x];
        for (int offset = 8; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
        if (threadIdx.x == 0) out[blockIdx.x] = sum;
    }

    cudaError_t run(const float* x, float* out, int rows) {
        sum_rows<<<rows, 32>>>(x, out);
        return cudaGetLastError();
    }
    """,
    good="""
    __global__ void sum_rows(const float* __restrict__ x, float* __restrict__ out) {
        float sum = x[blockIdx.x * 32 + threadIdx.x];
        for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_down_sync(0xffffffffu, sum, offset);
        if (threadIdx.x == 0) out[blockIdx.x] = sum;
    }

    cudaError_t run(const float* x, float* out, int rows) {
        sum_rows<<<rows, 32>>>(x, out);
        return cudaGetLastError();
    }
    """,
)
def incomplete_reduction(function: Function) -> Iterator[Hit]:
    if may_reduce(whole_text(function)):
        yield from simulated_hits(function, "KL273")


def _reduced(kernel: Function, call: Node) -> Variable | None:
    """Return the variable of ``sum += __shfl_down_sync(mask, sum, offset)``, or of another operation on both."""
    arguments = kernel.arguments(call)
    given = kernel.variable(arguments[1]) if len(arguments) > 2 else None
    for parent in kernel.around(call):
        if parent.type == "assignment_expression":
            target = kernel.variable(parent.child_by_field_id(fields.LEFT))
            return target if target is not None and target is given else None
    return None


def _steps(kernel: Function, call: Node, loop: Node) -> bool:
    """Return whether the loop changes the distance of the shuffle: another loop goes over other sums."""
    changed = kernel.written_in(loop) | kernel.declared_in(loop)
    return not kernel.names_in(kernel.arguments(call)[2]).isdisjoint(changed)


def _use_by_all(kernel: Function, total: Variable, start: int, seen: set[str]) -> Node | None:
    """Return a read of the variable after the reduction that no condition on the thread keeps from other lanes."""
    end = min((write.start_byte for write in total.writes if write.start_byte >= start), default=kernel.body.end_byte)
    for read in _reads(kernel, total.name, start, end):
        if _is_for_some(kernel, read, start) or _is_shuffled(kernel, read):
            continue
        derived = _set_by(kernel, read)
        if derived is None or _is_over_lanes(kernel, read, start):
            return read
        if derived.name not in seen and len(seen) < MAX_NAMES:
            use = _use_by_all(kernel, derived, read.end_byte, {*seen, derived.name})
            if use is not None:
                return read
    return None


def _reads(kernel: Function, name: str, start: int, end: int) -> Iterator[Node]:
    for place in kernel.mentions(name):
        if start <= place < end:
            node = kernel.body.descendant_for_byte_range(place, place + len(name))
            if node is not None and node.type == "identifier":
                yield node


def _is_for_some(kernel: Function, node: Node, start: int) -> bool:
    """Return whether a condition around the node, or a `return` since the reduction, may leave lane 0 alone."""
    child = node
    for parent in kernel.around(node):
        condition = parent.child_by_field_id(fields.CONDITION)
        left = parent.child_by_field_id(fields.LEFT) if kernel.operator(parent) in ("&&", "||") else None
        asked = condition if condition is not None else left
        is_inside = asked is not None and asked.id != child.id and not _counts(parent)
        if is_inside and may_depend_on_thread(kernel, asked):
            return True
        child = parent
    leaving = (each for each in kernel.returns if start <= each.start_byte < node.start_byte)
    return any(True for _ in leaving)


def _is_over_lanes(kernel: Function, read: Node, start: int) -> bool:
    """Return whether the read is in a later loop that each lane goes through with elements of its own."""
    loop = kernel.loop_around(read)
    if loop is None or loop.type != "for_statement" or loop.start_byte < start:
        return False
    counters = (v for v in kernel.all_variables() if (head := kernel.parent(v.declaration)) and head.id == loop.id)
    return any(counter.value is not None and may_depend_on_thread(kernel, counter.value) for counter in counters)


def _counts(node: Node) -> bool:
    """Return whether the condition is a loop's: every lane may take part, each as often as it has elements."""
    return node.type in ("for_statement", "while_statement", "do_statement")


def _is_shuffled(kernel: Function, read: Node) -> bool:
    parents = (parent for parent in kernel.around(read) if parent.type == "call_expression")
    return any(kernel.callee(call) in _SHUFFLES or _COMBINES.search(kernel.callee(call)) for call in parents)


def _set_by(kernel: Function, read: Node) -> Variable | None:
    """Return the local variable whose initial or new value contains the read."""
    for variable in kernel.all_variables():
        for value in values_of(variable):
            if value.start_byte <= read.start_byte and read.end_byte <= value.end_byte:
                return variable
    return None
