"""Idioms of public kernels that are correct, each beside a defect that looks like it."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import cuda
from tests.rules.found_codes import cuda_codes as codes

COMMENTED = """
__global__ void weigh(const float* __restrict__ x, float* __restrict__ y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float part;
    part = x[i] * // part of the neighbour
           x[i] HOLE;
    y[i] = part;
}
"""
FRAGMENT = """
__global__ void blend(const float* a, const float* c, float* d, int k, float beta) {
    nvcuda::wmma::fragment<nvcuda::wmma::accumulator, 16, 16, 16, float> old;
    nvcuda::wmma::load_matrix_sync(old, c + blockIdx.x * 256, k, nvcuda::wmma::mem_row_major);
    for (int e = 0; e < old.num_elements; ++e) HOLE = a[threadIdx.x] + beta * HOLE;
}
"""
EVERY_BIN = """
__global__ void count(const int* __restrict__ x, int* __restrict__ bins, int n) {
    HOLE atomicAdd(&bins[x[i]], 1);
}
void run(const int* x, int* bins) {
    const int n = 1000;
    count<<<n / 256, 256>>>(x, bins, n);
}
"""
OF_GRID = "auto grid = cg::this_grid(); for (int i = grid.thread_rank(); i < n; i += grid.size())"
OF_LAST = "int i = blockIdx.x * blockDim.x + threadIdx.x; bool is_last = blockIdx.x == gridDim.x - 1; if (i < n)"
ONE_EACH = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n)"
CONVERTED = """
template <typename T> struct Dynamic {
    __device__ operator T*() { extern __shared__ int bytes[]; return reinterpret_cast<T*>(bytes); }
};
template <typename T> __global__ void reduce(const T* __restrict__ x, T* __restrict__ y, unsigned n) {
    T* part = HOLE;
    unsigned t = threadIdx.x, i = blockIdx.x * blockDim.x + threadIdx.x;
    part[t] = i < n ? x[i] : 0;
    __syncthreads();
    for (unsigned step = blockDim.x / 2; step > 0; step >>= 1) {
        if (t < step) part[t] += part[t + step];
        __syncthreads();
    }
    if (t == 0) y[blockIdx.x] = part[0];
}
"""
MESH = """
const unsigned int width = HOLE;
__global__ void wave(float* y, unsigned columns, float time) {
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x;
    y[x] = sinf(time + x);
}
void run(float* y, float time) {
    dim3 block(64, 1, 1);
    dim3 grid(width / block.x, 1, 1);
    wave<<<grid, block>>>(y, width, time);
}
"""
STATES = """
__global__ void start(curandState* states, HOLE) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    curand_init(7, i, 0, &states[i]);
}
"""
STEPS = """
__global__ void double_all(const int* __restrict__ sizes, float* __restrict__ y) {
    extern __shared__ float row[];
    const int n = 1 << sizes[0];
    for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = y[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = row[i] + HOLE;
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = row[i];
}
"""


@pytest.mark.parametrize(
    ("code", "text", "defect", "correct"),
    [
        ("KL271", COMMENTED, "+ part", ""),
        ("KL219", FRAGMENT, "d[0]", "old.x[e]"),
        ("KL256", EVERY_BIN, ONE_EACH, OF_GRID),
        ("KL256", EVERY_BIN, OF_LAST, OF_GRID),
        ("KL219", CONVERTED, "y + n", "Dynamic<T>()"),
        ("KL201", MESH, "100", "128"),
        ("KL201", STATES, "unsigned n", "unsigned seed"),
        ("KL201", STATES, "unsigned n_seeds", "unsigned long long rng_seed"),
    ],
)
def test_an_idiom_is_correct_where_a_defect_is_not(code: str, text: str, defect: str, correct: str) -> None:
    assert code in codes(text.replace("HOLE", defect))
    assert code not in codes(text.replace("HOLE", correct))


def test_a_loop_of_an_unknown_number_of_steps_keeps_its_threads_apart() -> None:
    assert "KL207" in codes(STEPS.replace("HOLE", "row[i + 1]"))
    assert not {"KL207", "KL208"} & codes(STEPS.replace("HOLE", "row[i]"))


SUM = """
__device__ float sum_of_block(float v) {
    __shared__ float warps[8];
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
    INNER {
        v = warps[threadIdx.x % 8];
        v += __shfl_down_sync(0xffffffffu, v, 4);
    }
    return v;
}
__global__ void total(const float* __restrict__ x, float* __restrict__ y) {
    const float sum = sum_of_block(x[threadIdx.x]);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
void run(const float* x, float* y) { total<<<9, 256>>>(x, y); }
"""


def test_a_divergent_shuffle_of_a_helper_is_reported_in_its_branch_alone() -> None:
    assert "KL206" not in codes(SUM.replace("INNER", "if (threadIdx.x < 32)"))
    found = cuda.check(SUM.replace("INNER", "if (threadIdx.x < 8)"))
    assert [each.range.start_line for each in found if each.code == "KL206"] == [7]


PERMUTED = """
__device__ void permute(float* colours, const int* order, cg::thread_block cta) {
    cg::thread_group tile = cg::tiled_partition(cta, 16);
    if (threadIdx.x < 16) {
        const float colour = colours[threadIdx.x];
        HOLE
        colours[order[threadIdx.x]] = colour;
    }
}
__global__ void encode(const float* __restrict__ x, const int* __restrict__ given, float* __restrict__ y) {
    cg::thread_block cta = cg::this_thread_block();
    __shared__ float colours[64];
    __shared__ int order[64];
    colours[threadIdx.x] = x[threadIdx.x];
    order[threadIdx.x] = given[threadIdx.x];
    cg::sync(cta);
    permute(colours, order, cta);
    cg::sync(cta);
    y[threadIdx.x] = colours[threadIdx.x];
}
void run(const float* x, const int* given, float* y) { encode<<<1, 64>>>(x, given, y); }
"""


def test_a_barrier_of_a_tile_orders_elements_that_data_choose() -> None:
    assert "KL207" in codes(PERMUTED.replace("HOLE", ""))
    assert "KL207" not in codes(PERMUTED.replace("HOLE", "cg::sync(tile);"))
    whole_block = PERMUTED.replace("threadIdx.x < 16", "threadIdx.x < 64")
    assert "KL207" in codes(whole_block.replace("HOLE", "cg::sync(tile);"))
