"""KL248: shared memory that is read and never set."""

from __future__ import annotations

from collections.abc import Iterator

from kernel_lsp.rules.cuda.declare import ERROR, declare
from kernel_lsp.rules.cuda.model import Function
from kernel_lsp.rules.cuda.simulation.hits import simulated_hits
from kernel_lsp.rules.rule import Hit


@declare(
    "KL248",
    "uninitialized-shared",
    ERROR,
    on="kernel",
    needs=("__shared__", "["),
    summary="A shared array is read or added to, and nothing sets it",
    why="""
    Shared memory is not zeroed: it holds what the block before left there. Set each element and put `__syncthreads()`
    behind that, before the first addition.
    """,
    bad="""
    __global__ void count(const unsigned char* __restrict__ v, int* __restrict__ bins) {
        __shared__ int local[256];
        atomicAdd(&local[v[threadIdx.x]], 1);
        __syncthreads();
        atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
    }
    """,
    good="""
    __global__ void count(const unsigned char* __restrict__ v, int* __restrict__ bins) {
        __shared__ int local[256];
        local[threadIdx.x] = 0;
        __syncthreads();
        atomicAdd(&local[v[threadIdx.x]], 1);
        __syncthreads();
        atomicAdd(&bins[threadIdx.x], local[threadIdx.x]);
    }
    """,
)
def uninitialized_shared(kernel: Function) -> Iterator[Hit]:
    if "asm" not in kernel.text:
        yield from simulated_hits(kernel, "KL248")
