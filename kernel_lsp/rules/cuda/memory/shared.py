"""KL207 and KL208: races between threads in shared memory."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import ERROR, WARNING, barriers_in, conditions_around, declare, hit, indentation
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.simulation.assumed_block import whole_text
from kernel_lsp.rules.cuda.simulation.hits import simulated_hits
from kernel_lsp.rules.cuda.simulation.watcher import Fault
from kernel_lsp.rules.cuda.threads.threads import may_depend_on_thread
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit


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
    yield from simulated_hits(function, "KL207", _barrier_before)


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
def missing_barrier_in_loop(function: Function) -> Iterator[Hit]:
    yield from simulated_hits(function, "KL208", _barrier_at_end)


def _barrier_before(function: Function, fault: Fault) -> Iterator[QuickFix]:
    """Yield a fix that adds a barrier between the two accesses, where all threads pass."""
    statement = _last_apart(function, fault)
    if statement is not None and _is_uniform(function, statement):
        indent = indentation(function, statement)
        edits = (function.file.parsed.insert(statement.start_byte, f"__syncthreads();\n{indent}"),)
        yield QuickFix("Insert `__syncthreads()`", edits, not function.returns)


def _last_apart(function: Function, fault: Fault) -> Node | None:
    """Return the largest statement that holds the later access but not the earlier one."""
    if fault.cause is None or not _is_in(function.body, fault.node) or not _is_in(function.body, fault.cause):
        return None
    around = (each for each in (fault.node, *function.around(fault.node)) if not _is_in(each, fault.cause))
    found = [each for each in around if (parent := function.parent(each)) and parent.type == "compound_statement"]
    return found[-1] if found else None


def _is_in(outer: Node, node: Node) -> bool:
    return outer.start_byte <= node.start_byte < outer.end_byte


def _barrier_at_end(function: Function, fault: Fault) -> Iterator[QuickFix]:
    """Yield a fix that adds a barrier at the end of a loop whose iterations are uniform across the block."""
    loop = fault.cause
    body = loop.child_by_field_id(fields.BODY) if loop is not None and loop in function.loops else None
    if loop is None or body is None or body.type != "compound_statement" or not body.named_children:
        return
    last = body.named_children[-1]
    condition = loop.child_by_field_id(fields.CONDITION)
    if _is_uniform(function, last) and not may_depend_on_thread(function, condition):
        edits = (function.file.parsed.insert(last.end_byte, f"\n{indentation(function, last)}__syncthreads();"),)
        yield QuickFix("End each iteration with `__syncthreads()`", edits, not function.returns)


def _is_uniform(function: Function, statement: Node) -> bool:
    return not any(may_depend_on_thread(function, each) for each in conditions_around(function, statement))


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
