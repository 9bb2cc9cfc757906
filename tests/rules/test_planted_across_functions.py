"""Faults whose evidence is a member of a structure, an argument of a template, or another function of the file."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import cuda

ROWS = """template <int N = SIZE> struct Scratch { float sum[N]; };
__global__ void row_sums(const float* __restrict__ x, float* __restrict__ out, int cols) {
    __shared__ Scratch<> s;
    const int tid = threadIdx.x;
    float v = 0.0f;
    for (int c = tid; c < cols; c += blockDim.x) v += x[blockIdx.x * cols + c];
    s.sum[tid] = v;
    __syncthreads();
    for (int h = 128; h > 0; h /= 2) {
        if (tid < h) s.sum[tid] += s.sum[tid + h];
        __syncthreads();
    }
    if (tid == 0) out[blockIdx.x] = s.sum[0];
}
static int threads_per_row() { return 256; }
cudaError_t sums(const float* x, float* out, int rows, int cols) {
    row_sums<<<rows, threads_per_row()>>>(x, out, cols);
    return cudaGetLastError();
}
"""
LAUNCHER = """constexpr int TX = 64;
__global__ void add(const float* __restrict__ a, float* __restrict__ b, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < w && y < h) b[y * w + x] += a[y * w + x];
}
struct Launcher { dim3 block{TX, ROWS}; dim3 grid(int w, int h) const { return dim3((w + 63) / 64, (h + 7) / 8); } };
cudaError_t run(const float* a, float* b, int w, int h) {
    Launcher l;
    add<<<l.grid(w, h), l.block>>>(a, b, w, h);
    return cudaGetLastError();
}
"""
PAIRS = """__global__ void pairs(const float* a, const float* b, float* __restrict__ out, int n) {
    extern __shared__ float sm[];
    float* other = sm + blockDim.x;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    sm[threadIdx.x] = i < n ? a[i] : 0.0f;
    other[threadIdx.x] = i < n ? b[i] : 0.0f;
    __syncthreads();
    if (i < n) out[i] = sm[blockDim.x - 1 - threadIdx.x] + other[blockDim.x - 1 - threadIdx.x];
}
static size_t shared_bytes(int threads) { return FACTOR * threads * sizeof(float); }
cudaError_t run(const float* a, const float* b, float* out, int n) {
    const int threads = 256;
    pairs<<<(n + threads - 1) / threads, threads, shared_bytes(threads)>>>(a, b, out, n);
    return cudaGetLastError();
}
"""
STAGES = """constexpr int STAGES = COUNT;
struct Smem { float a[STAGES][64][32]; float b[STAGES][32][64]; };
__global__ void load(const float* __restrict__ x, float* __restrict__ out) {
    extern __shared__ char raw[];
    Smem& s = *reinterpret_cast<Smem*>(raw);
    s.a[0][threadIdx.x][0] = x[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = s.a[0][63 - threadIdx.x][0];
}
cudaError_t run(const float* x, float* out) {
    load<<<1, 64, sizeof(Smem)>>>(x, out);
    return cudaGetLastError();
}
"""
BLOCKS = """static inline int blocks_for(int n, int t) { return ROUNDED / t; }
__global__ void relu(float* x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = fmaxf(x[i], 0.0f);
}
cudaError_t run(float* x, int n) {
    const int t = 256;
    relu<<<blocks_for(n, t), t>>>(x, n);
    return cudaGetLastError();
}
"""
BLUR = """struct Dim { int w, h; __device__ bool inside(int x, int y) const { return x < w && y < h; } };
__global__ void blur(const float* __restrict__ in, float* __restrict__ out, Dim d) {
    __shared__ float t[16][17];
    int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    const bool is_inside = d.inside(x, y);
    LEFT
    t[threadIdx.y][threadIdx.x] = is_inside ? in[y * d.w + x] : 0.0f;
    __syncthreads();
    if (is_inside) out[y * d.w + x] = t[threadIdx.y][threadIdx.x] + t[threadIdx.y][15 - threadIdx.x];
}
"""
TILE = """template <int R, int C> struct Tile { float v[R][C]; __device__ float& at(int r, int c) { return v[r][c]; } };
__global__ void transpose(const float* __restrict__ in, float* __restrict__ out, int n) {
    __shared__ Tile<32, COLUMNS> t;
    int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) t.at(threadIdx.y + j, threadIdx.x) = in[(y + j) * n + x];
    __syncthreads();
    x = blockIdx.y * 32 + threadIdx.x; y = blockIdx.x * 32 + threadIdx.y;
    for (int j = 0; j < 32; j += 8) out[(y + j) * n + x] = t.at(threadIdx.x, threadIdx.y + j);
}
cudaError_t run(const float* in, float* out, int n) {
    transpose<<<dim3(n / 32, n / 32), dim3(32, 8)>>>(in, out, n);
    return cudaGetLastError();
}
"""
MATRIX = """struct Mat { const float* p; int ld; __device__ float operator()(int r, int c) const { return p[INDEX]; } };
__global__ void sums(Mat m, float* __restrict__ out, int rows, int cols) {
    int r = blockIdx.x * blockDim.x + threadIdx.x;
    if (r >= rows) return;
    float s = 0.0f;
    for (int c = 0; c < cols; ++c) s += m(r, c);
    out[r] = s;
}
"""
BINS = """struct Hist { unsigned* bins; int count; };
cudaError_t reset(unsigned* p) {
    Hist h{p, 256};
    return cudaMemset(h.bins, 0, BYTES);
}
"""


@pytest.mark.parametrize(
    ("text", "hole", "bad", "good", "code"),
    [
        (ROWS, "SIZE", "128", "256", "KL218"),
        (LAUNCHER, "ROWS", "32", "8", "KL230"),
        (PAIRS, "FACTOR", "1", "2", "KL233"),
        (STAGES, "COUNT", "4", "3", "KL232"),
        (BLOCKS, "ROUNDED", "n", "(n + t - 1)", "KL256"),
        (BLUR, "LEFT", "if (!d.inside(x, y)) return;", "", "KL203"),
        (TILE, "COLUMNS", "32", "33", "KL211"),
        (MATRIX, "INDEX", "(size_t)r * ld + c", "(size_t)c * ld + r", "KL210"),
        (BINS, "BYTES", "h.count", "h.count * sizeof(unsigned)", "KL254"),
    ],
    ids=["default", "block", "shared", "structure", "rounding", "guard", "tile", "operator", "member"],
)
def test_faults_are_followed_across_functions(text: str, hole: str, bad: str, good: str, code: str) -> None:
    assert code in {each.code for each in cuda.check(text.replace(hole, bad))}
    assert code not in {each.code for each in cuda.check(text.replace(hole, good))}
