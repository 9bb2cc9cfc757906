"""KL250 to KL259: the host code of a `.cu` file."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import INFORMATION, LOOP_WORDS, declare, hit, launches_in
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.rule import Hit

_CHECKED_CALLS = (
    "cudaMalloc", "cudaMallocAsync", "cudaMallocManaged", "cudaMallocHost", "cudaHostAlloc", "cudaMemcpy",
    "cudaMemcpyAsync", "cudaMemcpy2D", "cudaMemset", "cudaMemsetAsync", "cudaStreamCreate", "cudaSetDevice",
    "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaFuncSetAttribute", "cudaMemcpyToSymbol",
    "cudaLaunchCooperativeKernel", "cudaLaunchKernel", "cudaEventCreate", "cudaEventElapsedTime",
)  # fmt: skip
"""Calls whose failure invalidates all later results. Freeing and destroying are excluded."""
_WAITS = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize")
_ALLOCATIONS = ("cudaMalloc", "cudaMallocManaged", "cudaMallocHost", "cudaHostAlloc")
_LAUNCH_CHECKS = ("GetLastError", "PeekAtLastError", "CHECK", "check", "Check", "= cuda", "return cuda")
"""Texts that indicate a check of a launch. A later call whose result is checked also reports the launch's error."""


@declare(
    "KL250",
    "unchecked-call",
    INFORMATION,
    on="host",
    needs=("cuda",),
    summary="The result of a CUDA call is not looked at",
    why="""
    Without a check, a failure (out of memory, an error of an earlier kernel) is found later and elsewhere, or never:
    results are then whatever memory held.
    """,
    bad="""
    void allocate(float** x, size_t n) {
        cudaMalloc(x, n * sizeof(float));
    }
    """,
    good="""
    cudaError_t allocate(float** x, size_t n) {
        return cudaMalloc(x, n * sizeof(float));
    }
    """,
)
def unchecked_call(function: Function) -> Iterator[Hit]:
    file = function.file
    for call in function.calls_named(_CHECKED_CALLS):
        parent = function.parent(call)
        if parent is not None and parent.type == "expression_statement" and not _is_destructor(function):
            yield hit(file, call, f"unchecked CUDA error: the result of `{function.callee(call)}` is ignored")


@declare(
    "KL251",
    "unchecked-launch",
    INFORMATION,
    on="host",
    needs=("<<<",),
    summary="A launch whose errors are never asked for",
    why="""
    A launch returns nothing: too many threads, too much shared memory or no image for the GPU are only seen through
    `cudaGetLastError()`. Without it the kernel silently does not run.
    """,
    bad="""
    __global__ void zero(float* x) { x[threadIdx.x] = 0.0f; }

    void run(float* x) {
        zero<<<1, 256>>>(x);
    }
    """,
    good="""
    __global__ void zero(float* x) { x[threadIdx.x] = 0.0f; }

    cudaError_t run(float* x) {
        zero<<<1, 256>>>(x);
        return cudaGetLastError();
    }
    """,
)
def unchecked_launch(function: Function) -> Iterator[Hit]:
    file = function.file
    launches = launches_in(function)
    if not launches:
        return
    behind = function.file.parsed.data[launches[-1].end_byte : function.node.end_byte].decode(errors="replace")
    if not any(check in behind for check in _LAUNCH_CHECKS):
        call = "C10_CUDA_KERNEL_LAUNCH_CHECK()" if "Tensor" in function.text else "cudaGetLastError()"
        yield hit(file, launches[-1], f"unchecked kernel launch: call `{call}`")


@declare(
    "KL252",
    "sync-in-loop",
    INFORMATION,
    on="host",
    needs=("Synchronize", LOOP_WORDS),
    summary="The host waits for the GPU in each round of a loop",
    why="""
    Launches are asynchronous, so that the host can prepare the next one. Waiting in each round adds its latency, 5 to
    10 microseconds, to every kernel. Work in one stream runs in order anyway: wait once behind the loop.
    """,
    bad="""
    __global__ void step(float* x) { x[threadIdx.x] += 1.0f; }

    cudaError_t run(float* x, int n) {
        cudaError_t error = cudaSuccess;
        for (int i = 0; i < n; ++i) {
            step<<<1, 256>>>(x);
            error = cudaDeviceSynchronize();
        }
        return error;
    }
    """,
    good="""
    __global__ void step(float* x) { x[threadIdx.x] += 1.0f; }

    cudaError_t run(float* x, int n) {
        for (int i = 0; i < n; ++i) {
            step<<<1, 256>>>(x);
        }
        return cudaDeviceSynchronize();
    }
    """,
)
def sync_in_loop(function: Function) -> Iterator[Hit]:
    file = function.file
    for call in function.calls_named(_WAITS):
        loop = function.loop_around(call)
        if loop is not None and not _is_for_another(function, call, loop):
            yield hit(file, call, "host synchronization in each iteration: synchronize once behind the loop")


@declare(
    "KL253",
    "allocation-in-loop",
    INFORMATION,
    on="host",
    needs=("cudaMalloc cudaHostAlloc", LOOP_WORDS),
    summary="Memory is allocated in a loop",
    why="""
    `cudaMalloc` may wait for the whole device and takes up to milliseconds. Allocate once before the
    loop, or use `cudaMallocAsync`, which keeps a pool.
    """,
    bad="""
    cudaError_t run(int n, size_t bytes) {
        cudaError_t error = cudaSuccess;
        for (int i = 0; i < n; ++i) {
            void* buffer = nullptr;
            error = cudaMalloc(&buffer, bytes);
        }
        return error;
    }
    """,
    good="""
    cudaError_t run(int n, size_t bytes) {
        void* buffer = nullptr;
        cudaError_t error = cudaMalloc(&buffer, bytes);
        for (int i = 0; i < n && error == cudaSuccess; ++i) {
            error = cudaMemset(buffer, 0, bytes);
        }
        cudaFree(buffer);
        return error;
    }
    """,
)
def allocation_in_loop(function: Function) -> Iterator[Hit]:
    file = function.file
    for call in function.calls_named(_ALLOCATIONS):
        if _is_in_counting_loop(function, call):
            yield hit(file, call, f"allocation in each iteration: `{function.callee(call)}` may synchronize the device")


def _is_destructor(function: Function) -> bool:
    """Return whether the function is a destructor, which must not throw and returns nothing."""
    return function.name.rpartition("::")[2].startswith("~")


def _is_in_counting_loop(function: Function, call: Node) -> bool:
    """Return whether a loop repeats the call. One that allocates an element of an array or list each time does not."""
    loop = function.loop_around(call)
    is_repeated = loop is not None and loop.type in ("for_statement", "while_statement")
    targets = function.arguments(call)[:1]
    return is_repeated and not any("[" in function.source(target) for target in targets)


def _is_for_another(function: Function, call: Node, loop: Node) -> bool:
    """Return whether each iteration waits for its own stream or event, which the loop iterates over."""
    body = loop.child_by_field_id(fields.BODY)
    end = loop.start_byte if body is None else body.start_byte
    head = set(re.findall(r"\w+", function.file.parsed.between(loop.start_byte, end)))
    return any(not head.isdisjoint(function.names_in(argument)) for argument in function.arguments(call))
