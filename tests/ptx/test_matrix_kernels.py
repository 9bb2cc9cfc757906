"""Kernels with `wmma`, compiled from CUDA, compute what numpy does; what a warp may not do is found with its line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel_lsp.ptx.executor_process import Session
from tests.ptx.harness import Executor
from tests.ptx.test_kernels import from_bf16, to_bf16

RNG = np.random.default_rng(5)
PAD = 16
"""Elements between one row and the next, so that a stride that is taken for a width shows."""
SOURCE = """
#include <mma.h>
#include <cuda_bf16.h>
using namespace nvcuda;
using bf16 = __nv_bfloat16;
using tf32 = wmma::precision::tf32;
template <class T> struct stored { using type = T; };
template <> struct stored<tf32> { using type = float; };
#define CELL template <int M, int N, int K, class T, class C, class LA, class LB, int OUT_IS_ROW>
CELL __global__ void cell(const typename stored<T>::type* a, const typename stored<T>::type* b, const C* c, C* d,
                          int lda, int ldb, int ldc, int ldd) {
    wmma::fragment<wmma::matrix_a, M, N, K, T, LA> fa;
    wmma::fragment<wmma::matrix_b, M, N, K, T, LB> fb;
    wmma::fragment<wmma::accumulator, M, N, K, C> fc, fd;
    wmma::load_matrix_sync(fa, a, lda);
    wmma::load_matrix_sync(fb, b, ldb);
    wmma::load_matrix_sync(fc, c, ldc, wmma::mem_row_major);
    wmma::fill_fragment(fd, C(0));
    wmma::mma_sync(fd, fa, fb, fd);
    for (int i = 0; i < fd.num_elements; ++i) fd.x[i] = fd.x[i] + fd.x[i] + fc.x[i];
    wmma::store_matrix_sync(d, fd, ldd, OUT_IS_ROW ? wmma::mem_row_major : wmma::mem_col_major);
}
using half_a = wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major>;
using half_b = wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major>;
using sums = wmma::fragment<wmma::accumulator, 16, 16, 16, float>;
extern "C" __global__ void round_to_tf32(const float* x, float* out) {
    out[threadIdx.x] = wmma::__float_to_tf32(x[threadIdx.x]);
}
extern "C" __global__ void part(const half* x, float* out, int n, int offset, int ld) {
    half_a fa; half_b fb; sums fc;
    __shared__ __align__(32) half s[256];
    if (threadIdx.x >= n) return;
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fa, x + offset, ld);
    wmma::load_matrix_sync(fb, x, 16);  // LINE part
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(out, fc, 16, wmma::mem_row_major);
}
extern "C" __global__ void diverged(const half* x, float* out) {
    half_a fa; half_b fb; sums fc;
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fa, x, 16);
    wmma::load_matrix_sync(fb, x, 16);
    if (x[threadIdx.x] > __float2half(0.0f))
        wmma::mma_sync(fc, fa, fb, fc);  // LINE diverged
    __syncwarp();
    wmma::store_matrix_sync(out, fc, 16, wmma::mem_row_major);
}
extern "C" __global__ void own_address(const half* x, float* out) {
    half_a fa; half_b fb; sums fc;
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fa, x + threadIdx.x / 16 * 32, 16);  // LINE own_address
    wmma::load_matrix_sync(fb, x, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(out, fc, 16, wmma::mem_row_major);
}
extern "C" __global__ void staged(const half* x, float* out, int n, int is_in_step) {
    half_a fa; half_b fb; sums fc;
    __shared__ __align__(32) half s[256];
    for (int i = threadIdx.x; i < n; i += 32) s[i] = x[i];
    if (is_in_step) __syncwarp();
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fa, s, 16);  // LINE staged
    wmma::load_matrix_sync(fb, x, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(out, fc, 16, wmma::mem_row_major);
}
extern "C" __global__ void restaged(const half* x, float* out) {
    half_a fa; half_b fb; sums fc;
    __shared__ __align__(32) half s[256];
    wmma::fill_fragment(fc, 0.0f);
    wmma::load_matrix_sync(fb, x, 16);
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
        for (int i = threadIdx.x; i < 256; i += 32) s[i] = x[(i + turn) % 256];
        __syncwarp();
        wmma::load_matrix_sync(fa, s, 16);
        wmma::mma_sync(fc, fa, fb, fc);
    }
    wmma::store_matrix_sync(out, fc, 16, wmma::mem_row_major);
}
extern "C" __global__ void rows(const half* x, unsigned* out, int offset, int stride) {
    __shared__ __align__(32) half s[256];
    for (int i = threadIdx.x; i < 256; i += 32) s[i] = x[i];
    __syncwarp();
    unsigned r, at = (unsigned)__cvta_generic_to_shared(s + offset + threadIdx.x * stride);
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r) : "r"(at));  // LINE rows
    out[threadIdx.x] = r;
}
extern "C" __global__ void reads_back(const half* x, float* out, int is_in_step) {
    sums fc;
    __shared__ __align__(32) float s[256];
    for (int i = threadIdx.x; i < 256; i += 32) s[i] = 0.0f;
    __syncwarp();
    wmma::fill_fragment(fc, 3.0f);
    wmma::store_matrix_sync(s, fc, 16, wmma::mem_row_major);
    if (is_in_step) __syncwarp();
    for (int i = 0; i < 8; ++i) out[threadIdx.x + 32 * i] = s[255 - threadIdx.x - 32 * i];
}
"""
DTYPES = {"half": "f2", "bf16": "u2", "tf32": "f4", "float": "f4", "double": "f8", "int": "i4"}
DTYPES |= {"signed char": "i1", "unsigned char": "u1"}
BUDGETS = {"float": 2.0**-20, "half": 2.0**-9, "double": 2e-15, "int": 0.0}
"""Relative to the sum of magnitudes."""
_HALF_SHAPES = ((16, 16, 16), (32, 8, 16), (8, 32, 16))
_LAYOUTS = (("row", "row"), ("row", "col"), ("col", "row"), ("col", "col"))
CELLS = [
    *((shape, "half", "float", *held, 1) for shape in _HALF_SHAPES for held in _LAYOUTS[1:]),
    *((shape, "half", "half", *_LAYOUTS[0], 0) for shape in _HALF_SHAPES),
    *((shape, "bf16", "float", *held, 0) for shape in _HALF_SHAPES for held in _LAYOUTS[:2]),
    *(((16, 16, 8), "tf32", "float", *held, 1) for held in _LAYOUTS),
    *(((8, 8, 4), "double", "double", *held, 0) for held in _LAYOUTS[1:3]),
    *((shape, "signed char", "int", "row", "row", 1) for shape in _HALF_SHAPES),
    ((16, 16, 16), "unsigned char", "int", "col", "row", 0),
]


def cell_name(cell) -> str:
    (m, n, k), kind, sums, a, b, out_is_row = cell
    return f"cell<{m}, {n}, {k}, {kind}, {sums}, wmma::{a}_major, wmma::{b}_major, {out_is_row}>"


def line_of(mark: str) -> int:
    return next(number for number, line in enumerate(SOURCE.split("\n"), 1) if line.endswith(f"// LINE {mark}"))


@pytest.fixture(scope="module")
def executor(session, compile_cuda, tmp_path_factory) -> Executor:
    """All kernels in one module, compiled once."""
    built = compile_cuda(SOURCE, *map(cell_name, CELLS))
    return Executor(Session(session.compiler), built.ptx, tmp_path_factory.mktemp("wmma"), built.symbols)


def drawn(kind: str, shape: tuple[int, int]) -> np.ndarray:
    """Random values that the type holds."""
    if kind in ("signed char", "unsigned char", "int"):
        low, high = {"signed char": (-128, 128), "unsigned char": (0, 256), "int": (-99, 99)}[kind]
        return RNG.integers(low, high, shape).astype("f8")
    values = RNG.standard_normal(shape)
    if kind in ("bf16", "tf32"):
        return from_bf16(to_bf16(values)).astype("f8")
    return values.astype(DTYPES[kind]).astype("f8")


def in_memory(kind: str, values: np.ndarray, *, is_row: bool) -> np.ndarray:
    """Return the values as memory holds them, rows `PAD` elements apart."""
    stored = values if is_row else values.T
    padded = np.full((stored.shape[0], stored.shape[1] + PAD), 77.0)
    padded[:, : stored.shape[1]] = stored
    return to_bf16(padded) if kind == "bf16" else padded.astype(DTYPES[kind])


@pytest.mark.parametrize("cell", CELLS, ids=cell_name)
def test_a_warp_multiplies_what_it_loads_and_stores_it(executor, cell):
    (m, n, k), kind, sums, a_held, b_held, out_is_row = cell
    a, b, c = drawn(kind, (m, k)), drawn(kind, (k, n)), drawn(sums, (m, n))
    inputs = {
        "a": in_memory(kind, a, is_row=a_held == "row"),
        "b": in_memory(kind, b, is_row=b_held == "row"),
        "c": in_memory(sums, c, is_row=True),
    }
    before = in_memory(sums, np.zeros((m, n)), is_row=bool(out_is_row))
    strides = tuple(array.shape[1] for array in (*inputs.values(), before))
    ran = executor.run(
        cell_name(cell), inputs=inputs, outputs={"d": before}, arguments=("a", "b", "c", "d", *strides), fills={"d": 7}
    )
    assert ran.findings == []
    found = ran.arrays["d"].astype("f8")
    assert (found[:, -PAD:] == 7).all()
    found = found[:, :-PAD] if out_is_row else found[:, :-PAD].T
    budget = BUDGETS[sums] * (2 * abs(a) @ abs(b) + abs(c))
    assert (abs(found - (2 * a @ b + c)) <= budget).all()


def test_a_float_is_rounded_to_tf32_with_ties_away_from_zero(executor):
    x = np.array([1.0, 1.0 + 2.0**-11, -1.0 - 2.0**-11, 1.0 + 2.0**-12, 3.0e38, *RNG.standard_normal(27)], "f4")
    ran = executor.run("round_to_tf32", inputs={"x": x}, outputs={"out": np.zeros(32, "f4")})
    scale = 2.0 ** (np.floor(np.log2(abs(x.astype("f8")))) - 10)
    expected = np.sign(x) * np.floor(abs(x.astype("f8")) / scale + 0.5) * scale
    assert (ran.arrays["out"] == expected).all()


def part(executor, kernel, *arguments, block=32, x=None):
    x = RNG.standard_normal(256).astype("f2") if x is None else x
    return executor.run(
        kernel,
        block=block,
        inputs={"x": x},
        outputs={"out": np.zeros(256, "f4")},
        arguments=("x", "out", *arguments),
    )


@pytest.mark.parametrize("block", [32, 16])
def test_a_warp_without_all_its_lanes_cannot_multiply(executor, block):
    finding = part(executor, "part", 31, 0, 16, block=block).finding()
    assert finding["code"] == "incomplete-warp"
    assert f"{min(block, 31)} lanes" in finding["message"]


def test_lanes_that_go_another_way_are_waited_for_in_vain(executor):
    x = np.ones(256, "f2")
    x[7] = -1
    finding = part(executor, "diverged", x=x).finding()
    assert (finding["code"], finding["line"]) == ("barrier-deadlock", line_of("diverged"))


def test_all_lanes_must_give_the_same_address(executor):
    finding = part(executor, "own_address", x=np.ones(512, "f2")).finding()
    assert (finding["code"], finding["line"]) == ("incomplete-warp", line_of("own_address"))


@pytest.mark.parametrize(
    ("offset", "stride", "code"),
    [(16, 16, "out-of-bounds-read"), (8, 16, "misaligned-access"), (0, 20, "misaligned-access")],
)
def test_a_matrix_in_the_wrong_place_is_found_at_its_line(executor, offset, stride, code):
    finding = part(executor, "part", 32, offset, stride).finding()
    assert (finding["code"], finding["line"]) == (code, line_of("part") - 1)


def test_what_nothing_wrote_is_found(executor):
    finding = part(executor, "staged", 250, 1).finding()
    assert (finding["code"], finding["line"]) == ("uninitialized-read", line_of("staged"))
    assert part(executor, "staged", 256, 1).findings == []


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_a_matrix_is_loaded_before_the_other_lanes_have_arrived(executor, order):
    x = RNG.standard_normal(256).astype("f2")
    ran = executor.run(
        "staged",
        inputs={"x": x},
        outputs={"out": np.zeros(256, "f4")},
        arguments=("x", "out", 256, 0),
        thread_order=order,
    )
    assert [finding["code"] for finding in ran.findings] == ["uninitialized-read"]


@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_what_follows_a_product_follows_it_for_all_lanes(executor, order):
    x = RNG.standard_normal(256).astype("f2")
    ran = executor.run(
        "restaged", inputs={"x": x}, outputs={"out": np.zeros(256, "f4")}, thread_order=order, watches_races=True
    )
    assert ran.findings == []
    matrix = x.astype("f8").reshape(16, 16)
    expected = (matrix + np.roll(x, -1).astype("f8").reshape(16, 16)) @ matrix.T
    assert abs(ran.arrays["out"].reshape(16, 16) - expected).max() < 1e-4


def test_a_stored_matrix_is_there_for_others_after_a_barrier(executor):
    assert (part(executor, "reads_back", 1).arrays["out"] == 3).all()
    assert (part(executor, "reads_back", 0).arrays["out"] != 3).any()


@pytest.mark.parametrize(
    ("offset", "stride", "code"), [(0, 8, None), (4, 8, "misaligned-access"), (208, 8, "out-of-bounds-read")]
)
def test_a_row_in_the_wrong_place_is_found_at_its_line(executor, offset, stride, code):
    ran = executor.run(
        "rows",
        inputs={"x": np.ones(256, "f2")},
        outputs={"out": np.zeros(32, "u4")},
        arguments=("x", "out", offset, stride),
    )
    assert [(finding["code"], finding["line"]) for finding in ran.findings] == (
        [(code, line_of("rows"))] if code else []
    )


@pytest.mark.parametrize("name", ["tensor_cores_by_fragments", "tensor_cores_by_instruction"])
def test_a_whole_product_in_tiles_with_ragged_ends(cuda, name):
    m, n, k = 72, 88, 104
    x, y = RNG.standard_normal((m, k)), RNG.standard_normal((k, n))
    tiled = cuda((Path(__file__).parents[1] / "benign" / f"{name}.cu").read_text(), "k")
    is_half = name.endswith("instruction")
    tile, as_stored, as_read = (64, np.float16, np.float32) if is_half else (32, to_bf16, from_bf16)
    left, right = as_stored(x), as_stored(y if is_half else y.T.copy())
    ran = tiled.run(
        "k",
        grid=(-(-n // tile), -(-m // tile)),
        block=128,
        inputs={"x": left, "y": right},
        outputs={"out": np.zeros((m, n), left.dtype)},
        arguments=("x", "y", "out", m, n, k),
    )
    assert ran.findings == []
    a, b = as_read(left).astype("f8"), as_read(right).astype("f8")
    b = b if is_half else b.T
    error = abs(as_read(ran.arrays["out"]).astype("f8") - a @ b)
    assert (error <= 2.0 ** (-11 if is_half else -8) * abs(a @ b) + 2.0**-20 * (abs(a) @ abs(b))).all()


def test_loads_of_matrices_are_counted_in_sectors(executor):
    counters = part(executor, "part", 32, 0, 16).counters
    # Two matrices of 16 rows of 32 bytes, each row read as two halves of a sector, and sums of 16 rows of 64 bytes.
    assert counters["n_global_sectors"] == 2 * 32 + 32
    assert counters["n_global_requests"] == 2 * 4 + 4
    assert (counters["global_load_bytes"], counters["global_store_bytes"]) == (2 * 512, 1024)
    assert counters["n_matrix_operations"] == 2 * 16**3
