"""Launch plans drafted for files of ten shapes: each parses, and each fits its kernels."""

from __future__ import annotations

import pytest

from kernel_lsp.plan.checking import check as check_plan
from kernel_lsp.plan.parser import parse
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.source.plan_draft import draft_plan

INDEX = "int i = blockIdx.x * blockDim.x + threadIdx.x;"
SAXPY = f"""#include <cstdio>
__global__ void saxpy(int n, float a, const float* x, float* y) {{ {INDEX} if (i < n) y[i] = a * x[i]; }}
int main() {{
    int N = 1 << 20;
    float *d_x, *d_y;
    cudaMalloc(&d_x, N * sizeof(float));
    saxpy<<<(N + 255) / 256, 256>>>(N, 2.0f, d_x, d_y);
}}
"""
NO_LAUNCH = """__global__ void gelu(const float* __restrict__ x, float* __restrict__ out, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) out[i] = x[i] * 0.5f;
}
"""
MATMUL = """#define TILE 16
__global__ void matmul(const float* A, const float* B, float* C, int M, int N, int K) {
    int row = blockIdx.y * TILE + threadIdx.y;
    int col = blockIdx.x * TILE + threadIdx.x;
    float sum = 0;
    for (int t = 0; t < K; ++t) sum += A[row * K + t] * B[t * N + col];
    if (row < M && col < N) C[row * N + col] = sum;
}
void run(const float* A, const float* B, float* C, int M, int N, int K, cudaStream_t stream) {
    dim3 block(TILE, TILE);
    dim3 grid((N + TILE - 1) / TILE, (M + TILE - 1) / TILE);
    matmul<<<grid, block, 0, stream>>>(A, B, C, M, N, K);
}
"""
SOFTMAX = """template <typename T, int BLOCK>
__global__ void __launch_bounds__(BLOCK)
softmax_rows(const T* __restrict__ x, T* __restrict__ out, int rows, int cols) {
    extern __shared__ float buffer[];
    const T* row = x + blockIdx.x * cols;
    T* to = out + blockIdx.x * cols;
    for (int c = threadIdx.x; c < cols; c += BLOCK) to[c] = row[c];
}
template <typename T> void launch(const T* x, T* out, int rows, int cols, cudaStream_t s) {
    constexpr int threads = 128;
    softmax_rows<T, threads><<<rows, threads, threads * sizeof(float), s>>>(x, out, rows, cols);
}
"""
EXTENSION = """#include <torch/extension.h>
template <typename scalar_t>
__global__ void bias_relu_kernel(const scalar_t* x, const scalar_t* bias, scalar_t* y, int64_t rows, int64_t cols) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < rows * cols) y[i] = max(x[i] + bias[i % cols], scalar_t(0));
}
torch::Tensor bias_relu(torch::Tensor x, torch::Tensor bias) {
    auto y = torch::empty_like(x);
    const int64_t rows = x.size(0), cols = x.size(1);
    const int threads = 256;
    const auto blocks = (rows * cols + threads - 1) / threads;
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "bias_relu", [&] {
        bias_relu_kernel<scalar_t><<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
            x.data_ptr<scalar_t>(), bias.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), rows, cols);
    });
    return y;
}
"""
TWO_PASSES = """__global__ void partial_sums(const float* in, float* out, size_t n) {
    size_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (threadIdx.x == 0) out[blockIdx.x] = i < n ? in[i] : 0.f;
}
__global__ void total(const float* parts, float* sum, int m) {
    for (int i = 0; i < m; ++i) sum[0] = parts[i];
}
void reduce(const float* d_in, size_t n) {
    const int threads = 256;
    const int blocks = (n + threads - 1) / threads;
    float *d_part, *d_sum;
    cudaMalloc(&d_part, blocks * sizeof(float));
    cudaMalloc(&d_sum, sizeof(float));
    partial_sums<<<blocks, threads>>>(d_in, d_part, n);
    total<<<1, 1>>>(d_part, d_sum, blocks);
}
"""
HISTOGRAM = f"""constexpr int BINS = 256;
__global__ void hist(const unsigned char* data, int* bins, int n) {{ {INDEX} if (i < n) atomicAdd(&bins[data[i]], 1); }}
void go(const unsigned char* data, int* bins, int n) {{
    cudaMemset(bins, 0, BINS * sizeof(int));
    hist<<<(n + 511) / 512, 512>>>(data, bins, n);
}}
"""
VECTORS = f"""__global__ void copy4(const float4* __restrict__ src, float4* __restrict__ dst, int n4) {{
    {INDEX} if (i < n4) dst[i] = src[i];
}}
void copy(const float* src, float* dst, int n) {{
    int n4 = n / 4;
    copy4<<<(n4 + 127) / 128, 128>>>((const float4*)src, reinterpret_cast<float4*>(dst), n4);
}}
"""
IN_PLACE = """#include <cuda_fp16.h>
namespace ops {
__global__ void scale(__half* data, float factor, long n) {
    long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) data[i] = __float2half(__half2float(data[i]) * factor);
}
void launch(__half* data, float f, long n) { scale<<<ceil_div(n, 256), 256>>>(data, f, n); }
}
"""
UNKNOWN = f"""__global__ void resize(const float* min, float* out, int n, bool flip) {{
    {INDEX} if (i < n) out[i] = flip ? min[n - 1 - i] : min[i];
}}
void f(const std::vector<float>& v, float* a, float* b) {{
    resize<<<grid_for(v.size()), block()>>>(a, b, v.size(), true);
}}
"""
DRAFTS = {
    SAXPY: ("saxpy(x: f32[N], a: float) -> (y: f32[N])", "saxpy<<<ceil_div(N, 256), 256>>>(N, a, x, y)"),
    NO_LAUNCH: ("gelu(x: f32[N]) -> (out: f32[N])", "gelu<<<ceil_div(N, 256), 256>>>(x, out, N)"),
    MATMUL: (
        "matmul(A: f32[M, K], B: f32[K, N]) -> (C: f32[M, N])",
        "matmul<<<dim3(ceil_div(N, 16), ceil_div(M, 16)), dim3(16, 16)>>>(A, B, C, M, N, K)",
    ),
    SOFTMAX: (
        "softmax_rows(x: f32[ROWS, COLS]) -> (out: f32[ROWS, COLS])",
        "softmax_rows<float, 128><<<ROWS, 128, 128 * 4>>>(x, out, ROWS, COLS)",
    ),
    EXTENSION: (
        "bias_relu_kernel(x: f32[ROWS, COLS], bias: f32[BIAS_SIZE]) -> (y: f32[ROWS, COLS])",
        "bias_relu_kernel<float><<<ceil_div(ROWS * COLS, 256), 256>>>(x, bias, y, ROWS, COLS)",
    ),
    TWO_PASSES: (
        "total(in: f32[N]) -> (sum: f32[1])",
        "partial_sums<<<ceil_div(N, 256), 256>>>(in, part, N)",
        "total<<<1, 1>>>(part, sum, ceil_div(N, 256))",
    ),
    HISTOGRAM: ("hist(data: u8[N]) -> (bins: i32[256])", "hist<<<ceil_div(N, 512), 512>>>(data, bins, N)"),
    VECTORS: (
        "copy4(src: f32[4 * n4], n4: int) -> (dst: f32[4 * n4])",
        "copy4<<<ceil_div(n4, 128), 128>>>(src, dst, n4)",
    ),
    IN_PLACE: (
        "scale(n: int, factor: float) -> (data: f16[n])",
        "ops::scale<<<ceil_div(n, 256), 256>>>(data, factor, n)",
    ),
    UNKNOWN: (
        "resize(min_: f32[N], flip: bool) -> (out: f32[N])",
        "resize<<<ceil_div(N, 256), 256>>>(min_, out, N, flip)",
    ),
}


def directives(plan: str, key: str) -> list[str]:
    return [line.removeprefix(f"// {key}: ") for line in plan.splitlines() if line.startswith(f"// {key}: ")]


def complete(text: str) -> str:
    """Return the drafted comment on what is left to a person."""
    return draft_plan(text).splitlines()[-1]


@pytest.mark.parametrize("text", DRAFTS, ids=[directives[0].partition("(")[0] for directives in DRAFTS.values()])
def test_a_draft_has_the_launches_of_the_file_and_fits_its_kernels(text: str) -> None:
    plan = draft_plan(text)
    assert (*directives(plan, "op"), *directives(plan, "launch")) == DRAFTS[text]
    parsed = parse(f"{plan}\n\n{text}")
    assert parsed.findings == ()
    assert parsed.plan is not None
    assert check_plan(parsed.plan, kernel_signatures(text)) == ()


def test_what_the_host_sets_to_zero_is_filled_and_what_one_launch_hands_on_is_scratch() -> None:
    assert directives(draft_plan(HISTOGRAM), "fill") == ["bins = 0"]
    assert directives(draft_plan(TWO_PASSES), "scratch") == ["part: f32[ceil_div(N, 256)]"]


def test_only_what_no_text_says_is_left_to_a_person() -> None:
    assert complete(MATMUL) == "// Complete the task."
    assert complete(UNKNOWN) == "// Complete the task, the grid and the block."
    assert "Complete" not in draft_plan(MATMUL, "model.py::matmul")
    assert "updates `data` in place" in draft_plan(IN_PLACE)


def test_null_pointers_of_a_launch_are_tensors_of_their_own() -> None:
    kernel = "__global__ void f(const float* x, float* y) { y[threadIdx.x] = x[0]; }"
    assert directives(draft_plan(f"{kernel} int main() {{ f<<<1, 32>>>(nullptr, NULL); }}"), "op") == [
        "f(x: f32[1]) -> (y: f32[1])"
    ]


def test_nothing_is_drafted_without_a_kernel_that_writes() -> None:
    assert draft_plan("__global__ void k(const float* x) {}") == ""


COLUMN = "{ float s = 0; for (int r = 0; r < rows; ++r) s += x[r * cols + i]; out[i] = s; }"


@pytest.mark.parametrize(
    ("index", "body", "grid"),
    [
        ("blockIdx.x * blockDim.x + threadIdx.x", f"if (i < cols) {COLUMN}", "ceil_div(COLS, 256)"),
        ("blockDim.x * blockIdx.x + threadIdx.x", f"if (i < cols) {COLUMN}", "ceil_div(COLS, 256)"),
        ("blockIdx.x * blockDim.x + threadIdx.x", "if (i < rows * cols) out[i] = x[i];", "ceil_div(ROWS * COLS, 256)"),
    ],
)
def test_without_a_launch_the_grid_covers_what_the_threads_index_is_checked_against(
    index: str, body: str, grid: str
) -> None:
    head = "__global__ void k(const float* x, float* out, int rows, int cols) {"
    text = f"{head}\n    int i = {index};\n    {body}\n}}\n"
    assert directives(draft_plan(text), "launch") == [f"k<<<{grid}, 256>>>(x, out, ROWS, COLS)"]


LIKE = """__global__ void relu(const float* x, float* y, int n) { if (threadIdx.x < n) y[threadIdx.x] = x[0]; }
void run(int n) {
    MADE
    relu<<<1, 256>>>(a, b, n);
}
"""
CHECKED = """#define CUDA_CHECK(call) do { if ((call) != cudaSuccess) abort(); } while (0)
__global__ void count(const int* values, int* bins, int n) { if (threadIdx.x < n) bins[values[threadIdx.x]] = 1; }
int main() {
    int n = 1000;
    size_t bytes = BYTES;
    int *values, *bins;
    CUDA_CHECK(cudaMalloc((void**)&values, bytes));
    CUDA_CHECK(cudaMalloc(&bins, 256 * sizeof(int)));
    count<<<(n + 255) / 256, 256>>>(values, bins, n);
}
"""


@pytest.mark.timeout(20)
@pytest.mark.parametrize("size", ["n * sizeof(int)", "bytes"])
def test_an_allocation_inside_of_a_macro_has_its_shape(size: str) -> None:
    """The bracket of the macro was part of the shape; a size that names itself, half typed, never ended."""
    text = CHECKED.replace("BYTES", size)
    plan = draft_plan(text)
    parsed = parse(plan + text)
    assert parsed.plan is not None, parsed.findings
    assert "bins: i32[256]" in plan


@pytest.mark.timeout(20)
def test_tensors_that_are_made_like_each_other_end() -> None:
    made = "auto a = torch::empty_like(b); auto b = torch::empty_like(a);"
    assert "// launch: relu" in draft_plan(LIKE.replace("MADE", made))
