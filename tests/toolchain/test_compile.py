"""The compiler process, with the real NVRTC."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

from kernel_lsp.core.finding import Finding
from kernel_lsp.core.verdict import BuildFailed, Built, TimedOut
from kernel_lsp.errors import EnvironmentProblem, SettingError
from kernel_lsp.process.supervisor import Conversation
from kernel_lsp.toolchain.nvrtc.compile import LONG_TEXT, SPLIT, BuildRequest, Compiler, compile_cuda
from kernel_lsp.toolchain.nvrtc.discovery import Toolchain

REVERSE = """\
template <int BLOCK>
__global__ void reverse(const float* __restrict__ x, float* __restrict__ y) {
  __shared__ float tile[BLOCK];
  tile[threadIdx.x] = x[blockIdx.x * BLOCK + threadIdx.x];
  __syncthreads();
  y[blockIdx.x * BLOCK + threadIdx.x] = tile[BLOCK - 1 - threadIdx.x];
}
"""
ENDLESS = """\
#define A B B B B B B B B B B
#define B C C C C C C C C C C
#define C D D D D D D D D D D
#define D E E E E E E E E E E
#define E F F F F F F F F F F
#define F G G G G G G G G G G
#define G x[0] = 1; x[0] = 2; x[0] = 3;
__global__ void k(float* x) { A }
"""


@pytest.fixture
async def compiler(toolchain: Toolchain) -> AsyncIterator[Compiler]:
    async with Compiler(toolchain) as compiler:
        yield compiler


async def built(compiler: Compiler, text: str, *names: str, **options: Any) -> Built:
    outcome = await compiler.compile(BuildRequest(text=text, name_expressions=names, **options))
    assert isinstance(outcome, Built), outcome
    return outcome


async def check_error(compiler: Compiler, text: str, *names: str, code: str, line: int | None, **also: Any) -> Finding:
    """The first error has this code and line, and the other fields given."""
    outcome = await compiler.compile(BuildRequest(text=text, name_expressions=names or ("k",)))
    assert isinstance(outcome, BuildFailed), outcome
    first = outcome.findings[0]
    assert (first.code, first.line) == (code, line), first
    assert {name: getattr(first, name) for name in also} == also
    return first


async def test_a_template_is_instantiated_by_naming_it(compiler: Compiler) -> None:
    outcome = await built(compiler, REVERSE, "reverse<128>", "reverse<2 * 32>")
    assert outcome.symbols == {"reverse<128>": "_Z7reverseILi128EEvPKfPf", "reverse<2 * 32>": "_Z7reverseILi64EEvPKfPf"}
    assert all(f".entry {symbol}" in outcome.ptx for symbol in outcome.symbols.values())


async def test_a_long_text_is_compiled_on_several_cores_to_the_same_kernels(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    ask = Conversation.ask

    async def watched(self: Conversation, message: Any, **how: Any) -> Any:
        asked.append(message["options"])
        return await ask(self, message, **how)

    monkeypatch.setattr(Conversation, "ask", watched)
    names = [f"reverse<{n}>" for n in (32, 64, 128, 256)]
    short = await built(compiler, REVERSE, *names)
    long = await built(compiler, REVERSE + f"// {'-' * LONG_TEXT}\n", *names)
    assert [SPLIT in options for options in asked] == [False, True]
    assert sorted(long.ptx.splitlines()) == sorted(short.ptx.splitlines())
    assert set(long.kernels) == set(short.kernels)


async def test_the_facts_are_those_of_ptxas(compiler: Compiler) -> None:
    outcome = await built(compiler, REVERSE, "reverse<128>")
    (facts,) = outcome.kernels
    assert (facts.kernel, facts.shared_bytes, facts.spill_store_bytes) == ("reverse<128>", 512, 0)
    assert 4 <= facts.n_registers <= 32


async def test_the_ptx_has_lines_of_the_source(compiler: Compiler) -> None:
    assert ".loc\t1 4 " in (await built(compiler, REVERSE, "reverse<128>")).ptx


async def test_spills_are_counted(compiler: Compiler) -> None:
    text = """\
__global__ void __launch_bounds__(1024, 2) k(const float* x, float* y) {
  float v[96];
  #pragma unroll
  for (int i = 0; i < 96; ++i) v[i] = x[i * 7 + threadIdx.x];
  __syncthreads();
  #pragma unroll
  for (int i = 0; i < 96; ++i) y[i * 3 + threadIdx.x] = v[i] * v[95 - i];
}
"""
    (facts,) = (await built(compiler, text, "k")).kernels
    assert facts.spill_store_bytes > 0


async def test_a_warning_has_its_place_and_kernel(compiler: Compiler) -> None:
    outcome = await built(compiler, "__global__ void k(float* x) {\n  int unused;\n  x[0] = 1;\n}\n", "k")
    (warning,) = outcome.warnings
    assert (warning.line, warning.column, warning.kernel, warning.code) == (2, 7, "k", "nvrtc-177-D")


async def test_an_error_has_line_column_and_kernel(compiler: Compiler) -> None:
    text = "__global__ void a(float* x) {}\n__global__ void k(float* x) {\n\tfloat y = foo + 1;\n}\n"
    await check_error(compiler, text, code="compile-error", line=3, column=12, kernel="k")


async def test_an_error_outside_of_kernels_names_none(compiler: Compiler) -> None:
    await check_error(compiler, "int f() { return nope; }\n", code="compile-error", line=1, kernel=None)


async def test_every_error_is_reported(compiler: Compiler) -> None:
    text = "__global__ void k(float* x) {\n  a = 1;\n  b = 2;\n}\n"
    outcome = await compiler.compile(BuildRequest(text=text))
    assert isinstance(outcome, BuildFailed)
    assert [finding.line for finding in outcome.findings] == [2, 3]


async def test_a_kernel_that_is_not_there_is_named_once(compiler: Compiler) -> None:
    outcome = await compiler.compile(BuildRequest(text=REVERSE, name_expressions=("revers<128>",)))
    assert isinstance(outcome, BuildFailed)
    assert [(f.code, f.kernel) for f in outcome.findings] == [("no-such-kernel", "revers<128>")]


async def test_an_error_in_a_header_is_put_on_the_line_that_led_there(compiler: Compiler) -> None:
    text = """\
#include <cuda/std/array>
__global__ void k(int* x) {
  cuda::std::array<int, 2> a{1, 2};
  x[0] = cuda::std::get<5>(a);
}
"""
    finding = await check_error(compiler, text, code="compile-error", line=4, kernel="k")
    assert "cuda/std/" in finding.message
    assert "used from line 4" in finding.message


async def test_bad_inline_assembly_is_put_on_its_line(compiler: Compiler) -> None:
    text = '__global__ void k(float* x) {\n  x[0] = 1;\n  asm("foo.bar %0, %0;" : "+f"(x[1]));\n}\n'
    await check_error(compiler, text, code="assemble-error", line=3, kernel="k")


async def test_too_much_static_shared_memory_is_explained(compiler: Compiler) -> None:
    text = "__global__ void k(float* x) {\n  __shared__ float s[40000];\n  s[threadIdx.x] = 1;\n  __syncthreads();\n"
    finding = await check_error(
        compiler, text + "  x[0] = s[threadIdx.x ^ 1];\n}\n", code="too-much-shared-memory", line=None
    )
    assert "160000 bytes" in finding.message


async def test_a_function_without_a_body_is_an_error(compiler: Compiler) -> None:
    text = "__device__ void f(float* x);\n__global__ void k(float* x) { f(x); }\n"
    await check_error(compiler, text, code="assemble-error", line=None)


@pytest.mark.parametrize("text", ["\0", "int \ud800;"], ids=["NUL", "surrogate"])
async def test_what_no_file_can_hold_is_refused(compiler: Compiler, text: str) -> None:
    await check_error(compiler, text, code="not-text", line=None)


@pytest.mark.parametrize("name", ["k\n#include </etc/passwd>", 'k"', "", "1k", "k;"])
async def test_a_name_expression_cannot_smuggle_text(compiler: Compiler, name: str) -> None:
    await check_error(compiler, "__global__ void k(float* x) {}", name, code="no-such-kernel", line=None)


async def test_no_file_of_the_machine_is_read(compiler: Compiler) -> None:
    outcome = await compiler.compile(BuildRequest(text='#include "/etc/hostname"\n'))
    assert isinstance(outcome, BuildFailed)
    assert (outcome.findings[0].code, outcome.log) == ("include-outside-toolkit", "")


async def test_common_headers_are_there(compiler: Compiler) -> None:
    headers = "stdint.h cstdint cfloat float.h cmath math.h climits limits limits.h type_traits utility tuple array "
    headers += "cstddef stddef.h cassert cuda_fp16.h cuda_bf16.h mma.h cuda_runtime.h cuda/std/cstdint"
    text = "".join(f"#include <{header}>\n" for header in headers.split())
    body = "uint64_t big = UINT32_MAX; x[0] = FLT_MAX + INFINITY + M_PI + std::numeric_limits<float>::max() + big;"
    outcome = await built(compiler, f"{text}__global__ void k(float* x) {{ {body} }}\n", "k")
    assert outcome.warnings == ()


async def test_fast_math_is_off(compiler: Compiler) -> None:
    outcome = await built(compiler, "__global__ void k(float* x) { x[0] = x[1] / x[2] + sqrtf(x[3]); }", "k")
    assert "div.rn.f32" in outcome.ptx
    assert "sqrt.rn.f32" in outcome.ptx


async def test_the_architecture_is_that_asked_for(compiler: Compiler) -> None:
    outcome = await built(compiler, REVERSE, "reverse<32>", architecture="sm_80")
    assert ".target sm_80" in outcome.ptx


async def test_no_architecture_is_a_setting_error(compiler: Compiler) -> None:
    with pytest.raises(SettingError, match="hopper"):
        await compiler.compile(BuildRequest(text="", architecture="hopper"))


async def test_an_architecture_that_the_compiler_does_not_know_is_the_machines_fault(compiler: Compiler) -> None:
    with pytest.raises(EnvironmentProblem, match="does not compile for sm_20"):
        await compiler.compile(BuildRequest(text="", architecture="sm_20"))


async def test_a_compile_without_end_times_out_and_the_next_one_works(toolchain: Toolchain) -> None:
    async with Compiler(toolchain, n_processes=1, deadline_s=1.5) as compiler:
        outcome = await compiler.compile(BuildRequest(text=ENDLESS, name_expressions=("k",)))
        assert isinstance(outcome, TimedOut), outcome
        await built(compiler, REVERSE, "reverse<128>")


async def test_a_killed_compiler_is_replaced(toolchain: Toolchain) -> None:
    async with Compiler(toolchain, n_processes=1) as compiler:
        await built(compiler, REVERSE, "reverse<128>")
        process = compiler._idle[0]._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        await built(compiler, REVERSE, "reverse<64>")


async def test_a_compiler_that_dies_on_a_text_is_a_failed_build(
    toolchain: Toolchain, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    start = Compiler._start

    async def remember(compiler: Compiler) -> Conversation:
        started.append(await start(compiler))
        return started[-1]

    monkeypatch.setattr(Compiler, "_start", remember)
    compiling = asyncio.create_task(compile_cuda(ENDLESS, toolchain=toolchain))
    while not started:
        await asyncio.sleep(0.01)
    assert started[0]._process is not None
    os.kill(started[0]._process.pid, signal.SIGSEGV)
    outcome = await compiling
    assert isinstance(outcome, BuildFailed)
    assert outcome.findings[0].code == "compiler-died"
    assert "signal 11" in outcome.findings[0].message


async def test_very_deep_nesting_builds(compiler: Compiler) -> None:
    nested = "(" * 50_000 + "1" + ")" * 50_000
    await built(compiler, f"__global__ void k(int* x) {{ x[0] = {nested}; }}", "k")


async def test_two_at_once_get_their_own_answers(compiler: Compiler) -> None:
    first, second, third = await asyncio.gather(
        *(built(compiler, REVERSE, f"reverse<{block}>") for block in (32, 64, 128))
    )
    assert [list(o.symbols) for o in (first, second, third)] == [["reverse<32>"], ["reverse<64>"], ["reverse<128>"]]


async def test_a_library_that_does_not_load_is_the_machines_fault(toolchain: Toolchain) -> None:
    broken = toolchain.model_copy(update={"nvrtc": toolchain.nvrtc.with_name("libnope.so.13")})
    with pytest.raises(EnvironmentProblem, match="NVRTC does not load"):
        await compile_cuda(REVERSE, toolchain=broken)


async def test_integers_of_fixed_width_need_no_include(compiler: Compiler) -> None:
    """Nor do they for nvcc."""
    text = "__global__ void k(float* x, int64_t n) { if (uint32_t(n) > 3u) x[uintptr_t(0)] = 1.0f; }"
    assert isinstance(await compiler.compile(BuildRequest(text=text, name_expressions=("k",))), Built)


@pytest.mark.parametrize("own", ["", "typedef unsigned int uint;", "using uint = unsigned;", "#define uint unsigned"])
async def test_short_names_of_types_need_no_include(compiler: Compiler, own: str) -> None:
    """Nor do they for nvcc; who declares them says the same again."""
    text = f"{own}\n__global__ void k(float* x, uint n, ushort m) {{ x[n] = uint(m); }}"
    assert isinstance(await compiler.compile(BuildRequest(text=text, name_expressions=("k",))), Built)


@pytest.mark.parametrize("header", ["", "#include <climits>", "#include <math.h>", "#include <limits>"])
async def test_constants_of_nvccs_headers_need_no_include(compiler: Compiler, header: str) -> None:
    """Nor does a header say otherwise."""
    text = f"{header}\n__global__ void k(float* x) {{ x[0] = INT_MAX * M_SQRT1_2 * M_SQRT2 * M_LOG2E * M_LN2; }}"
    built = await compiler.compile(BuildRequest(text=text, name_expressions=("k",)))
    assert isinstance(built, Built)
    assert not built.warnings


@pytest.mark.parametrize("header", ["cstdint", "cmath", "algorithm", "cstddef>\n#include <cmath"])
async def test_sizes_of_std_come_with_headers_of_cpp(compiler: Compiler, header: str) -> None:
    text = f"#include <{header}>\n__global__ void k(float* x, std::size_t n) {{ x[n] = 1.0f; }}"
    assert isinstance(await compiler.compile(BuildRequest(text=text, name_expressions=("k",))), Built)
