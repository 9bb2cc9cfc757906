"""Tricks that need host code have no way in: nothing of a candidate is compiled for the host or loaded there."""

from __future__ import annotations

import asyncio
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


TEXTS = {
    **{name: PLAN + KERNEL + code for name, code in HOST_CODE.items()},
    "the kernel alone": PLAN + KERNEL,
    "a function of the driver": PLAN.replace("launch: k<", "launch: cudaMalloc<") + KERNEL,
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Return the outcome of each text, from one session, and leave the markers that code wrote in its folder."""
    folder = tmp_path_factory.mktemp("gone")
    (folder / "tasks.py").write_text((Path(__file__).parent / "tasks.py").read_text())
    kernels = {name: kernel_in(folder / f"{name.replace(' ', '_')}.cu", text) for name, text in TEXTS.items()}

    async def evaluated() -> dict[Path, Outcome]:
        return {each.kernel.file: each async for group in evaluate_all([*kernels.values()]) for each in group}

    found = asyncio.run(evaluated())
    return {name: found[kernel.file] for name, kernel in kernels.items()}


def kernel_in(file: Path, text: str) -> Kernel:
    file.write_text(text.replace("{marker}", str(marker_of(file))))
    return Kernel(file, file.read_text(), "", (), ())


def marker_of(file: Path) -> Path:
    return file.with_suffix(".marker")


@pytest.mark.parametrize("name", HOST_CODE)
def test_host_code_is_refused_or_nobody_runs_it(name: str, outcomes: dict[str, Outcome]) -> None:
    assert not outcomes[name].problem
    assert not marker_of(outcomes[name].kernel.file).exists()


def test_the_kernel_alone_passes(outcomes: dict[str, Outcome]) -> None:
    assert is_passed(outcomes["the kernel alone"])


def test_no_symbol_but_that_of_a_kernel_can_be_launched(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["a function of the driver"].verdict.outcome.kind == "build_failed"
