"""Planted defects behind votes, loops of macros, constants of templates, sizes of other launches and grids, each beside
correct code of the same form."""

from __future__ import annotations

import pytest

from tests.rules.found_codes import cuda_codes as codes

PICK = """
__global__ void pick(const float* __restrict__ x, float* __restrict__ out, int* __restrict__ n_out, int n) {
    int lane = threadIdx.x % 32;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < BOUND; i += gridDim.x * 256) {
        float v = i < n ? x[i] : 0.0f;
        unsigned positive = __ballot_sync(0xffffffffu, v > 0.0f);
        if (SKIP) continue;
        int base = 0;
        if (lane == 0) base = atomicAdd(n_out, __popc(positive));
        base = __shfl_sync(0xffffffffu, base, 0);
        if (v > 0.0f) out[base + __popc(positive & ((1u << lane) - 1))] = v;
    }
}
void run(const float* x, float* out, int* n_out, int n) { pick<<<(n + 255) / 256, 256>>>(x, out, n_out, n); }
"""
WHOLE_WARPS = "(n + 31) / 32 * 32"


@pytest.mark.parametrize(
    ("bound", "skip", "is_found"),
    [
        (WHOLE_WARPS, "positive == 0", False),
        (WHOLE_WARPS, "__popc(positive) < 2", False),
        (WHOLE_WARPS, "__shfl_sync(0xffffffffu, v, 0) < 0.0f", False),
        (WHOLE_WARPS, "v <= 0.0f", True),
        (WHOLE_WARPS, "(positive >> lane & 1) == 0", True),
        ("(n + 7) / 8 * 8", "positive == 0", True),
        ("n", "positive == 0", True),
    ],
)
def test_lanes_that_leave_together_are_no_missing_lanes(bound: str, skip: str, is_found: bool) -> None:
    assert ("KL206" in codes(PICK.replace("BOUND", bound).replace("SKIP", skip))) is is_found


def test_a_value_that_some_lanes_set_is_no_vote() -> None:
    text = PICK.replace("BOUND", WHOLE_WARPS).replace("SKIP", "lane < 4 ? positive == 0 : v == 0.0f")
    assert "KL206" in codes(text)


MACRO_LOOP = """
#define EACH(i, n) \\
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < (n); i += gridDim.x * blockDim.x)
__global__ void count(const int* __restrict__ key, int* __restrict__ total, float* __restrict__ share, int n) {
    EACH(k, n) {
        BODY
    }
}
"""


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("total[key[k]] += 1;", "KL219"),
        ("if (key[k] < 0) continue; ++total[key[k]];", "KL219"),
        ("if (n > 4) share[k] = 1.0f; __syncthreads();", "KL202"),
        ("atomicAdd(&total[key[k]], 1);", ""),
        ("share[k] += key[k];", ""),
        ("if (key[k] < 0) continue; share[k] *= 2.0f;", ""),
    ],
)
def test_loops_of_macros_are_loops_over_the_grid(body: str, found: str) -> None:
    assert codes(MACRO_LOOP.replace("BODY", body)) & {"KL202", "KL203", "KL219"} == ({found} if found else set())


TILE = """
namespace cg = cooperative_groups;
template <int kSide> struct Tile {
    static constexpr int side = kSide;
    static constexpr int pitch = kSide + PAD;
};
template <typename Shape> __global__ void turn(const float* __restrict__ x, float* __restrict__ y, int n) {
    __shared__ float part[Shape::side][Shape::pitch];
    auto block = cg::this_thread_block();
    auto at = INDEX;
    if (at.x < n) part[at.y][at.x] = x[at.y * n + at.x];
    SYNC
    if (at.x < n) y[at.y * n + at.x] = part[at.x][at.y];
}
void run(const float* x, float* y, int n) {
    using Shape = Tile<16>;
    turn<Shape><<<1, dim3(Shape::side, Shape::side)>>>(x, y, n);
}
"""


@pytest.mark.parametrize("index", ["block.thread_index()", "threadIdx"])
@pytest.mark.parametrize(("pad", "sync", "is_found"), [("1", "block.sync();", False), ("1", "", True)])
def test_constants_of_a_template_size_its_tiles(index: str, pad: str, sync: str, is_found: bool) -> None:
    text = TILE.replace("INDEX", index).replace("PAD", pad).replace("SYNC", sync)
    assert ("KL207" in codes(text)) is is_found


SUM = """
__device__ float total(float x, float* part) {
    part[threadIdx.x] = x;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s /= 2) {
        if (threadIdx.x < s) part[threadIdx.x] += part[threadIdx.x + s];
        __syncthreads();
    }
    return part[0];
}
__global__ void sum_rows(const float* __restrict__ x, float* __restrict__ out, int cols) {
    __shared__ float part[SIZE];
    float sum = 0.0f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) sum += x[blockIdx.x * cols + c];
    sum = total(sum, PART);
    if (threadIdx.x == 0) out[blockIdx.x] = sum;
}
void run(const float* x, float* out, int rows, int cols) {
    if (cols < 1024) sum_rows<<<rows, 128>>>(x, out, cols);
    else sum_rows<<<rows, 512>>>(x, out, cols);
}
"""


@pytest.mark.parametrize(
    ("size", "part", "is_found"),
    [("512", "part", False), ("256", "part", True), ("528", "part + 16", False), ("520", "part + 16", True)],
)
def test_arrays_have_room_for_the_largest_launch(size: str, part: str, is_found: bool) -> None:
    assert ("KL218" in codes(SUM.replace("SIZE", size).replace("PART", part))) is is_found


ROWS = """
#define WIDTH WIDTH_OF_ROWS
__global__ void gather(const float* __restrict__ table, const int* __restrict__ ids, float4* __restrict__ out) {
    const float* row = table + (size_t)ids[blockIdx.x] * WIDTH;
    CHECK out[blockIdx.x * 32 + threadIdx.x] = ((const float4*)row)[threadIdx.x];
}
"""


@pytest.mark.parametrize(
    ("width", "check", "is_found"),
    [("130", "", True), ("128", "", False), ("130", "if ((uintptr_t)row % 16 == 0)", False)],
)
def test_rows_of_a_constant_length_are_rows(width: str, check: str, is_found: bool) -> None:
    text = ROWS.replace("WIDTH_OF_ROWS", width).replace("CHECK", check)
    assert ("KL277" in codes(text)) is is_found


CUBE = """
constexpr SIZE_TYPE SIDE = 2048;
__global__ void zero(float* __restrict__ x, int used) {
    int z = blockIdx.z, y = blockIdx.y;
    CHECK
    TYPE i = (z * SIDE + y) * SIDE + threadIdx.x;
    x[i] = 0.0f;
}
void run(float* x) { zero<<<dim3(2, BLOCKS), 1024>>>(x, 3); }
"""


@pytest.mark.parametrize(
    ("replaced", "is_found"),
    [
        ({}, True),
        ({"BLOCKS": "SIDE, 16"}, False),
        ({"CHECK": "if (z >= used) return;"}, False),
        ({"SIZE_TYPE": "long long"}, False),
    ],
)
def test_a_grid_says_how_large_an_index_becomes(replaced: dict[str, str], is_found: bool) -> None:
    text = CUBE
    for name, value in ({"SIZE_TYPE": "int", "CHECK": "", "TYPE": "int", "BLOCKS": "SIDE, SIDE"}).items():
        text = text.replace(name, replaced.get(name, value))
    assert ("KL278" in codes(text)) is is_found
