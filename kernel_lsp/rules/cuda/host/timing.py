"""KL276: times of kernels that are read before the kernels have run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from kernel_lsp.rules.cuda.declare import WARNING, declare, hit, launches_in
from kernel_lsp.rules.cuda.host.pointers import WAITS
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.names import names_in_text
from kernel_lsp.rules.rule import Hit

_CLOCKS = ("now", "clock", "omp_get_wtime", "gettimeofday", "clock_gettime", "MPI_Wtime")
_MACRO_CALL = re.compile(r"\b([A-Z][A-Z_]+)\s*\(\s*\)")
_WAITS_TOO = re.compile(
    r"\bcuda(?:Event|Stream)Query\b|\bthrust\s*::\s*(?!raw_pointer_cast)(?:\w+\s*<[^;<>]*>\s*)?\w+\s*\("
)
"""Loops that ask until all is done, and algorithms that return when they have run."""
_RECORD = re.compile(r"cudaEventRecord\w*\s*\(\s*(\w+)")


@declare(
    "KL276",
    "timing-without-wait",
    WARNING,
    on="host",
    needs=("now clock omp_get_wtime gettimeofday MPI_Wtime cudaEventElapsedTime",),
    summary="A time is read before the kernels that it is of have run",
    why="""
    A launch returns at once: a clock of the CPU that is read next times the launch alone, a few microseconds, and
    `cudaEventElapsedTime` fails while its second event has not come. Call `cudaDeviceSynchronize`, or
    `cudaEventSynchronize` of the second event, first.
    """,
    bad="""
    __global__ void one(float* x) { x[threadIdx.x] = 1.0f; }

    cudaError_t run(float* x, cudaEvent_t begin, cudaEvent_t end, float* ms) {
        cudaEventRecord(begin);
        one<<<1, 256>>>(x);
        cudaEventRecord(end);
        return cudaEventElapsedTime(ms, begin, end);
    }
    """,
    good="""
    __global__ void one(float* x) { x[threadIdx.x] = 1.0f; }

    cudaError_t run(float* x, cudaEvent_t begin, cudaEvent_t end, float* ms) {
        cudaEventRecord(begin);
        one<<<1, 256>>>(x);
        cudaEventRecord(end);
        cudaEventSynchronize(end);
        return cudaEventElapsedTime(ms, begin, end);
    }
    """,
)
def timing_without_wait(function: Function) -> Iterator[Hit]:
    between = function.file.parsed.between
    for call in function.calls_named(("cudaEventElapsedTime",)):
        arguments = function.arguments(call)
        event = function.source(arguments[2]) if len(arguments) == 3 else ""
        before = between(function.body.start_byte, call.start_byte)
        ends = [found.end() for found in _RECORD.finditer(before) if found[1] == event]
        if ends and not _waits(function, before[ends[-1] :]):
            yield hit(function.file, call, f"time is read before the event: call `cudaEventSynchronize({event})` first")
    clocks = [call for call in function.calls if function.callee(call).rpartition("::")[2] in _CLOCKS]
    launches = launches_in(function) if len(clocks) > 1 else []
    for begin, end in pairwise(clocks):
        timed = [each for each in launches if begin.end_byte < each.start_byte < end.start_byte]
        if timed and not _waits(function, between(timed[-1].end_byte, end.start_byte)):
            yield hit(
                function.file, end, "clock is read while the kernel may run: call `cudaDeviceSynchronize()` first"
            )


def _waits(function: Function, text: str) -> bool:
    """Return whether the text waits for the GPU, or calls a function or macro that may."""
    is_unknown = any(name not in function.file.macros for name in _MACRO_CALL.findall(text))
    is_known = not names_in_text(text).isdisjoint(function.file.waiting_functions)
    return is_unknown or is_known or WAITS.search(text.encode()) is not None or _WAITS_TOO.search(text) is not None
