"""Planted defects as they occur in whole files: halos, bins, device functions, classes and grids of two dims."""

from __future__ import annotations

import pytest

from tests.rules.found_codes import cuda_codes as codes

ALLOCATED = "#include <cuda_runtime.h>\n#include <vector>\n"
GUARDED = "__global__ void k(float* x, int n) {\n    int i = blockIdx.x * blockDim.x + threadIdx.x;\n"


def kernel(body: str, head: str = "", size: str = "256") -> str:
    lines = f"    __shared__ float t[{size}];\n    int i = blockIdx.x * 256 + threadIdx.x;\n    {body}\n"
    parameters = "const float* __restrict__ x, const int* __restrict__ v, float* __restrict__ out, int n, int d"
    return f"{head}__global__ void k({parameters}) {{\n{lines}}}\n"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (kernel("if (threadIdx.x < 3) t[threadIdx.x + 259] = x[i];", size="259"), "KL218"),
        (kernel("if (threadIdx.x < 4) t[threadIdx.x] = x[i];", size="3"), "KL218"),
        (kernel("if (i >= n) return;\n    out[i] = t[threadIdx.x + 1];"), "KL218"),
        (kernel("for (int b = threadIdx.x; b <= 256; b += blockDim.x) t[b] = 0.0f;"), "KL218"),
        (kernel("for (int b = 256; b > 0; --b) t[b] = 0.0f;"), "KL218"),
        (kernel("for (int b = -1; b <= 1; ++b) out[i] += t[threadIdx.x + b];"), "KL218"),
        (kernel("int r = v[blockIdx.x];\n    out[r * d + threadIdx.x] += x[i];"), "KL219"),
        (kernel("if (i < n) out[0] += x[i];"), "KL219"),
        (kernel("float a = x[i];\n    if (i < n) out[i] = a;"), "KL201"),
        (kernel("if (i <= n) out[i] = x[i];"), "KL201"),
        (kernel("out[i] = x[i] > 0.0f ? x[i] : 0.5f * x[i];"), "KL201"),
        (kernel("if (i < n) out[i] = __shfl_xor_sync(0xffffffffu, x[i], 1);"), "KL206"),
        (
            "__device__ void fold(float* s, int t) {\n    s[t] += s[t + 16];\n    s[t] += s[t + 8];\n}\n",
            "KL209",
        ),
        (
            "__device__ float sum(float a, float* smem) {\n    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;\n"
            "    if (lane == 0) smem[warp] = a;\n    return lane < 8 ? smem[lane] : 0.0f;\n}\n",
            "KL207",
        ),
        (
            "__global__ void k(const float* x, float* o, int d) {\n    __shared__ float mean;\n"
            "    if (threadIdx.x == 0) {\n        float m = 0.0f;\n        for (int i = 0; i < d; ++i) m += x[i];\n"
            "        mean = m;\n    }\n    for (int i = threadIdx.x; i < d; i += 32) o[i] = x[i] - mean;\n}\n",
            "KL207",
        ),
        (
            f"{ALLOCATED}void up(const std::vector<double>& h, double** d) {{\n    size_t n = h.size();\n"
            "    cudaMalloc((void**)d, n * 8);\n    cudaMemcpy(*d, h.data(), n, cudaMemcpyHostToDevice);\n}\n",
            "KL254",
        ),
        (
            f"{ALLOCATED}struct Point {{ float x, y; }};\nvoid up(int n) {{\n    Point* p;\n"
            "    cudaMalloc(&p, n * sizeof(float));\n}\n",
            "KL254",
        ),
        (
            "__global__ void k(float* o) {\n    extern __shared__ float s[];\n    o[threadIdx.x] = s[threadIdx.x];\n}\n"
            "void run(float* o, int cols) {\n    k<<<1, 32, cols>>>(o);\n}\n",
            "KL254",
        ),
        (
            f"{ALLOCATED}struct Both {{\n    Both() {{ cudaMallocHost(&h_, 4); cudaMalloc(&d_, 4); }}\n"
            "    void up() { cudaMemcpy(d_, h_, 4, cudaMemcpyDeviceToHost); }\n    int* h_; int* d_;\n};\n",
            "KL255",
        ),
        (
            f"{GUARDED}    if (i < n) x[i] = 0;\n}}\n"
            "void run(float* x, int n) {\n    k<<<n / 256, 256>>>(x, n);\n}\n",
            "KL256",
        ),
        (
            f"{GUARDED}    if (i < n) x[i] = 0;\n}}\nvoid run(float* x) {{\n    const int h = 1080;\n"
            "    dim3 block(32, 32);\n    dim3 grid(60, h / block.y);\n    k<<<grid, block>>>(x, h);\n}\n",
            "KL256",
        ),
        (
            "torch::Tensor f(torch::Tensor a) {\n    k<<<1, 32, 0, stream>>>(a.data_ptr<float>());\n"
            '    return a;\n}\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("f", &f); }\n',
            "KL261",
        ),
    ],
)
def test_a_planted_defect_is_found(text: str, code: str) -> None:
    assert code in codes(text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (kernel("if (threadIdx.x < 3) t[threadIdx.x + 256] = x[i];", size="259"), "KL218"),
        (kernel("if (threadIdx.x < 255) out[i] = t[threadIdx.x + 1];"), "KL218"),
        (kernel("t[threadIdx.x] = x[i];", size="64"), "KL218"),
        (kernel("for (int b = threadIdx.x; b < 256; b += blockDim.x) t[b] = 0.0f;"), "KL218"),
        (kernel("for (int b = 255; b >= 0; --b) t[b] = 0.0f;"), "KL218"),
        (kernel("for (int b = -1; b <= 1; ++b) out[i] += t[threadIdx.x + 1 + b];", size="258"), "KL218"),
        (kernel("for (int b = -1; b <= 1; ++b) if (threadIdx.x + b >= 0) out[i] += t[threadIdx.x + b];"), "KL218"),
        (kernel("int r = v[blockIdx.x];\n    out[r * n + i] += x[i];"), "KL219"),
        (kernel("int r = v[blockIdx.x];\n    if (threadIdx.x == 0) t[r] += 1.0f;"), "KL219"),
        (kernel("if (i == 0) out[0] += x[i];"), "KL219"),
        (kernel("float a = i < n ? x[i] : 0.0f;\n    if (i < n) out[i] = a;"), "KL201"),
        (kernel("if (threadIdx.x / 32 < 4) out[i] = __shfl_xor_sync(0xffffffffu, x[0], 1);"), "KL206"),
        (
            "__device__ float sum(float a, float* smem) {\n    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;\n"
            "    if (lane == 0) smem[warp] = a;\n    __syncthreads();\n    return lane < 8 ? smem[lane] : 0.0f;\n}\n",
            "KL207",
        ),
        (
            "__global__ void k(float* s, int stride) {\n    __shared__ float a[1024];\n"
            "    for (int i = threadIdx.x; i < stride; i += blockDim.x) a[i] += a[stride + i];\n    s[0] = a[0];\n}\n",
            "KL208",
        ),
        (
            "__global__ void k(float* o) {\n    cg::thread_block block = cg::this_thread_block();\n"
            "    auto tile = cg::tiled_partition<16>(block);\n    if (threadIdx.x < 16) cg::sync(tile);\n}\n",
            "KL202",
        ),
        (
            "__global__ void k(float* o) {\n    int warp = threadIdx.x / 32;\n    if (warp > 3) return;\n"
            "    __syncthreads();\n    o[0] = 1;\n}\n",
            "KL203",
        ),
        (f"{ALLOCATED}void run(int n) {{\n    float* p;\n    cudaMalloc((void**)&p, n * sizeof *p);\n}}\n", "KL245"),
        ("void run(float* bias) {\n    set(&bias, sizeof(bias));\n}\n", "KL245"),
        (
            f"{ALLOCATED}const int DATA = ROWS * sizeof(float);\nvoid run() {{\n    float* p;\n"
            "    cudaMalloc((void**)&p, DATA);\n}\n",
            "KL254",
        ),
        (
            "__global__ void k(float* o) {\n    extern __shared__ float s[];\n    o[threadIdx.x] = s[threadIdx.x];\n}\n"
            "void run(float* o, int cols) {\n    k<<<1, 32, cols * 4>>>(o);\n}\n",
            "KL254",
        ),
        (
            f"{GUARDED}    for (; i < n; i += gridDim.x * 32) x[i] = 0;\n}}\n"
            "void run(float* x, int n) {\n    k<<<n / 256, 256>>>(x, n);\n}\n",
            "KL256",
        ),
        (
            f"{GUARDED}    if (i < n) x[i] = 0;\n}}\nvoid run(float* x, int n) {{\n    assert(n % 256 == 0);\n"
            "    k<<<n / 256, 256>>>(x, n);\n}\n",
            "KL256",
        ),
        (
            "torch::Tensor f(torch::Tensor a) {\n    k<<<1, 32, 0, stream>>>(a.data_ptr<float>());\n    return a;\n}\n",
            "KL261",
        ),
    ],
)
def test_good_code_of_the_same_form_has_no_finding(text: str, code: str) -> None:
    assert code not in codes(text)
