"""Planted defects of CUDA files that their rules find, and good files in which nothing is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.rules import cuda
from kernel_lsp.rules.finding import apply_fix
from tests.rules.found_codes import cuda_codes as codes

GOOD = sorted((Path(__file__).parent / "good").glob("*.cu"))
PLANTED = {
    "a loop that goes one too far": (
        "KL218",
        """
__global__ void k(float* __restrict__ o) {
    __shared__ float t[64];
    for (int i = 0;
    i <= 64;
    ++i) t[i] = 0.0f;
    o[threadIdx.x] = t[0];
    }
""",
    ),
    "a constant index behind the end": (
        "KL218",
        """
__global__ void k(float* __restrict__ o) {
    __shared__ float t[64];
    if (threadIdx.x == 0) t[64] = 1.0f;
    __syncthreads();
    o[threadIdx.x] = t[0];
    }
""",
    ),
    "the element before that of thread 0, behind a bound of the grid": (
        "KL218",
        """
__global__ void k(const float* __restrict__ x, float* __restrict__ o, int n) {
    __shared__ float t[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    t[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    if (i < n) o[i] = t[threadIdx.x - 1];
    }
""",
    ),
    "the number of elements of a vector": (
        "KL254",
        """
cudaError_t up(const std::vector<float>& v, float* d) {
    return cudaMemcpy(d, v.data(), v.size(), cudaMemcpyHostToDevice);
    }
""",
    ),
    "the element before that of thread 0": (
        "KL218",
        """
#define B 256
__global__ void k(const float* __restrict__ x, float* __restrict__ o, int n) {
    __shared__ float t[B];
    int i = threadIdx.x;
    t[i] = x[i];
    __syncthreads();
    float l = t[i - 1];
    o[i] = l;
    }
""",
    ),
    "the element behind that of the last thread": (
        "KL238",
        """
#define B 256
__global__ void k(const float* __restrict__ x, float* __restrict__ o) {
    __shared__ float t[B];
    int i = threadIdx.x;
    t[i] = x[i];
    __syncthreads();
    o[i] = t[i + 1];
    }
cudaError_t r(const float* x, float* o) {
    k<<<1, B>>>(x, o);
    return cudaGetLastError();
    }
""",
    ),
    "a histogram without atomics": (
        "KL219",
        """
__global__ void k(const int* __restrict__ v, int* __restrict__ b, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
    int c = v[i] / 4;
    b[c]++;
    } }
""",
    ),
    "more threads than elements": (
        "KL256",
        """
__global__ void k(float* __restrict__ x) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  x[i] = 1.0f;
}
cudaError_t r() {
    const int N = 1000;
    float* d;
    cudaError_t e = cudaMalloc(&d, N * sizeof(float));
    k<<<(N + 255) / 256, 256>>>(d);
    return cudaGetLastError();
    }
""",
    ),
    "elements copied as bytes": (
        "KL254",
        """
cudaError_t r(const float* h, int n) {
    float* d;
    cudaError_t e = cudaMalloc(&d, n * sizeof(float));
    return cudaMemcpy(d, h, n, cudaMemcpyHostToDevice);
    }
""",
    ),
    "bytes of another type": (
        "KL254",
        """
cudaError_t r(int n) {
    double* d;
    return cudaMalloc((void**)&d, n * sizeof(float));
    }
""",
    ),
    "a copy in the other direction": (
        "KL255",
        """
cudaError_t r(int n) {
    float* d;
    float* h = (float*)malloc(n * sizeof(float));
    cudaError_t e = cudaMalloc(&d, n * sizeof(float));
    return cudaMemcpy(h, d, n * sizeof(float), cudaMemcpyHostToDevice);
    }
""",
    ),
    "an int index of a 64-bit size": (
        "KL216",
        """
__global__ void k(float* __restrict__ x, size_t n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 1.0f;
    }
""",
    ),
}
UNCHECKED = """
__global__ void k(float* __restrict__ x) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    BODY
}
cudaError_t r() {
    const int N = 1000;
    float* d;
    cudaError_t e = cudaMalloc(&d, N * sizeof(float));
    k<<<(N + 255) / 256, 256>>>(d);
    return e == cudaSuccess ? cudaGetLastError() : e;
}
"""


@pytest.mark.parametrize(("code", "text"), PLANTED.values(), ids=PLANTED)
def test_a_planted_defect_is_found(code: str, text: str) -> None:
    assert code in codes(text)


@pytest.mark.parametrize(("code", "text"), PLANTED.values(), ids=PLANTED)
def test_its_fix_removes_it(code: str, text: str) -> None:
    for finding in cuda.check(text):
        for fix in finding.fixes if finding.code == code else ():
            assert code not in codes(apply_fix(text, fix))


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_nothing_is_found_in_a_good_file(path: Path) -> None:
    assert cuda.check(path.read_text()) == ()


def test_the_fix_for_a_histogram_is_an_atomic_operation() -> None:
    text = PLANTED["a histogram without atomics"][1]
    finding = next(each for each in cuda.check(text) if each.code == "KL219")
    assert "atomicAdd(&b[c], 1);" in apply_fix(text, finding.fixes[0])


def test_a_launch_is_held_against_the_kernel_as_it_is_now() -> None:
    assert "KL256" in codes(UNCHECKED.replace("BODY", "x[i] = 1.0f;"))
    assert "KL256" not in codes(UNCHECKED.replace("BODY", "if (i < 1000) x[i] = 1.0f;"))


@pytest.mark.parametrize(
    "update",
    [
        "bins[threadIdx.x] += 1;",
        "if (i == 0) bins[v[i]] += 1;",
        "bins[v[i] * n + i] += 1;",
        "bins[v[i]] = 1;",
    ],
)
def test_updates_of_a_thread_s_own_are_no_race(update: str) -> None:
    head = "__global__ void k(const int* __restrict__ v, int* __restrict__ bins, int n) {\n"
    body = f"    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i >= n) return;\n    {update}\n}}\n"
    assert "KL219" not in codes(head + body)


@pytest.mark.parametrize(
    "access",
    [
        "if (t > 0) out[t] = tile[t - 1];",
        "out[t] = t >= 1 ? tile[t - 1] : 0.0f;",
        "if (t < n && t != 0) out[t] = tile[t - 1];",
        "for (int i = 1; i < 64; ++i) out[t] += tile[i - 1];",
        "for (int i = 0; i + 1 < 64; ++i) out[t] += tile[i + 1];",
        "out[t] = tile[63];",
    ],
)
def test_guarded_accesses_are_in_bounds(access: str) -> None:
    head = "__global__ void k(float* __restrict__ out, int n) {\n    __shared__ float tile[64];\n"
    assert "KL218" not in codes(f"{head}    int t = threadIdx.x;\n    {access}\n}}\n")


@pytest.mark.parametrize(
    "line",
    [
        "x = x.contiguous();",
        "CHECK_INPUT(x);",
        "check_inputs(y, x);",
        "TORCH_CHECK(x.is_contiguous(), 1);",
    ],
)
def test_an_extension_that_sees_to_contiguity_has_no_finding(line: str) -> None:
    head = "void run(torch::Tensor x) {\n    TORCH_CHECK(x.is_cuda(), 1);\n"
    launch = "    zero<<<1, 32, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>());\n}\n"
    assert "KL261" in codes(head + launch)
    assert "KL261" not in codes(f"{head}    {line}\n{launch}")


def test_the_fix_of_a_launch_on_the_default_stream_keeps_its_shared_bytes() -> None:
    text = "void run(torch::Tensor x) {\n    zero<<<1, 32, 64>>>(x.data_ptr<float>());\n}\n"
    (found,) = [each for each in cuda.check(text) if each.code == "KL260"]
    assert "<<<1, 32, 64, at::cuda::getCurrentCUDAStream()>>>" in apply_fix(text, found.fixes[0])


FRONTIER = """
__global__ void grow(const int* __restrict__ first, const int* __restrict__ heads, const int* __restrict__ now, int n,
                     int* __restrict__ later, int* n_later, int* seen, int* lock) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    for (int e = first[now[i]]; e < first[now[i] + 1]; ++e) {
        const int v = heads[e];
        BODY
    }
}
"""
APPEND = "later[atomicAdd(n_later, 1)] = v;"
APART = f"if (atomicAdd(&seen[v], 0) == 0) {{ atomicExch(&seen[v], 1); {APPEND} }}"


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        (APART, True),
        (f"if (atomicOr(&seen[v], 0)) continue; atomicExch(&seen[v], 1); {APPEND}", True),
        (APART.replace(APPEND, ""), False),
        (APART.replace("[v]", "[i]"), False),
        (f"if (atomicAdd(&seen[v], 0) == 0 && atomicExch(&seen[v], 1) == 0) {APPEND}", False),
        (f"while (atomicCAS(&lock[v], 0, 1)) {{}} {APART} atomicExch(&lock[v], 0);", False),
    ],
)
def test_a_flag_is_claimed_by_the_operation_that_sets_it(body: str, is_found: bool) -> None:
    assert ("KL219" in codes(FRONTIER.replace("BODY", body))) is is_found
