"""KL202 and KL203: barriers in divergent control flow."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from tree_sitter import Node

from kernel_lsp.rules.cuda.declare import ERROR, THREAD_WORDS, WARNING, conditions_around, declare
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.simulation.hits import simulated_hits
from kernel_lsp.rules.cuda.simulation.watcher import Fault
from kernel_lsp.rules.cuda.threads.keep_threads import keep_threads
from kernel_lsp.rules.cuda.threads.split_branch import split_at
from kernel_lsp.rules.finding import QuickFix
from kernel_lsp.rules.rule import Hit

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
def divergent_barrier(function: Function) -> Iterator[Hit]:
    yield from simulated_hits(function, "KL202", _outside_the_branch)


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
    yield from islice(simulated_hits(kernel, "KL203", _without_return), 1)


def _outside_the_branch(function: Function, fault: Fault) -> Iterator[QuickFix]:
    return split_at(function, fault.node)


def _without_return(kernel: Function, fault: Fault) -> Iterator[QuickFix]:
    """Yield the fix that guards the work, where the condition is that of one `return`."""
    place = -1 if fault.cause is None else fault.cause.start_byte
    early = [each for each in kernel.returns if any(_holds(c, place) for c in conditions_around(kernel, each))]
    return keep_threads(kernel, early[0], fault.node) if len(early) == 1 else iter(())


def _holds(condition: Node, place: int) -> bool:
    return condition.start_byte <= place < condition.end_byte
