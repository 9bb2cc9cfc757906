"""Compiling a `.cu` file that has no launch plan."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.cli.check import describe_finding
from kernel_lsp.config import Settings
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import EnvironmentProblem
from kernel_lsp.verify.session import plain_build
from kernel_lsp.verify.session.plain_build import check_plain, check_without_task, device_text, static_findings

TEMPLATE = """#include <vector>
#include <cuda_runtime.h>
template <int BLOCK>
__global__ void fill(float* out, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) out[i] = 1.0f;
}
int main() {
    std::vector<float> host(64);
    fill<64><<<1, 64>>>(nullptr, 64);
    return 0;
}
"""
HEADER = """#pragma once
#include <cstdio>
#include <cstdlib>
#ifdef __CUDACC__
#define DEVICE __device__ __forceinline__
#endif
inline void fail(const char* what) { std::fprintf(stderr, "%s\\n", what); std::exit(1); }
DEVICE float twice(float x) { return 2.0f * x; }
"""


async def check(tmp_path: Path, text: str) -> Verdict:
    settings = Settings(cache_directory=tmp_path / "cache", sandbox="auto", target_gpu="H200")
    return await check_plain(tmp_path / "file.cu", text, settings)


async def _none() -> None:
    return None


async def test_nvrtc_compiles_the_device_code_where_there_is_no_nvcc(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_build, "find_nvcc", _none)
    verdict = await check(tmp_path, TEMPLATE)
    assert (verdict.device, verdict.outcome.kind) == ("NVRTC", "unsupported")
    assert [kernel.n_registers > 0 for kernel in verdict.kernels] == [True]


async def test_an_error_behind_host_code_keeps_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_build, "find_nvcc", _none)
    host = "int main() {\n    return 0;\n}\n"
    verdict = await check(tmp_path, host + "__global__ void k(float* x) {\n    y[0] = 1.0f;\n}\n")
    assert [finding.line for finding in getattr(verdict.outcome, "findings", ())] == [5]


async def test_a_missing_header_is_an_error_at_its_line(tmp_path: Path) -> None:
    verdict = await check(tmp_path, '\n#include "absent.cuh"\n__global__ void k() {}\n')
    assert [finding.line for finding in getattr(verdict.outcome, "findings", ())] == [2]


def test_host_functions_are_blanked_and_lines_stay() -> None:
    text = device_text(TEMPLATE)
    assert "main" not in text
    assert "<vector>" not in text
    assert text.count("\n") == TEMPLATE.count("\n")
    assert "out[i] = 1.0f" in text


def test_a_device_function_marked_by_a_macro_is_kept() -> None:
    helper = "#define DEVICE __device__ __forceinline__\nDEVICE float square(float x) { return x * x; }\n"
    text = device_text(helper + "void run(float* x) { k<<<1, 32>>>(x); }\n")
    assert "square" in text
    assert "run" not in text


async def test_the_next_step_is_the_command_that_drafts_a_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_build, "find_nvcc", _none)
    assert "kernel-lsp plan" in (await check(tmp_path, TEMPLATE)).notes[0]


def test_a_finding_that_stands_for_several_says_so_once() -> None:
    calls = "    cudaDeviceSynchronize();\n" * 4
    (found,) = (f for f in static_findings(f"int main() {{\n{calls}}}\n") if f.code == "KL250")
    assert "(and at 3 more places)" in describe_finding(found, "file.cu")
    assert "times" not in describe_finding(found, "file.cu")


@pytest.mark.parametrize("is_found", [True, False])
async def test_headers_of_the_project_are_found_as_its_makefile_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_found: bool
) -> None:
    """With nvcc, and where NVRTC alone is there: a header with host code that asks for the compiler."""
    if not is_found:
        monkeypatch.setattr(plain_build, "find_nvcc", _none)
    folder = tmp_path / "project"
    for name in ("src", "include"):
        (folder / name).mkdir(parents=True)
    (folder / "Makefile").write_text("k: src/k.cu\n\tnvcc -Iinclude $<\n")
    (folder / "include" / "common.cuh").write_text(HEADER)
    text = '#include "common.cuh"\n__global__ void k(float* x) { x[threadIdx.x] = twice(x[threadIdx.x]); }\n'
    verdict = await check(folder / "src", text)
    assert [kernel.kernel for kernel in verdict.kernels] == ["k"], verdict.outcome


EXTENSION = """#include <torch/extension.h>
template <typename scalar_t> __global__ void twice(scalar_t* x) { x[threadIdx.x] *= 2; }
void run(torch::Tensor x) {
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "run", [&] { twice<scalar_t><<<1, 256>>>(x.data_ptr<scalar_t>()); });
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("run", &run); }
"""


async def check_extension(tmp_path: Path, text: str) -> Verdict:
    settings = Settings(cache_directory=tmp_path / "cache", sandbox="auto", target_gpu="H200")
    return await check_without_task(tmp_path / "file.cu", text, "torch extension", settings)


async def test_the_kernels_of_an_extension_are_compiled_without_a_task(tmp_path: Path) -> None:
    verdict = await check_extension(tmp_path, EXTENSION)
    assert (verdict.outcome.kind, [kernel.kernel for kernel in verdict.kernels]) == ("unsupported", ["twice<float>"])
    assert "kernel-lsp check file.cu --task" in verdict.outcome.message  # type: ignore[union-attr]


async def test_an_error_in_an_extensions_kernel_is_found_at_its_line(tmp_path: Path) -> None:
    verdict = await check_extension(tmp_path, EXTENSION.replace("*= 2;", "*= 2"))
    assert [found.line for found in getattr(verdict.outcome, "findings", ())] == [2]


async def test_a_kernel_that_needs_pytorchs_headers_is_not_called_broken(tmp_path: Path) -> None:
    text = EXTENSION.replace("x[threadIdx.x] *= 2;", "x[threadIdx.x] = at::native::twice(x[threadIdx.x]);")
    assert (await check_extension(tmp_path, text)).outcome.kind == "unsupported"


async def test_without_a_compiler_an_extension_has_its_static_findings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise EnvironmentProblem("NVRTC is not installed", next_step="pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr(plain_build, "find_toolchain", missing)
    verdict = await check_extension(tmp_path, EXTENSION)
    assert (verdict.device, verdict.outcome.kind) == ("static rules", "unsupported")
    assert "KL260" in {found.code for found in verdict.findings}
