"""Loops that cannot end are known before they run, and honest loops are left alone."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_lsp.core.plan import BoundLaunch, ScalarArgument, TensorArgument
from kernel_lsp.core.verdict import Rejected, TimedOut
from kernel_lsp.ptx.analysis.endless import endless_loops
from kernel_lsp.ptx.executor import NO_END, BufferFile, PtxExecutor, RunOptions
from kernel_lsp.ptx.text.parser import parse

LINE = 4
TEXT = """
extern "C" __global__ void k(const float* x, float* out, int n) {{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    {body}
    if (i < n) out[i] = 2.0f * x[i];
}}
"""


@pytest.fixture
def found(compile_cuda):
    """(code, line) of each loop that is found in a kernel of that body."""

    def look(body):
        module = parse(compile_cuda(TEXT.format(body=body), "k").ptx)
        return {(loop.code, loop.location.line) for loop in endless_loops(module)}

    return look


@pytest.mark.parametrize(
    "body",
    [
        "while (true) {}",
        "for (unsigned s = 1; s; s += 2) {}",
        "volatile int go = 1; while (go) {}",
        "volatile int go = 1; if (threadIdx.x == 77) while (go) {}",
        "volatile int go = 1; again: if (go) goto again;",
        "if (n > 5000) for (;;) {}",
        "int go = n; while (go) {}",
        "if (i < n && x[i] > 3.5f) { volatile int go = 1; while (go) {} }",
        'asm volatile("{ AGAIN: bra AGAIN; }");',
        'int go = 1; while (go) asm volatile("" : "+r"(go));',
        "while (true) __syncthreads();",
        "while (true) __nanosleep(100);",
        "int go[4] = {1, 1, 1, 1}; volatile int* p = go; while (p[threadIdx.x & 3]) {}",
        "for (;;) { if (i < n) out[i] = 2.0f * x[i]; }",
        "for (int j = 0; j < n; ++j) { out[j] = x[j]; volatile int go = 1; while (go) {} }",
    ],
)
def test_a_loop_whose_condition_nothing_changes_is_endless(found, body):
    assert ("endless-loop", LINE) in found(body)


@pytest.mark.parametrize(
    "body",
    [
        "volatile int s = 1; while (s) s = s * 3 | 1;",
        "volatile unsigned s = 1; for (; s; s += 2) {}",
        "for (volatile unsigned long long s = 0; s < 1ull << 60; ++s) {}",
        "float v = 1.0f; while (v != 0.3f) v = v * 1.0000001f + 1e-9f;",
        "if (i < n && x[i] > 3.5f) { volatile int s = 1; while (s) s = s * 3 | 1; }",
    ],
)
def test_a_loop_of_no_use_and_no_known_end_is_idle(found, body):
    assert found(body) == {("idle-loop", LINE)}


@pytest.mark.parametrize(
    "body",
    [
        "for (volatile int s = 0; s < 100; ++s) {}",
        "volatile int s = 100; while (s--) {}",
        "for (int j = i; j < n; j += gridDim.x * blockDim.x) out[j] = x[j];",
        "int m = max(n / 3, 1); "
        "for (int j = i * m; j < n; j += gridDim.x * m) for (int l = 0; l < m; ++l) out[j + l] = 1.0f;",
        "float v = x[0]; while (fabsf(v * v - 2.0f) > 1e-6f) v = 0.5f * (v + 2.0f / v); out[0] = v;",
        "int low = 0, high = n; while (low < high) { int m = (low + high) / 2; if (x[m] < 1.0f) low = m + 1; "
        "else high = m; } out[0] = low;",
        "float v = x[0]; do { v *= 0.5f; } while (v > 1.0f); out[0] = v;",
        "if (threadIdx.x == 0) while (*(volatile const float*)x == 0.0f) {}",
        "while (atomicAdd(out, 0.0f) == 0.0f) __nanosleep(20);",
        "__shared__ volatile int go; go = 1; __syncthreads(); if (threadIdx.x == 0) go = 0; while (go) {}",
        "if (n < 0) { __trap(); while (true) {} }",
        "while (true) { int t = atomicAdd((int*)out, 1); if (t >= n) break; out[t + 1] = x[t]; }",
        "unsigned r = i; do { r = r * 1664525u + 1013904223u; } while (r > 3000000000u); out[0] = r;",
        "unsigned m = __activemask(); while (m) { int l = __ffs(m) - 1; m &= m - 1; out[l] = x[l]; }",
    ],
)
def test_an_honest_loop_is_left_alone(found, body):
    assert found(body) == set()


def test_a_loop_in_a_function_that_is_not_inlined_is_found(compile_cuda):
    text = "__device__ __noinline__ int f(int a) { volatile int go = a; while (go) {} return a; }"
    text += 'extern "C" __global__ void k(int* out) { out[0] = f(out[1]); }'
    assert [loop.code for loop in endless_loops(parse(compile_cuda(text, "k").ptx))] == ["endless-loop"]


def test_the_loops_of_libraries_are_left_alone(compile_cuda):
    text = """
#include <cub/block/block_radix_sort.cuh>
#include <cuda/barrier>
#include <cuda/atomic>
extern "C" __global__ void k(float* x, double* y, int* f, int n) {
    using Sort = cub::BlockRadixSort<float, 64, 2>;
    __shared__ typename Sort::TempStorage storage;
    __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
    if (threadIdx.x == 0) init(&barrier, blockDim.x);
    __syncthreads();
    float v[2] = {fmodf(x[0], 3.0f), sinf(x[1]) + jnf(n, x[2])};
    Sort(storage).Sort(v);
    barrier.arrive_and_wait();
    y[threadIdx.x] = v[0] + remainder(y[1], 2.0) + jn(n, y[2]) + lgamma(y[3]);
    cuda::atomic_ref<int, cuda::thread_scope_device> flag(*f);
    while (flag.load(cuda::memory_order_acquire) == 0) {}
}
"""
    assert list(endless_loops(parse(compile_cuda(text, "k").ptx))) == []


async def test_a_kernel_with_an_endless_loop_is_rejected_at_its_line(compile_cuda):
    built = compile_cuda(TEXT.format(body="while (true) {}"), "k")
    async with PtxExecutor() as executor:
        outcome = await executor.load(built.ptx, "kernel.cu")
    assert isinstance(outcome, Rejected)
    assert [(finding.code, finding.line) for finding in outcome.findings] == [("endless-loop", LINE)]


async def test_a_kernel_that_cannot_be_run_is_still_looked_at(compile_cuda):
    body = 'unsigned v; asm volatile("activemask.b32 %0;" : "=r"(v)); while (true) {}'
    text = compile_cuda(TEXT.format(body=body), "k").ptx.replace("activemask.b32", "unheardof.b32")
    async with PtxExecutor() as executor:
        assert isinstance(await executor.load(text, "kernel.cu"), Rejected)


async def test_a_thread_that_finds_no_end_is_named_with_its_line(compile_cuda, tmp_path):
    body = "if (threadIdx.x == 7) { unsigned s = 1; while (s) { out[s & 1] = s; s = s * 3 | 1; } }"
    built = compile_cuda(TEXT.format(body=body).replace("* 3 | 1", "* (unsigned)x[0] | 1"), "k")
    tensors = (("x", "input"), ("out", "output"))
    np.full(8, 3.0, "f4").tofile(tmp_path / "x")
    np.zeros(8, "f4").tofile(tmp_path / "out")
    buffers = [BufferFile(name, tmp_path / name, 32, role, "f32[8]") for name, role in tensors]
    pointers = (TensorArgument(tensor=name) for name, _ in tensors)
    arguments = (*pointers, ScalarArgument(cuda_type="int", value=0))
    step = BoundLaunch(kernel="k", grid=(2, 1, 1), block=(64, 1, 1), shared_bytes=0, arguments=arguments)
    async with PtxExecutor() as executor:
        await executor.load(built.ptx, "kernel.cu")
        outcome = await executor.run(buffers, [step], {}, RunOptions(max_thread_instructions=100_000))
    assert isinstance(outcome, TimedOut)
    (finding,) = outcome.findings
    assert (finding.code, finding.line, finding.thread) == (NO_END, LINE, (7, 0, 0))
    assert f"at line {LINE}" in outcome.message
