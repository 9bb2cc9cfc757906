"""A torch extension's one file as two."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kernel_lsp.source.extension import LAUNCH, NotSplit, SplitExtension, split_extension

KERNEL = """\
#include <torch/extension.h>
#include <cuda_runtime.h>
#define THREADS 256
namespace {
__device__ float twice(float x) { return 2.0f * x; }
template <typename T, int BLOCK>
__global__ void __launch_bounds__(256) scale(const T* __restrict__ x, T* out, int n) {
    int i = blockIdx.x * BLOCK + threadIdx.x;
    if (i < n) out[i] = twice(x[i]);
}
}  // namespace
static __global__ void plain(const float* x, int n) {}
__constant__ float table[4];
inline int ceil_div(int a, int b) { return (a + b - 1) / b; }
torch::Tensor forward(torch::Tensor x) {
    auto out = torch::empty_like(x);
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "scale", ([&] {
        scale<scalar_t, THREADS><<<ceil_div(x.numel(), THREADS), THREADS>>>(
            x.data_ptr<scalar_t>(), out.data_ptr<scalar_t>(), x.numel());
    }));
    plain<<<dim3(1, 2), 32, 16, stream>>>(x.data_ptr<float>(), 3);
    return out;
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("forward", &forward); }
"""


@pytest.fixture
def split() -> SplitExtension:
    found = split_extension(KERNEL)
    assert isinstance(found, SplitExtension)
    return found


def reason(text: str) -> str:
    found = split_extension(text)
    assert isinstance(found, NotSplit)
    return found.reason


def test_the_device_half_has_no_header_of_pytorch(split: SplitExtension) -> None:
    assert "torch" not in split.device
    assert "cuda_runtime.h" in split.device


def test_the_device_half_has_the_kernels_and_what_they_call(split: SplitExtension) -> None:
    assert "out[i] = twice(x[i])" in split.device
    assert "float twice(float x)" in split.device
    assert "__constant__ float table[4]" in split.device


def test_the_host_half_declares_the_kernels(split: SplitExtension) -> None:
    assert "scale(const T* __restrict__ x, T* out, int n);" in split.host
    assert "twice" not in split.host


def test_launches_become_calls(split: SplitExtension) -> None:
    assert "<<<" not in split.host
    assert f"({LAUNCH}(plain, (dim3(1, 2)), (32), (16), (stream), x.data_ptr<float>(), 3))" in split.host
    assert f"({LAUNCH}(scale<scalar_t, THREADS>, (ceil_div(x.numel(), THREADS)), (THREADS), (0), (0)," in split.host


def test_kernels_have_the_same_linkage_in_both_halves(split: SplitExtension) -> None:
    assert "static __global__" not in split.device + split.host
    assert "inline namespace kernel_lsp_unnamed" in split.device
    assert "inline namespace kernel_lsp_unnamed" in split.host


def test_macros_and_plain_functions_are_in_both(split: SplitExtension) -> None:
    for half in (split.device, split.host):
        assert "#define THREADS 256" in half
        assert "int ceil_div(int a, int b)" in half


def test_template_kernels_are_named(split: SplitExtension) -> None:
    assert split.templates == ("scale",)


def test_lines_are_those_of_the_file(split: SplitExtension) -> None:
    assert "#line 15\ntorch::Tensor forward" in split.host


def test_a_kernel_with_types_of_pytorch_stays_whole() -> None:
    text = KERNEL.replace("const float* x, int n) {}", "const at::Half* x, int n) {}")
    assert reason(text) == "a kernel uses PyTorch's types"


def test_kernels_behind_a_condition_stay_whole() -> None:
    text = f"#ifdef A\n__global__ void f() {{}}\n#endif\n{KERNEL}"
    assert "preprocessor condition" in reason(text)


def test_thrust_stays_whole() -> None:
    assert "thrust" in reason(f"#include <thrust/sort.h>\n{KERNEL}")


def test_symbols_of_the_device_that_the_host_copies_to_stay_whole() -> None:
    assert "cudaMemcpyToSymbol" in reason(KERNEL.replace("return out;", "cudaMemcpyToSymbol(table, 0, 4); return out;"))


def test_without_a_launch_there_is_nothing_to_take_apart() -> None:
    assert reason("int f() { return 0; }") == "nothing is launched"


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_the_device_half_compiles_by_itself(split: SplitExtension, tmp_path: Path) -> None:
    instance = "template __global__ void scale<float, 256>(float const*, float*, int);\n"
    (tmp_path / "device.cu").write_text(split.device + instance)
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-c", "device.cu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(["nm", "-C", "device.o"], cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert "scale<float, 256>(float const*, float*, int)" in listed.stdout
