"""KL272: results of a block that the last block reads without a fence."""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernel_lsp.rules.cuda import fields
from kernel_lsp.rules.cuda.declare import ERROR, declare, hit
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.rule import Hit

_ORDERS = re.compile(r"fence|memory_order|atomic_ref|cuda::atomic|\basm\b|grid\w*\.sync|this_grid|__nv_atomic")
_LAST = re.compile(r"[=!]=\s*\(?\s*(?:\(?unsigned(?: int)?\)?\s*)?(?:gridDim|(?:n|num|total)_?[bB]locks)")


@declare(
    "KL272",
    "missing-fence",
    ERROR,
    on="kernel",
    needs=("atomicAdd atomicInc", "gridDim blocks Blocks"),
    summary="A block counts itself done before its result is visible to others",
    why="""
    The last block to increment a counter reads what the others have written. Without `__threadfence()` between the
    write and the increment, the increment may be seen first, and the last block reads old values.
    """,
    bad="""
    __device__ unsigned done;
    __global__ void sum(const float* __restrict__ x, float* parts, float* __restrict__ out) {
        if (threadIdx.x == 0) {
            parts[blockIdx.x] = x[blockIdx.x];
            if (atomicAdd(&done, 1u) == gridDim.x - 1) {
                float total = 0.0f;
                for (int i = 0; i < gridDim.x; ++i) total += parts[i];
                *out = total;
                done = 0;
            }
        }
    }
    """,
    good="""
    __device__ unsigned done;
    __global__ void sum(const float* __restrict__ x, volatile float* parts, float* __restrict__ out) {
        if (threadIdx.x == 0) {
            parts[blockIdx.x] = x[blockIdx.x];
            __threadfence();
            if (atomicAdd(&done, 1u) == gridDim.x - 1) {
                float total = 0.0f;
                for (int i = 0; i < gridDim.x; ++i) total += parts[i];
                *out = total;
                done = 0;
            }
        }
    }
    """,
)
def missing_fence(kernel: Function) -> Iterator[Hit]:
    if _ORDERS.search(kernel.text) or not _LAST.search(kernel.text) or kernel.file.helpers_of(kernel.text.encode()):
        return
    written: dict[str, int] = {}
    for write in kernel.assignments:
        left = write.child_by_field_id(fields.LEFT)
        if left is None or left.type != "subscript_expression":
            continue
        array = kernel.variable(left.child_by_field_id(fields.ARGUMENT))
        if array is not None and array in kernel.parameters:
            written.setdefault(array.name, write.end_byte)
    for call in kernel.calls_named(("atomicAdd", "atomicInc")):
        before = {name for name, place in written.items() if place < call.start_byte}
        read = (access for access in kernel.subscripts if access.start_byte > call.end_byte)
        arrays = {kernel.source(a) for access in read if (a := access.child_by_field_id(fields.ARGUMENT)) is not None}
        if before & arrays:
            yield hit(kernel.file, call, "missing `__threadfence()`: the last block may read old values of others")
            return
