"""Sizes that only the host states: bytes of template elements, grids of vectors, and 32-bit indices of large arrays."""

from __future__ import annotations

import time

import pytest

from kernel_lsp.rules import cuda
from kernel_lsp.rules.cuda import checking

FILL = """
template <typename T>
void fill(T** out, const std::vector<T>& host) {
    CHECK(cudaMalloc(out, host.size() * sizeof(HOLE)));
}
"""
BACK = """
template <typename scalar_t>
void copy_back(scalar_t* host, const scalar_t* device, int rows, int cols) {
    size_t count = (size_t)rows * cols;
    CHECK(cudaMemcpy(host, device, count HOLE, cudaMemcpyDeviceToHost));
}
"""
BUFFER = """
template <typename T>
struct Buffer {
    T* data = nullptr;
    size_t size = 0;
    void make() { CHECK(cudaMalloc(&data, size * sizeof(T))); }
    void upload(const T* host) { CHECK(cudaMemcpy(data, host, HOLE, cudaMemcpyHostToDevice)); }
};
"""
VECTORS = """
__global__ void relu(const float4* __restrict__ x, float4* __restrict__ y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i * 4 < n) y[i] = clamp(x[i]);
}
void run(const float* x, float* y, int n) {
    int block = 256;
    relu<<<HOLE, block>>>((const float4*)x, (float4*)y, n);
}
"""
CONFUSION = """
__global__ void rates(const unsigned* __restrict__ m, float* __restrict__ out, int n) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= n) return;
    unsigned row = 0, column = 0;
    for (int k = 0; k < n; ++k) {
        row += m[c * n + k];
        column += HOLE;
    }
    out[c] = row + column;
}
"""

OUTER = """
__global__ void outer(const float* __restrict__ a, float* __restrict__ c, int rows, int cols) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y;
    if (col < cols && row < rows) c[row * cols + col] = a[row];
}
int main() {
    const int rows = HOLE, cols = 50000;
    outer<<<dim3((cols + 255) / 256, rows), 256>>>(a, c, rows, cols);
}
"""
COPY = """
__global__ void copy(const float* __restrict__ in, float* __restrict__ out, int rows, int cols) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < HOLE; i += gridDim.x * blockDim.x) out[i] = in[i];
}
void run(const float* in, float* out) { copy<<<1024, 256>>>(in, out, 1 << 17, 1 << 15); }
"""
PLANES = """
__global__ void planes(float* __restrict__ out, int d, int h, int w) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y;
    if (x >= w || y >= h) return;
    for (int z = 0; z < d; ++z) out[(HOLE + y) * w + x] = 0.0f;
}
void run(float* out) { planes<<<dim3(8, 2048), 256>>>(out, 1024, 2048, 2048); }
"""

EXACT = """
__global__ void add(const float* __restrict__ a, float* __restrict__ c, int n) {
    int row = blockIdx.y * 16 + threadIdx.y, col = blockIdx.x * 16 + threadIdx.x;
    c[row * n + col] += a[row * n + col];
}
cudaError_t run(const float* a, float* c, int m, int n) {
    HOLE
    add<<<dim3(n / 16, m / 16), dim3(16, 16)>>>(a, c, n);
    return cudaGetLastError();
}
"""
REFUSES = "if (m % 16 || n % 16) return cudaErrorInvalidValue;"
WHOLE_BLOCKS = """
__global__ void shade(const float* __restrict__ x, float* __restrict__ y, int colours) {
    const int pixel = blockIdx.x * blockDim.x + threadIdx.x;
    y[pixel] = x[pixel] * colours;
}
void run(const float* x, float* y, size_t pixels, int colours) {
    HOLE
}
"""
NONE_LEFT = "if (pixels % 128 != 0) throw std::invalid_argument(name);"
OF_BLOCKS = "const size_t blocks = pixels / 128;"
CAST = f"{OF_BLOCKS} shade<<<static_cast<unsigned>(blocks), 128>>>(x, y, colours);"
CALLED_CAST = "shade<<<unsigned(pixels / 128), 128>>>(x, y, colours);"
IN_DIM = f"{OF_BLOCKS} const dim3 grid((unsigned)blocks); shade<<<grid, 128>>>(x, y, colours);"
PADDED_HERE = "const size_t all = HOLE; shade<<<all / 128, 128>>>(x, y, colours);"
FIXED = "const size_t all = HOLE; shade<<<all >> 7, 128>>>(x, y, colours);"
MASKED = "if (pixels & 127) abort();"
CLASSES = """
__global__ void per_class(const int* __restrict__ m, float* __restrict__ recall, int classes) {
    int c = threadIdx.x + blockIdx.x * blockDim.x, total = 0;
    if (c >= classes) return;
    for (int j = 0; j < classes; ++j) total += m[c * classes + j];
    recall[c] = total;
}
void run(const int* m, float* recall, int classes) { per_class<<<HOLE, 32>>>(m, recall, classes); }
"""
DIGITS = """
__global__ void digits(const unsigned* __restrict__ keys, unsigned* __restrict__ out, int n) {
    __shared__ unsigned bins[256];
    bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n; i += gridDim.x * 256) atomicAdd(&bins[keys[i] & 255], 1u);
    __syncthreads();
    out[HOLE] = bins[threadIdx.x];
}
"""

CENTER = """
constexpr int ROW = 100;
__global__ void center(float* __restrict__ x, const float* __restrict__ mean, int cols) {
    const int row = blockIdx.x, col = threadIdx.x;
    HOLE
}
void run(float* x, const float* mean, int rows) { center<<<rows, 128>>>(x, mean, 96); }
"""

MASK = """
__global__ void mask(float* __restrict__ x, int batch, int heads, int len) {
    int i = blockIdx.x * blockDim.x + threadIdx.x, j = blockIdx.y, b = blockIdx.z;
    if (i >= len || j >= len || b >= batch * heads) return;
    x[(HOLEb * len + j) * len + i] = 0.0f;
}
void run(float* x) { mask<<<dim3(16, 4096, 256), 256>>>(x, 8, 32, 4096); }
"""
TENSOR = """
template <class Scalar>
struct Tensor {
    void to_host(std::vector<Scalar>& out) const {
        CHECK(cudaMemcpy(out.data(), p, n * sizeof(HOLE), cudaMemcpyDeviceToHost));
    }
    Scalar* p = nullptr;
    size_t n;
};
"""
TILES = """
__global__ void transpose(const float* __restrict__ in, float* __restrict__ out, int rows, int cols) {
    const int col = blockIdx.x * 32 + threadIdx.x, row0 = blockIdx.y * 32;
    const float* tile = in + (size_t)row0 * cols;
    for (int r = threadIdx.y; HOLE; r += 8) out[(size_t)(row0 + r) * cols + col] = tile[r * cols + col];
}
void run(const float* in, float* out) { transpose<<<dim3(1563, 1875), dim3(32, 8)>>>(in, out, 60000, 50000); }
"""
TWO_LOOPS = """
__global__ void fill(float* __restrict__ x, int rows, int cols) {
    for (int i = 0; i < HOLE; ++i) x[i * cols + threadIdx.x] = 1.0f;
    for (int i = 0; i < rows; ++i) x[(size_t)i * cols + threadIdx.x] += 1.0f;
}
void run(float* x) { fill<<<1, 256>>>(x, 60000, 50000); }
"""
STEPS = """
__global__ void gemm(const float* __restrict__ b, float* __restrict__ c, int n, int k) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= n) return;
    float s = 0.0f;
    for (int k0 = 0; k0 < k; k0 += 64) {
        const float* bb = b + (size_t)k0 * n;
        for (int kk = 0; HOLE; ++kk) s += bb[kk * n + col];
    }
    c[col] = s;
}
void run(const float* b, float* c) { gemm<<<196, 256>>>(b, c, 50000, 60000); }
"""
OVERLOADED = """
__global__ void zero(float* __restrict__ x, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
    if (r < rows && c < cols) x[r * cols + c] = 0.0f;
}
__global__ void HOLE(float* __restrict__ x, long long rows, long long cols) {
    long long c = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y;
    if (r < rows && c < cols) x[r * cols + c] = 0.0f;
}
void run(float* x) { zero<<<dim3(196, 60000), 256>>>(x, 60000, 50000); }
"""
RAW = """
struct Raw {
    float* p;
    size_t size;
    void make() { CHECK(cudaMalloc(&p, HOLE * sizeof(float))); }
    void upload(const float* host) { CHECK(cudaMemcpy(p, host, size, cudaMemcpyHostToDevice)); }
};
"""
PACKED = """
void read(const HOLE* device, std::vector<float>& host) {
    CHECK(cudaMemcpy(host.data(), device, host.size() * sizeof(float), cudaMemcpyDeviceToHost));
}
"""
PACKED_TEMPLATE = """
template <typename T>
void read(const T* device, std::vector<HOLE>& host) {
    CHECK(cudaMemcpy(host.data(), device, host.size() * sizeof(uint32_t), cudaMemcpyDeviceToHost));
}
"""
UPLOAD = """
template <typename T>
void upload(T* device, HOLE) { CHECK(cudaMemcpy(device, host, total, cudaMemcpyHostToDevice)); }
"""
PADDED = """
__global__ void zero(float* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 0.0f;
}
void run(float* x, int n) {
    int size = HOLE;
    zero<<<size / 1024, 1024>>>(x, size);
}
"""
CONSTEXPR = """
template <int ROW, int THREADS>
__global__ void zero(float* __restrict__ x) {
    if constexpr (HOLE) x[blockIdx.x * ROW + threadIdx.x] = 0.0f;
}
void run(float* x, int rows) { zero<96, 128><<<rows, 128>>>(x); }
"""
QUARTERS = """
__global__ void zero(float4* __restrict__ x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}
void run(float* x, int m) {
    const int n = HOLE;
    zero<<<(n / 4 + 255) / 256, 256>>>((float4*)x, n / 4);
}
"""
ALIAS = """
template <typename T> T twice(T a) { return a + a; }
using HOLE = unsigned char;
void upload(T* device, const T* host, size_t count) {
    CHECK(cudaMemcpy(device, host, count, cudaMemcpyHostToDevice));
}
"""


@pytest.mark.parametrize(
    ("code", "text", "defect", "correct"),
    [
        ("KL254", FILL, "float", "T"),
        ("KL254", BACK, "", "* sizeof(scalar_t)"),
        ("KL254", BUFFER, "size", "size * sizeof(T)"),
        ("KL256", VECTORS, "n / (4 * block)", "(n / 4 + block - 1) / block"),
        ("KL256", VECTORS, "n / 4 / block", "(n + 4 * block - 1) / (4 * block)"),
        ("KL256", VECTORS, "n / 1024", "(n + 1023) / 1024"),
        ("KL278", OUTER, "60000", "600"),
        ("KL278", COPY, "rows * cols", "(size_t)rows * cols"),
        ("KL278", PLANES, "z * h", "(int64_t)z * h"),
        ("KL201", EXACT, "", REFUSES),
        ("KL201", EXACT, "if (m % 16) return cudaErrorInvalidValue;", REFUSES),
        ("KL201", WHOLE_BLOCKS, CAST, NONE_LEFT + CAST),
        ("KL201", WHOLE_BLOCKS, CALLED_CAST, NONE_LEFT + CALLED_CAST),
        ("KL201", WHOLE_BLOCKS, IN_DIM, MASKED + IN_DIM),
        ("KL201", WHOLE_BLOCKS.replace("HOLE", PADDED_HERE), "pixels * 2", "(pixels + 127) / 128 * 128"),
        ("KL201", WHOLE_BLOCKS.replace("HOLE", FIXED), "1000", "1024"),
        ("KL256", WHOLE_BLOCKS.replace("HOLE", PADDED_HERE), "(pixels + 127) / 128 * 64", "(pixels + 127) / 128 * 128"),
        ("KL238", CENTER, "x[row * ROW + col] -= mean[row];", "if (col < ROW) x[row * ROW + col] -= mean[row];"),
        ("KL238", CENTER, "x[row * cols + col] = 0.0f;", "x[row * 128 + col] = 0.0f;"),
        ("KL278", MASK, "", "(size_t)"),
        ("KL254", TENSOR, "float", "Scalar"),
        ("KL210", CLASSES, "(classes + 31) / 32", "1"),
        ("KL210", DIGITS, "threadIdx.x * n + blockIdx.x", "threadIdx.x * gridDim.x + blockIdx.x"),
        ("KL210", CONFUSION, "m[c]", "m[k * n + c]"),
        ("KL254", RAW, "size", "grid_size"),
        ("KL254", BUFFER.replace("size * sizeof(T)", "sizeof(T) * size"), "size", "size * sizeof(T)"),
        ("KL254", PACKED.replace("host.size() * sizeof(float)", "host.size()"), "float4", "char"),
        ("KL254", PACKED_TEMPLATE, "double", "uint32_t"),
        ("KL254", UPLOAD.replace("total", "count"), "const T* host, int64_t count", "const void* host, int64_t count"),
        ("KL210", CLASSES.replace("HOLE, 32", "HOLE"), "1, 1024", "1, 64"),
        ("KL201", EXACT, 'if (m % 16 || n % 16) printf("rest");', "if (m % 16 || n % 16) { report(); return 1; }"),
        ("KL201", EXACT, "if (m % 16) m = 0; if (n % 16) report(n);", "check(m % 16 == 0); assert(n % 16 == 0);"),
        ("KL201", EXACT, "", "if (m % 16 == 0 && n % 16 == 0)"),
        ("KL256", PADDED, "n - 1", "(n + 1023) / 1024 * 1024"),
        ("KL256", PADDED, "n * 100", "n * 2048"),
        ("KL256", PADDED, "n + 1023", "(n + 1023) & ~1023"),
        ("KL256", PADDED, "n", "n; size = (size + 1023) / 1024 * 1024"),
        ("KL254", ALIAS, "U", "T"),
        ("KL256", QUARTERS, "m * 3", "m * 1024"),
        ("KL256", QUARTERS, "(1 << 20) + 1", "1 << 20"),
        ("KL238", CONSTEXPR, "THREADS > 0", "THREADS <= ROW"),
        ("KL278", TILES, "r < rows", "r < 32 && row0 + r < rows"),
        ("KL278", TILES, "r < rows", "row0 + r < rows"),
        ("KL278", TILES, "r < rows", "32 > r && r < rows"),
        ("KL278", STEPS, "kk < k", "kk < 64 && k0 + kk < k"),
        ("KL278", TWO_LOOPS, "rows", "16"),
        ("KL278", OVERLOADED, "one", "zero"),
    ],
)
def test_a_size_is_read_where_the_host_states_it(code: str, text: str, defect: str, correct: str) -> None:
    assert code in {finding.code for finding in cuda.check(text.replace("HOLE", defect))}
    assert code not in {finding.code for finding in cuda.check(text.replace("HOLE", correct))}


def test_a_product_of_many_factors_takes_linear_time() -> None:
    factors = " * ".join(["a", "b"] * 400)
    text = f"__global__ void k(float* x, int a, int b) {{ if (threadIdx.x < {factors}) x[threadIdx.x] = 0.0f; }}"
    before = time.process_time()
    cuda.check(text)
    assert time.process_time() - before < 2  # it took 4.5 s


def test_an_index_beyond_a_launched_block_is_reported_once() -> None:
    text = """
__global__ void right(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float tile[256];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x + 1];
}
void run(const float* x, float* out) { right<<<1, 256>>>(x, out); }
"""
    assert [each.code for each in cuda.check(text) if each.code in ("KL218", "KL238")] == ["KL238"]


def test_copies_of_vectors_to_their_elements_are_correct() -> None:
    assert not cuda.check(PACKED.replace("HOLE", "float4"))


@pytest.mark.parametrize(("first", "second"), [("size", "capacity"), ("capacity", "size")])
def test_a_copy_is_checked_anew_after_its_size_is_multiplied_elsewhere(first: str, second: str) -> None:
    text = RAW.replace("HOLE", "10") + "void make(float** out, int n) { CHECK(cudaMalloc(out, HOLE * sizeof(float))); }"
    cuda.check(text.replace("HOLE", first))
    found = cuda.check(text.replace("HOLE", second))
    checking._kept.clear()
    assert found == cuda.check(text.replace("HOLE", second))


def test_kernels_of_one_name_have_the_same_findings_in_every_process() -> None:
    """The sizes of such kernels were in a set, whose order differs between processes."""
    pair = """
__global__ void zeroN(float *x, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = 0.0f;
}
__global__ void zeroN(float *x, int rows, int cols) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    for (int row = 0; row < rows; ++row) if (col < cols) x[row * cols + col] = 0.0f;
}
void runN(float *x) { zeroN<<<196, 256>>>(x, 50000, 60000); }
"""
    text = "".join(pair.replace("N", str(number)) for number in range(20))
    found = [finding.message for finding in cuda.check(text) if finding.code == "KL256"]
    assert found == ["grid has 50176 threads for the 60000 elements of `60000`"] * 20


NAMESAKES = """
namespace left {
__global__ void shift(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float tile[256];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}
}
namespace right {
__global__ void shift(const float* __restrict__ x, float* __restrict__ out) {
    __shared__ float tile[512];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}
__global__ void shift(const float* __restrict__ x, float* __restrict__ out, int n) {
    __shared__ float tile[128];
    tile[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < n) out[threadIdx.x] = tile[threadIdx.x];
}
}
cudaError_t run(const float* x, float* out, int n) {
    LAUNCH;
    return cudaGetLastError();
}
"""


@pytest.mark.parametrize(
    ("launch", "lines"),
    [
        ("left::shift<<<1, 256>>>(x, out)", set()),
        ("left::shift<<<1, 512>>>(x, out)", {4, 6}),
        ("right::shift<<<1, 512>>>(x, out)", set()),
        ("right::shift<<<1, 256>>>(x, out, n)", {18}),
        ("shift<<<1, 1024>>>(x, out)", set()),
    ],
)
def test_a_launch_is_of_the_kernel_of_its_namespace_and_parameters(launch: str, lines: set[int]) -> None:
    found = cuda.check(NAMESAKES.replace("LAUNCH", launch))
    assert {each.range.start_line for each in found if each.code in ("KL218", "KL238")} == lines
