"""Faults whose evidence is a member of a structure, an argument of a template, or another function of the file."""

from __future__ import annotations

import time

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

FIELD = """template <class T> void copy_to(T* to, const T* from, size_t n, cudaMemcpyKind kind) {
    cudaMemcpy(to, from, n * sizeof(T), kind);
}
class Field {
  public:
    explicit Field(int n) : n_(n), host_(n) { cudaMalloc(&dev_, n * sizeof(double)); }
    void pull() { copy_to(host_.data(), dev_, n_, KIND); }
  private:
    int n_; std::vector<double> host_; double* dev_ = nullptr;
};
"""
GRID = """struct Grid { float* h; float* d; int n; };
void make(Grid& g) {
    g.h = (float*)malloc(g.n * sizeof(float));
    cudaMalloc((void**)&g.d, g.n * sizeof(float));
}
void download(Grid& g) { cudaMemcpy(g.h, g.d, g.n * sizeof(float), KIND); }
"""
BUFFER = """template <typename T>
class Buffer {
  public:
    explicit Buffer(size_t count) : count_(count) { cudaMalloc(&ptr_, BYTES); }
    ~Buffer() { cudaFree(ptr_); }
  private:
    T* ptr_ = nullptr;
    size_t count_;
};
"""
TAPS = """constexpr int TAPS = 25;
__constant__ float c_taps[TAPS];
bool set_taps(const float* taps) { return cudaMemcpyToSymbol(c_taps, taps, BYTES) == cudaSuccess; }
"""
PITCHED = """cudaError_t make(float** x, size_t* pitch, int w, int h) { return cudaMallocPitch(x, pitch, BYTES, h); }
"""
TOTAL = """__device__ int g_count;
__global__ void keep(const float* __restrict__ x, float* __restrict__ out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] > 0.0f) out[UPDATE] = x[i];
}
"""
VOTE = """__global__ void positive(const float* __restrict__ x, int* __restrict__ out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    GUARD {
        unsigned votes = __ballot_sync(0xffffffff, i < n && x[i] > 0.0f);
        if ((threadIdx.x & 31) == 0) atomicAdd(out, __popc(votes));
    }
}
"""
DOT = """__device__ float warp_sum(float v) { for (int d = 16; d; d /= 2) v += __shfl_down_sync(~0u, v, d); return v; }
__global__ void dot(const float* __restrict__ a, float* __restrict__ out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    GUARD
    float v = warp_sum(i < n ? a[i] : 0.0f);
    if (threadIdx.x % 32 == 0) atomicAdd(out, v);
}
"""
HIST = """constexpr int BINS = 256;
__global__ void hist(const unsigned char* __restrict__ p, unsigned* __restrict__ out, int n) {
    __shared__ unsigned h[BINS];
    h[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(&h[p[i]], 1u);
    __syncthreads();
    for (int b = threadIdx.x; b < BINS; b += blockDim.x) atomicAdd(&out[b], h[b]);
}
cudaError_t run(const unsigned char* p, unsigned* out, int n) {
    hist<<<120, THREADS>>>(p, out, n);
    return cudaGetLastError();
}
"""
TWICE = """__device__ float block_sum(float v) {
    static __shared__ float part[32];
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
    BEFORE
    if (lane == 0) part[warp] = v;
    __syncthreads();
    v = lane < blockDim.x / 32 ? part[lane] : 0.0f;
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
    return v;
}
__global__ void center(const float* __restrict__ x, float* __restrict__ y, int n) {
    float v = x[blockIdx.x * blockDim.x + threadIdx.x];
    float mean = block_sum(v) / n;
    float variance = block_sum((v - mean) * (v - mean)) / n;
    y[blockIdx.x * blockDim.x + threadIdx.x] = (v - mean) * rsqrtf(variance);
}
"""
COPY = """__global__ void stage(const float4* __restrict__ g, float4* __restrict__ out) {
    __shared__ float4 s[256];
    __pipeline_memcpy_async(&s[threadIdx.x], &g[blockIdx.x * 256 + threadIdx.x], sizeof(float4));
    __pipeline_commit();
    WAIT
    __syncthreads();
    out[blockIdx.x * 256 + threadIdx.x] = s[255 - threadIdx.x];
}
"""
SIMULATION = """class Simulation {
  public:
    void fetch() { cudaMemcpyAsync(h_, d_, n_ * sizeof(float), cudaMemcpyDeviceToHost, s_); }
    float first() { fetch(); WAIT return h_[0]; }
  private:
    int n_; cudaStream_t s_; float* d_; float* h_;
};
"""
RELEASE = """__global__ void twice(float* x) { x[threadIdx.x] *= 2.0f; }
static cudaError_t release(float* p) { return cudaFree(p); }
cudaError_t run() {
    float* x = nullptr;
    cudaError_t error = cudaMalloc(&x, 1024);
    if (error != cudaSuccess) return error;
    twice<<<1, 256>>>(x);
    AFTER
    return cudaGetLastError();
}
"""
STATE = """struct State { float* best; int n; };
cudaError_t reset(State& s) { return cudaMemset(s.best, VALUE, s.n * sizeof(float)); }
"""
PIPE = """__global__ void next(float* x, int n) { int i = blockIdx.x * 256 + threadIdx.x; if (i < n) x[i] += 1.0f; }
struct Pipe { cudaStream_t copy, work; float* d; int n; };
cudaError_t push(Pipe& p, const float* h) {
    cudaError_t e = cudaMemcpyAsync(p.d, h, p.n * sizeof(float), cudaMemcpyHostToDevice, p.copy);
    next<<<(p.n + 255) / 256, 256, 0, p.STREAM>>>(p.d, p.n);
    return e != cudaSuccess ? e : cudaGetLastError();
}
"""
TINT = """__global__ void tint(uchar4* img, int w, int h) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x < w && y < h) img[y * w + x].x = 0;
}
static dim3 grid_of(int w, int h, dim3 b) { return dim3((w + b.x - 1) / b.x, (h + b.y - 1) / b.y); }
cudaError_t run(uchar4* img, int w, int h) {
    dim3 block(16, 16);
    tint<<<grid_of(SIZES, block), block>>>(img, w, h);
    return cudaGetLastError();
}
"""
NET = """struct Net { float* w; int in, out; };
cudaError_t load(Net& n, const float* h) {
    cudaError_t e = cudaMalloc(&n.w, n.in * SIZE sizeof(float));
    return e != cudaSuccess ? e : cudaMemcpy(n.w, h, n.in * n.out * sizeof(float), cudaMemcpyHostToDevice);
}
"""
LIMIT = """__global__ void a(float* x) { extern __shared__ float s[]; s[threadIdx.x] = x[threadIdx.x]; }
__global__ void b(float* x) { extern __shared__ float s[]; s[threadIdx.x] = x[threadIdx.x]; }
cudaError_t run(float* x) {
    cudaError_t e = cudaFuncSetAttribute(KERNEL, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536);
    if (e != cudaSuccess) return e;
    b<<<1, 256, 65536>>>(x);
    return cudaGetLastError();
}
"""
TIMER = """struct Timer {
    cudaEvent_t a, b;
    float stop() { float ms = 0; cudaEventRecord(b); WAIT cudaEventElapsedTime(&ms, a, b); return ms; }
};
"""


BEST = """__global__ void best(const int* __restrict__ x, int* __restrict__ out) {
    int v = x[threadIdx.x];
    if (threadIdx.x < LIMIT) {
        v = max(v, __shfl_down_sync(0x000000ffu, v, 4));
        if (threadIdx.x == 0) *out = v;
    }
}
"""
GROUP_DOT = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
__global__ void dot(const float* __restrict__ x, float* __restrict__ result) {
    auto warp = cg::tiled_partition<32>(cg::this_thread_block());
    float v = x[blockIdx.x * blockDim.x + threadIdx.x];
    const unsigned lane = warp.thread_rank();
    if (CONDITION) atomicAdd(result, v);
}
"""
SEGMENTS = """__global__ void scale(float* out, const int* __restrict__ offsets, float by) {
    int begin = offsets[blockIdx.x];
    int end = END;
    for (int i = begin + threadIdx.x; i < end; i += 256) out[i] *= by;
}
cudaError_t run(float* out, const int* offsets) {
    scale<<<64, 256>>>(out, offsets, 2.0f);
    return cudaGetLastError();
}
"""
CELLS = """struct View { int width, height; };
class Cells {
    float* cells_ = nullptr;
    void make(View v) {
        const int count = v.width * v.height;
        cudaMalloc(&cells_, count * sizeof(float));
        cudaMemset(cells_, 0, SIZE);
    }
};
"""
COUNTED = """struct View { int width, height, row_bytes; };
cudaError_t make(View v) {
    float* x = nullptr;
    const int count = v.width * v.height;
    const int num_bytes = v.row_bytes * v.height;
    cudaError_t error = cudaMalloc(&x, BYTES);
    cudaFree(x);
    return error == cudaSuccess && count > num_bytes ? cudaErrorInvalidValue : error;
}
"""
STAGE = """void stage(float* dev, const float* host, size_t count, cudaStream_t stream) {
    cudaMemcpyAsync(dev, host, count * sizeof(float), KIND, stream);
}
"""


@pytest.mark.parametrize(
    ("text", "hole", "bad", "good", "code"),
    [
        (ROWS, "SIZE", "128", "256", "KL218"),
        (BEST, "LIMIT", "32", "8", "KL205"),
        (GROUP_DOT, "CONDITION", "v > 0.0f", "lane == 0", "KL214"),
        (SEGMENTS, "END", "begin + 1024", "offsets[blockIdx.x + 1]", "KL219"),
        (CELLS, "SIZE", "sizeof(cells_)", "count * sizeof(*cells_)", "KL254"),
        (CELLS, "SIZE", "count", "count * sizeof(float)", "KL254"),
        (COUNTED, "BYTES", "count", "num_bytes", "KL254"),
        (STAGE, "KIND", "cudaMemcpyDeviceToHost", "cudaMemcpyHostToDevice", "KL255"),
        (LAUNCHER, "ROWS", "32", "8", "KL230"),
        (PAIRS, "FACTOR", "1", "2", "KL233"),
        (STAGES, "COUNT", "4", "3", "KL232"),
        (BLOCKS, "ROUNDED", "n", "(n + t - 1)", "KL256"),
        (BLUR, "LEFT", "if (!d.inside(x, y)) return;", "", "KL203"),
        (TILE, "COLUMNS", "32", "33", "KL211"),
        (MATRIX, "INDEX", "(size_t)r * ld + c", "(size_t)c * ld + r", "KL210"),
        (BINS, "BYTES", "h.count", "h.count * sizeof(unsigned)", "KL254"),
        (FIELD, "KIND", "cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost", "KL255"),
        (GRID, "KIND", "cudaMemcpyDeviceToDevice", "cudaMemcpyDeviceToHost", "KL255"),
        (BUFFER, "BYTES", "count", "count * sizeof(T)", "KL254"),
        (TAPS, "BYTES", "TAPS", "sizeof(c_taps)", "KL254"),
        (PITCHED, "BYTES", "w", "w * sizeof(float)", "KL254"),
        (TOTAL, "UPDATE", "g_count++", "atomicAdd(&g_count, 1)", "KL219"),
        (VOTE, "GUARD", "if (i < n)", "", "KL206"),
        (DOT, "GUARD", "if (i >= n) return;", "", "KL206"),
        (HIST, "THREADS", "128", "256", "KL248"),
        (TWICE, "BEFORE", "", "__syncthreads();", "KL207"),
        (COPY, "WAIT", "", "__pipeline_wait_prior(0);", "KL207"),
        (SIMULATION, "WAIT", "", "cudaStreamSynchronize(s_);", "KL268"),
        (RELEASE, "AFTER", "release(x); cudaMemset(x, 0, 4);", "release(x);", "KL269"),
        (STATE, "VALUE", "1", "0", "KL254"),
        (PIPE, "STREAM", "work", "copy", "KL270"),
        (TINT, "SIZES", "h, w", "w, h", "KL256"),
        (NET, "SIZE", "", "n.out *", "KL254"),
        (LIMIT, "KERNEL", "a", "b", "KL232"),
        (TIMER, "WAIT", "", "cudaEventSynchronize(b);", "KL276"),
    ],
)
def test_faults_are_followed_across_functions(text: str, hole: str, bad: str, good: str, code: str) -> None:
    assert code in {each.code for each in cuda.check(text.replace(hole, bad))}
    assert code not in {each.code for each in cuda.check(text.replace(hole, good))}


def test_a_size_of_a_function_that_calls_itself_is_soon_unknown() -> None:
    text = "int h(int x) { return h(x) + h(x - 1); }\n__global__ void k(float* a) { a[0] = 1.0f; }\n"
    start = time.process_time()
    cuda.check(text + "void run(float* a) { cudaMalloc(&a, h(h(2))); k<<<h(3), h(h(4))>>>(a); }\n")
    assert time.process_time() - start < 5.0
