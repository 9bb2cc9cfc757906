"""KL202 and KL203: barriers in divergent control flow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from tree_sitter import Node

from kernel_lsp.core.words import fitted
from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import ERROR, THREAD_WORDS, WARNING, barriers_in, conditions_around, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.simulation.hits import and_simulated, simulated_hits
from kernel_lsp.rules.cuda.threads.keep_threads import keep_threads
from kernel_lsp.rules.cuda.threads.split_branch import split_at
from kernel_lsp.rules.cuda.threads.threads import depends_on_thread, is_warp_uniform
from kernel_lsp.rules.rule import Hit

_ROUNDING = re.compile(r"blockDim|[Rr]ound|[Cc]eil|\bBLOCK")
_MAY_SYNCHRONIZE = "("
"""Text of any call: the function that it calls may hold a barrier."""
_BRANCH = r"[ifwsd?](?:(?<=\?)|(?<=\bi)f\b|(?<=\bf)or\b|(?<=\bw)hile\b|(?<=\bs)witch\b|(?<=\bd)o\b)"
"""Matches the start of a branch or loop. It begins with a character class, which makes the search fast, and then
looks behind."""


@declare(
    "KL202",
    "divergent-barrier",
    ERROR,
    on="device",
    needs=(_MAY_SYNCHRONIZE, THREAD_WORDS),
    patterns=(_BRANCH,),
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
@and_simulated("KL202")
def divergent_barrier(function: Function) -> Iterator[Hit]:
    file = function.file
    for call in _meetings(function):
        condition = _divergent_condition(function, call)
        if condition is not None:
            text = fitted(function.source(condition).strip("( \t\r\n)"), 40)
            barrier = f"`{function.callee(call)}()`"
            message = f"{barrier} in divergent control flow: `{text}` is not uniform across the block"
            yield hit(file, call, message, *split_at(function, call))


@declare(
    "KL203",
    "barrier-after-return",
    WARNING,
    on="kernel",
    needs=(_MAY_SYNCHRONIZE, THREAD_WORDS, "return"),
    patterns=(_BRANCH, r"return\b(?<=\breturn)"),
    summary="A barrier behind a `return` that some threads take",
    why="""
    Threads that have returned do not reach the barrier. Hardware lets a whole warp that ended count as arrived; within
    a warp the behaviour is undefined. Keep the threads, and guard the work instead.
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
    early = [node for node in kernel.returns if _splits_a_warp(kernel, node)]
    is_reported = False
    for call in _meetings(kernel) if early else ():
        if call.start_byte > early[0].end_byte:
            is_reported = True
            fixes = keep_threads(kernel, early[0], call) if len(early) == 1 else ()
            yield hit(file, call, "barrier after a divergent `return`: threads that left never reach it", *fixes)
            break
    if not is_reported:
        yield from islice(simulated_hits(kernel, "KL203"), 1)


def _meetings(function: Function) -> list[Node]:
    """Return the barriers, and the calls of functions of the file that have one, in source order."""
    calls = [*barriers_in(function), *function.calls_named(function.file.barrier_functions)]
    return sorted(calls, key=lambda call: call.start_byte)


def _splits_a_warp(kernel: Function, node: Node) -> bool:
    """Return whether some lanes of a warp may take the `return` and others not."""
    condition = _divergent_condition(kernel, node)
    return condition is not None and not is_warp_uniform(kernel, condition)


def _divergent_condition(function: Function, node: Node) -> Node | None:
    conditions = (c for c in conditions_around(function, node) if depends_on_thread(function, c))
    return next((c for c in conditions if not _has_rounded_limit(function, c)), None)


def _has_rounded_limit(function: Function, condition: Node) -> bool:
    """Return whether the limit of ``i < limit`` is rounded up to whole blocks, so that all threads run the same
    iterations."""
    right = condition.child_by_field_id(fields.RIGHT)
    variable = function.variable(right)
    value = "" if variable is None or variable.value is None else function.source(variable.value)
    return _ROUNDING.search(value) is not None
