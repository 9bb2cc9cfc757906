"""The integrity gate: attacks are refused, unusual but honest kernels pass."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.verdict import Built
from kernel_lsp.generate.codegen.helpers import HelperUse, render_helpers
from kernel_lsp.toolchain.integrity.audit import (
    audit,
)
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.nvrtc.discovery import Toolchain


@pytest.fixture
async def compiler(toolchain: Toolchain) -> AsyncIterator[Compiler]:
    async with Compiler(toolchain) as compiler:
        yield compiler


async def compiled(compiler: Compiler, text: str) -> Built:
    outcome = await compiler.compile(BuildRequest(text=text, name_expressions=("k",)))
    assert isinstance(outcome, Built), outcome
    return outcome


async def check(compiler: Compiler, text: str, *expected: tuple[str, Severity, int | None]) -> tuple[Finding, ...]:
    """The audit finds exactly this: code, severity and line."""
    findings = audit(text, await compiled(compiler, text))
    assert [(finding.code, finding.severity, finding.line) for finding in findings] == list(expected), findings
    return findings


HONEST = {
    "a constant table": "__constant__ float t[4] = {1, 2, 3, 4};\n__global__ void k(float* x, int i) { x[0] = t[i]; }",
    "a constexpr table": "constexpr float t[3] = {1, 2, 3};\n__global__ void k(float* x, int i) { x[0] = t[i]; }",
    "a device table that is only read": (
        "__device__ float t[3] = {1, 2, 3};\n__global__ void k(float* x, int i) { x[0] = t[i]; }"
    ),
    "a device table whose index comes from itself": (
        "__device__ int t[3] = {1, 2, 0};\n__global__ void k(int* x, int i) { x[t[i]] = t[t[i]]; }"
    ),
    "static shared memory": (
        "__global__ void k(float* x) { static __shared__ float s[32]; s[threadIdx.x] = x[threadIdx.x];\n"
        "__syncthreads(); x[threadIdx.x] = s[31 - threadIdx.x]; }"
    ),
    "dynamic shared memory": (
        "extern __shared__ float s[];\n__global__ void k(float* x) { s[threadIdx.x] = x[threadIdx.x];\n"
        "__syncthreads(); x[threadIdx.x] = s[threadIdx.x ^ 1]; }"
    ),
    "a device function that is not inlined": (
        "__device__ __noinline__ float twice(float v) { return v * 2; }\n"
        "__global__ void k(float* x) { x[0] = twice(x[1]); }"
    ),
    "a table handed to a function that reads": (
        "__device__ float t[3] = {1, 2, 3};\n"
        "__device__ __noinline__ float pick(const float* p, int i) { return p[i]; }\n"
        "__global__ void k(float* x, int i) { x[0] = pick(t, i) + pick(x, i); }"
    ),
    "a character table": '__global__ void k(char* x, int i) { x[0] = "hello"[i]; }',
    "an assertion": "__global__ void k(float* x) { assert(x[0] > 0); x[1] = 1; }",
    "a trap": "__global__ void k(float* x) { if (x[0] < 0) __trap(); x[1] = 1; }",
    "trigonometry with its own table": "__global__ void k(float* x) { x[0] = sinf(x[1]) + tanf(x[2]); }",
    "double precision that is meant": "__global__ void k(double* x) { x[0] = x[1] * 2.5; }",
    "inline assembly": '__global__ void k(float* x) { asm("ex2.approx.f32 %0, %1;" : "=f"(x[0]) : "f"(x[1])); }',
    "atomics on an output": "__global__ void k(float* x) { atomicAdd(x, 1.f); }",
    "asynchronous copies": (
        "#include <cuda_pipeline.h>\n__global__ void k(const float4* x, float4* y) { __shared__ float4 s[32];\n"
        "__pipeline_memcpy_async(&s[threadIdx.x], &x[threadIdx.x], 16); __pipeline_commit();\n"
        "__pipeline_wait_prior(0); __syncthreads(); y[threadIdx.x] = s[31 - threadIdx.x]; }"
    ),
    "cooperative groups": (
        "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
        "__global__ void k(float* x) { auto g = cg::this_thread_block(); g.sync(); x[0] = g.size(); }"
    ),
    "the barrier of a grid": (
        "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
        "__global__ void k(float* x) { x[blockIdx.x + 1] = 1; cg::this_grid().sync(); x[0] = x[gridDim.x]; }"
    ),
    "the barrier of a grid that the generator writes": (
        render_helpers([HelperUse("grid_sync", "")])
        + "__global__ void k(float* x) { x[blockIdx.x + 1] = 1; grid_sync(); x[0] = x[gridDim.x]; grid_sync(); }"
    ),
    "cub": (
        "#include <cub/block/block_reduce.cuh>\n__global__ void k(float* x) { using R = cub::BlockReduce<float, 128>;\n"
        "__shared__ typename R::TempStorage s; float v = R(s).Sum(x[threadIdx.x]); if (threadIdx.x == 0) x[0] = v; }"
    ),
    "an address kept on the stack, of a table": (
        "__device__ float t[3] = {1, 2, 3}, u[3] = {4, 5, 6};\n"
        "__global__ void k(float* x, int i) { const float* p[2] = {t, u}; x[0] = p[i & 1][i]; }"
    ),
    "an include in a comment": '// #include "a.h"\n/*\n#include <b>\n*/\n__global__ void k(float* x) { x[0] = 1; }',
}


@pytest.mark.parametrize("text", HONEST.values(), ids=HONEST.keys())
async def test_honest_kernels_pass_without_a_word(compiler: Compiler, text: str) -> None:
    await check(compiler, text)


STATE = {
    "a counter": "__device__ int n;\n__global__ void k(int* x) {\n  x[0] = atomicAdd(&n, 1); }",
    "a static local": "__global__ void k(int* x) {\n\n  static int n; x[0] = n++; }",
    "a cache by index": "__device__ int c[9];\n__global__ void k(int* x, int i) {\n  c[i + 1] = x[0]; x[1] = c[i]; }",
    "managed memory": "__managed__ int n;\n__global__ void k(int* x) {\n  n = x[0]; }",
    "an initialized variable": "__device__ int n = 7;\n__global__ void k(int* x) {\n  n += x[0]; }",
    "a pointer chosen at run time": (
        "__device__ int a, b;\n__global__ void k(int* x, int i) {\n  int* p = i > 3 ? &a : x; *p = 5; x[1] = b; }"
    ),
    "an address given away": "__device__ int n;\n__global__ void k(int** x) {\n  x[0] = &n; }",
    "inline assembly": (
        '__device__ int n;\n__global__ void k(int* x) {\n  asm volatile("st.global.u32 [%0], %1;" ::'
        ' "l"(&n), "r"(x[0])); }'
    ),
    "a label before the store": (
        '__device__ int n;\n__global__ void k(int* x) {\n  asm volatile("A: B: st.global.u32 [%0], %1;" ::'
        ' "l"(&n), "r"(x[0])); }'
    ),
    "blanks within the opcode": (
        '__device__ int n;\n__global__ void k(int* x) {\n  asm volatile("st .global .u32 [%0], %1;" ::'
        ' "l"(&n), "r"(x[0])); }'
    ),
    "a string that looks like a comment": (
        '__device__ int n;\n__global__ void k(int* x) { asm volatile(".pragma \\"/*\\";");\n'
        'n = x[0]; asm volatile(".pragma \\"*/\\";"); }'
    ),
    "a comment that looks like the end": (
        '__device__ int n;\n__global__ void k(int* x) { asm volatile("// .section x");\n  n = x[0]; }'
    ),
    "a pointer that is a variable": (
        "__device__ int n;\n__device__ int* p = &n;\n__global__ void k(int* x) { *p = x[0]; }"
    ),
    "a pointer to a pointer": (
        "__device__ int n; __device__ int* p = &n;\n__device__ int** q = &p;\n__global__ void k(int* x) { **q = x[0]; }"
    ),
    "a pointer that a function gives back": (
        "__device__ int n[4];\n__device__ __noinline__ int* at(int i) { return n + i; }\n"
        "__global__ void k(int* x) { *at(x[1]) = x[0]; }"
    ),
    "an address taken from the stack": (
        "__device__ int n;\n__global__ void k(int* x, int i) { int* p[2] = {&n, x};\n  *p[i & 1] = x[0]; }"
    ),
    "constant memory": (
        '__constant__ int n;\n__global__ void k(int* x) {\n  asm volatile("st.u32 [%0], %1;" :: "l"(&n), "r"(x[0])); }'
    ),
    "a reduction in assembly": (
        '__device__ int n;\n__global__ void k(int* x) {\n  asm volatile("red.global.add.u32 [%0], 1;" :: "l"(&n)); }'
    ),
}


@pytest.mark.parametrize("text", STATE.values(), ids=STATE.keys())
async def test_state_between_launches_is_refused_on_its_line(compiler: Compiler, text: str) -> None:
    await check(compiler, text, ("keeps-state", Severity.ERROR, 3))


async def test_state_written_in_a_function_is_found(compiler: Compiler) -> None:
    text = (
        "__device__ int n[2];\n__device__ __noinline__ void set(int* p, int v) {\n  p[1] = v; }\n"
        "__global__ void k(int* x) { set(n, x[0]); set(x, 2); }"
    )
    (finding,) = await check(compiler, text, ("keeps-state", Severity.ERROR, 3))
    assert "'n' keeps state" in finding.message


async def test_the_name_of_a_static_local_is_readable(compiler: Compiler) -> None:
    text = "__global__ void k(int* x) { static int calls; x[0] = calls++; }"
    (finding,) = await check(compiler, text, ("keeps-state", Severity.ERROR, 1))
    assert "'calls' keeps state" in finding.message


async def test_memory_from_the_device_heap_is_refused(compiler: Compiler) -> None:
    text = "__global__ void k(float* x) {\n  float* p = (float*)malloc(8); p[0] = x[0]; x[1] = p[0];\n  free(p); }"
    await check(compiler, text, ("calls-outside", Severity.ERROR, 2), ("calls-outside", Severity.ERROR, 3))


@pytest.mark.parametrize("read", ["clock64()", "clock()"])
async def test_reading_a_clock_is_refused(compiler: Compiler, read: str) -> None:
    text = f"__global__ void k(long long* x) {{\n  x[0] = {read}; }}"
    await check(compiler, text, ("reads-a-clock", Severity.ERROR, 2))


async def test_a_clock_hidden_in_assembly_is_refused(compiler: Compiler) -> None:
    text = '__global__ void k(long long* x) {\n  asm volatile("mov.u64 %0, /* */ \\n %%globaltimer;" : "=l"(x[0])); }'
    await check(compiler, text, ("reads-a-clock", Severity.ERROR, 2))


@pytest.mark.parametrize("register", ["gridid", "pm0", "envreg3"])
async def test_telling_launches_apart_is_refused(compiler: Compiler, register: str) -> None:
    kind, bits = ("l", "u64") if register == "gridid" else ("r", "u32")
    name = "long long" if register == "gridid" else "int"
    text = f'__global__ void k({name}* x) {{\n  asm volatile("mov.{bits} %0, %%{register};" : "={kind}"(x[0])); }}'
    (finding,) = audit(text, await compiled(compiler, text))
    assert (finding.severity, finding.line) == (Severity.ERROR, 2)


async def test_a_look_into_the_workspace_of_a_grid_is_refused(compiler: Compiler) -> None:
    text = (
        "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
        "__global__ void k(unsigned* x) { auto g = cg::this_grid(); g.sync();\n"
        "  unsigned* word = *reinterpret_cast<unsigned**>(&g); x[0] = word[2]++; }"
    )
    codes = {finding.code for finding in audit(text, await compiled(compiler, text))}
    assert "tells-launches-apart" in codes


@pytest.mark.parametrize("register", ["smid", "nsmid", "warpid", "nwarpid", "total_smem_size"])
async def test_where_a_block_runs_is_refused(compiler: Compiler, register: str) -> None:
    text = f'__global__ void k(int* x) {{\n  asm("mov.u32 %0, %%{register};" : "=r"(x[0])); }}'
    await check(compiler, text, ("depends-on-place", Severity.ERROR, 2))


async def test_printing_a_string_keeps_no_state(compiler: Compiler) -> None:
    text = '__global__ void k(float* x) {\n  printf("%s %f", "here", x[0]); }'
    await check(compiler, text, ("prints", Severity.WARNING, 2))


async def test_printing_and_sleeping_are_warned_of(compiler: Compiler) -> None:
    text = '__global__ void k(float* x) {\n  printf("%f", x[0]);\n  __nanosleep(100);\n  x[1] = 1; }'
    await check(compiler, text, ("prints", Severity.WARNING, 2), ("sleeps", Severity.WARNING, 3))


async def test_double_precision_that_no_one_named_is_told(compiler: Compiler) -> None:
    text = "__global__ void k(float* x) {\n  x[0] = x[1] * 0.1 + x[2]; }"
    (finding,) = await check(compiler, text, ("f64-arithmetic", Severity.INFORMATION, 2))
    assert finding.kernel == "k"


async def test_a_product_in_reduced_precision_is_told(compiler: Compiler) -> None:
    text = """\
#include <mma.h>
using namespace nvcuda;
__global__ void k(const half* a, const half* b, float* c) {
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
  wmma::fill_fragment(fc, 0.0f);
  wmma::load_matrix_sync(fa, a, 16);
  wmma::load_matrix_sync(fb, b, 16);
  wmma::mma_sync(fc, fa, fb, fc);
  wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
"""
    await check(compiler, text, ("reduced-precision-product", Severity.INFORMATION, 10))


async def test_a_launched_name_that_was_not_compiled_is_refused(compiler: Compiler) -> None:
    text = "__global__ void k(float* x) { x[0] = 1; }"
    forged = (await compiled(compiler, text)).model_copy(update={"symbols": {"other": "_Z5otherPf"}})
    assert [finding.code for finding in audit(text, forged)] == ["no-such-kernel"]


async def test_a_barrier_of_libcu_may_look_at_the_clock_while_it_waits(compiler: Compiler) -> None:
    text = """#include <cuda/barrier>
__global__ void k(float* out) {
    __shared__ cuda::barrier<cuda::thread_scope_block> all;
    if (threadIdx.x == 0) init(&all, blockDim.x);
    __syncthreads();
    all.arrive_and_wait();
    out[threadIdx.x] = 1.0f;
}
"""
    await check(compiler, text)
