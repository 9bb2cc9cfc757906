"""Tricks that need host code have no way in: nothing of a candidate is compiled for the host or loaded there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpora import Kernel, Outcome, evaluate_all, is_passed

PLAN = """// kernel-lsp: 1
// task: tasks.py::double
// op: double(x: f32[B, N]) -> (out: f32[B, N])
// launch: k<<<ceil_div(B * N, 256), 256>>>(x, out, B * N)

"""
KERNEL = """
__global__ void k(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i];
}
"""
HOST_CODE = {
    "1 a stream of its own": "void f() { cudaStream_t s; cudaStreamCreate(&s); k<<<1, 1, 0, s>>>(0, 0, 0); }",
    "2 a host thread": "#include <thread>\nvoid f() { std::thread([] {}).detach(); }",
    "3 a smuggled library": '#include <dlfcn.h>\nvoid f() { dlopen("libcuda.so", 2); }',
    "3 a program that is started": 'int f() { return system("touch {marker}"); }\nint dummy = f();',
    "4 a graph of its own": "void f() { cudaGraph_t g; cudaGraphCreate(&g, 0); }",
    "5 Python in the file": 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {{ m.def("forward", &f); }}',
    "5 a torch extension": "#include <torch/extension.h>\ntorch::Tensor f(torch::Tensor x) { return x; }",
    "6 a patched timer": 'extern "C" int cudaEventRecord(cudaEvent_t, cudaStream_t) { return 0; }',
    "6 a constructor": '__attribute__((constructor)) void f() { fclose(fopen("{marker}", "w")); }',
    "6 an early exit": "struct Exit { Exit() { exit(0); } } now;",
    "20 a window of the cache": "void f() { cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, 1 << 20); }",
    "20 a static constructor": "struct Early { float* p; Early() { cudaMalloc(&p, 1 << 20); } }; static Early early;",
}


async def outcome_of(text: str, folder: Path) -> Outcome:
    file = folder / "kernel.cu"
    (folder / "tasks.py").write_text((Path(__file__).parent / "tasks.py").read_text())
    file.write_text(text)
    (found,) = [o async for group in evaluate_all([Kernel(file, text, "", (), ())]) for o in group]
    return found


@pytest.mark.parametrize("code", HOST_CODE.values(), ids=HOST_CODE.keys())
async def test_host_code_is_refused_or_nobody_runs_it(code: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    outcome = await outcome_of(PLAN + KERNEL + code.replace("{marker}", str(marker)), tmp_path)
    assert not outcome.problem
    assert not marker.exists()


async def test_the_kernel_alone_passes(tmp_path: Path) -> None:
    assert is_passed(await outcome_of(PLAN + KERNEL, tmp_path))


async def test_no_symbol_but_that_of_a_kernel_can_be_launched(tmp_path: Path) -> None:
    outcome = await outcome_of(PLAN.replace("launch: k<", "launch: cudaMalloc<") + KERNEL, tmp_path)
    assert outcome.verdict.outcome.kind == "build_failed"
