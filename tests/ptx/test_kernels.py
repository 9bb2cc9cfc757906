"""Real kernels, compiled by NVRTC, compute what numpy computes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.ptx.harness import Scalar

RNG = np.random.default_rng(7)
GUARD = "int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;"


def normal(*shape, dtype="float32"):
    return RNG.standard_normal(shape).astype(dtype)


def to_bf16(values):
    """Round to nearest even, as bits."""
    bits = np.asarray(values, "float32").view("uint32").astype("uint64")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("uint16")


def from_bf16(bits):
    return (np.asarray(bits).astype("uint32") << 16).view("float32")


def check(executor, kernel, expected, *, tolerance=0.0, name="out", **launch):
    """Run, and compare one buffer with what is expected; no finding may appear."""
    ran = executor.run(kernel, **launch)
    assert ran.findings == []
    found = ran.arrays[name]
    if tolerance:
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
    else:
        np.testing.assert_array_equal(found, expected)
    return ran


def test_a_vector_add_covers_a_ragged_tail(cuda):
    x, y = normal(1000), normal(1000)
    executor = cuda(
        f'extern "C" __global__ void add(const float* x, const float* y, float* out, int n) {{ '
        f"{GUARD} out[i] = x[i] + y[i]; }}"
    )
    check(
        executor,
        "add",
        x + y,
        grid=4,
        block=256,
        inputs={"x": x, "y": y},
        outputs={"out": np.zeros(1000, "f4")},
        arguments=("x", "y", "out", 1000),
    )


def test_half_arithmetic_rounds_once(cuda):
    x, y = normal(256, dtype="float16"), normal(256, dtype="float16")
    executor = cuda(
        "#include <cuda_fp16.h>\n"
        'extern "C" __global__ void mul(const __half* x, const __half* y, __half* out) { '
        "int i = threadIdx.x; out[i] = __hmul(x[i], y[i]); }"
    )
    check(executor, "mul", x * y, block=256, inputs={"x": x, "y": y}, outputs={"out": np.zeros(256, "f2")})


def test_bfloat_arithmetic_rounds_once(cuda):
    x, y = to_bf16(normal(256)), to_bf16(normal(256))
    executor = cuda(
        "#include <cuda_bf16.h>\n"
        'extern "C" __global__ void add(const __nv_bfloat16* x, const __nv_bfloat16* y, __nv_bfloat16* out)'
        "{ int i = threadIdx.x; out[i] = __hadd(x[i], y[i]); }"
    )
    expected = to_bf16(from_bf16(x) + from_bf16(y))
    check(executor, "add", expected, block=256, inputs={"x": x, "y": y}, outputs={"out": np.zeros(256, "u2")})


def test_float_to_bfloat_and_back(cuda):
    x = np.concatenate([normal(252) * 1e3, np.float32([np.inf, -np.inf, 3.3e38, 1e-40])])
    executor = cuda(
        "#include <cuda_bf16.h>\n"
        'extern "C" __global__ void narrow(const float* x, __nv_bfloat16* out) { '
        "out[threadIdx.x] = __float2bfloat16(x[threadIdx.x]); }"
    )
    check(executor, "narrow", to_bf16(x), block=256, inputs={"x": x}, outputs={"out": np.zeros(256, "u2")})


def test_a_half2_fused_multiply_add_rounds_once(cuda):
    x, y, z = (normal(256, dtype="float16") for _ in range(3))
    executor = cuda(
        "#include <cuda_fp16.h>\n"
        'extern "C" __global__ void fma2(const __half2* x, const __half2* y, const __half2* z, __half2* out)'
        "{ int i = threadIdx.x; out[i] = __hfma2(x[i], y[i], z[i]); }"
    )
    expected = (x.astype("f8") * y.astype("f8") + z.astype("f8")).astype("f2")
    check(executor, "fma2", expected, block=128, inputs={"x": x, "y": y, "z": z}, outputs={"out": np.zeros(256, "f2")})


REDUCTION = """
template <int BLOCK> __global__ void sum_rows(const float* x, float* out, int n) {
  __shared__ float partial[BLOCK];
  float total = 0.f;
  for (int i = threadIdx.x; i < n; i += BLOCK) total += x[(size_t)blockIdx.x * n + i];
  partial[threadIdx.x] = total;
  __syncthreads();
  for (int offset = BLOCK / 2; offset > 0; offset >>= 1) {
    if (threadIdx.x < offset) partial[threadIdx.x] += partial[threadIdx.x + offset];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}
"""


@pytest.mark.parametrize("block", [32, 64, 256, 1024])
@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
def test_a_block_reduction_is_right_in_every_thread_order(cuda, block, order):
    x = normal(5, 777)
    executor = cuda(REDUCTION, f"sum_rows<{block}>")
    check(
        executor,
        f"sum_rows<{block}>",
        x.astype("f8").sum(1),
        tolerance=1e-4,
        grid=5,
        block=block,
        inputs={"x": x},
        outputs={"out": np.zeros(5, "f4")},
        arguments=("x", "out", 777),
        thread_order=order,
    )


def test_without_its_barrier_a_reduction_depends_on_the_thread_order(cuda):
    x = np.ones((1, 256), "f4")
    executor = cuda(REDUCTION.replace("__syncthreads();", "__syncwarp();"), "sum_rows<256>")
    launch = {"block": 256, "inputs": {"x": x}, "outputs": {"out": np.zeros(1, "f4")}, "arguments": ("x", "out", 256)}
    ran = [executor.run("sum_rows<256>", **launch, thread_order=order) for order in ("forward", "reverse")]
    assert any(not (one.arrays["out"] == 256).all() for one in ran)


def test_a_warp_reduction_by_shuffles(cuda):
    x = normal(8, 32)
    executor = cuda("""
extern "C" __global__ void sum(const float* x, float* out) {
  float v = x[blockIdx.x * 32 + threadIdx.x];
  for (int o = 16; o; o >>= 1) v += __shfl_xor_sync(0xffffffff, v, o);
  if (threadIdx.x == 0) out[blockIdx.x] = v;
}""")
    check(
        executor,
        "sum",
        x.astype("f8").sum(1),
        tolerance=1e-5,
        grid=8,
        inputs={"x": x},
        outputs={"out": np.zeros(8, "f4")},
    )


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("__shfl_sync(~0u, v, 5)", lambda lane: np.full(32, 5)),
        ("__shfl_sync(~0u, v, lane + 3, 8)", lambda lane: lane // 8 * 8 + (lane + 3) % 8),
        ("__shfl_up_sync(~0u, v, 3)", lambda lane: np.where(lane >= 3, lane - 3, lane)),
        ("__shfl_up_sync(~0u, v, 3, 16)", lambda lane: np.where(lane % 16 >= 3, lane - 3, lane)),
        ("__shfl_down_sync(~0u, v, 3)", lambda lane: np.where(lane + 3 < 32, lane + 3, lane)),
        ("__shfl_down_sync(~0u, v, 3, 8)", lambda lane: np.where(lane % 8 + 3 < 8, lane + 3, lane)),
        ("__shfl_xor_sync(~0u, v, 5)", lambda lane: lane ^ 5),
        ("__shfl_xor_sync(~0u, v, 8, 8)", lambda lane: np.where(lane & 8, lane ^ 8, lane)),
        ("__ballot_sync(~0u, lane % 3 == 0)", lambda lane: np.full(32, sum(1 << i for i in range(0, 32, 3)))),
        ("__any_sync(~0u, lane == 9)", lambda lane: np.ones(32)),
        ("__all_sync(~0u, lane == 9)", lambda lane: np.zeros(32)),
        ("__match_any_sync(~0u, lane & 1)", lambda lane: np.where(lane % 2, 0xAAAAAAAA, 0x55555555)),
        ("__reduce_add_sync(~0u, lane)", lambda lane: np.full(32, 496)),
        ("__reduce_max_sync(~0u, -lane)", lambda lane: np.zeros(32)),
        ("__reduce_min_sync(~0u, (unsigned)lane + 4)", lambda lane: np.full(32, 4)),
        ("__reduce_xor_sync(~0u, 1u << lane)", lambda lane: np.full(32, 0xFFFFFFFF)),
        ("__activemask()", lambda lane: np.full(32, 0xFFFFFFFF)),
    ],
)
def test_warp_functions(cuda, call, expected):
    executor = cuda(
        f'extern "C" __global__ void warp(int* out) {{ int lane = threadIdx.x; int v = lane; out[lane] = {call}; }}'
    )
    lane = np.arange(32)
    wanted = expected(lane).astype("int64").astype("uint32").view("int32")
    check(executor, "warp", wanted, outputs={"out": np.zeros(32, "i4")}, thread_order="random")


def test_a_shuffle_among_some_lanes_of_a_divergent_warp(cuda):
    executor = cuda("""
extern "C" __global__ void warp(int* out) {
  int lane = threadIdx.x;
  if (lane < 8) out[lane] = __shfl_xor_sync(0xff, lane, 7); else out[lane] = __shfl_xor_sync(0xffffff00, lane * 2, 24);
}""")
    lane = np.arange(32)
    source = lane ^ 24
    absent = np.array([0x7FFFFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0], "u4").view("i4")[source & 3]
    expected = np.where(lane < 8, lane ^ 7, np.where(source >= 8, source * 2, absent))
    check(executor, "warp", expected, outputs={"out": np.zeros(32, "i4")})


@pytest.mark.parametrize("better", ["u > v", "u < v", "u > v || isnan(u)", "fabsf(u) > fabsf(v)"])
def test_what_an_exited_lane_gives_to_a_shuffle_shows_in_a_maximum_and_a_minimum(cuda, better):
    executor = cuda(f"""
extern "C" __global__ void best(float* out) {{
  if (threadIdx.x >= 5) return;
  float v = 1.0f + threadIdx.x;
  for (int o = 16; o; o >>= 1) {{ const float u = __shfl_down_sync(~0u, v, o); if ({better}) v = u; }}
  if (threadIdx.x == 0) out[0] = v;
}}""")
    ran = executor.run("best", outputs={"out": np.zeros(1, "f4")})
    assert ran.arrays["out"][0] not in (1.0, 5.0)


def test_lanes_that_have_exited_do_not_hold_up_a_barrier(cuda):
    executor = cuda("""
extern "C" __global__ void early(int* out) {
  __shared__ int s[64];
  if (threadIdx.x >= 40) return;
  s[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = s[39 - threadIdx.x];
}""")
    check(executor, "early", np.arange(40)[::-1], block=64, outputs={"out": np.zeros(40, "i4")})


def test_barrier_reductions(cuda):
    executor = cuda("""
extern "C" __global__ void count(int* out) {
  int n = __syncthreads_count(threadIdx.x % 3 == 0);
  int all = __syncthreads_and(threadIdx.x < 96), any = __syncthreads_or(threadIdx.x == 70);
  out[threadIdx.x] = n * 100 + all * 10 + any;
}""")
    check(executor, "count", np.full(96, 3211), block=96, outputs={"out": np.zeros(96, "i4")})


def test_atomics_of_every_block_add_up(cuda):
    executor = cuda("""
extern "C" __global__ void tally(int* out, float* sum, unsigned* biggest) {
  atomicAdd(out, 1); atomicAdd(sum, 0.5f); atomicMax(biggest, blockIdx.x * blockDim.x + threadIdx.x);
}""")
    ran = executor.run(
        "tally",
        grid=10,
        block=64,
        outputs={"out": np.ones(1, "i4"), "sum": np.ones(1, "f4"), "biggest": np.ones(1, "u4")},
        fills={"out": 0, "sum": 0, "biggest": 0},
    )
    assert ran.findings == []
    assert [ran.arrays[name][0] for name in ("out", "sum", "biggest")] == [640, 320.0, 639]


def test_compare_and_swap_builds_a_float_maximum(cuda):
    x = normal(512)
    executor = cuda("""
extern "C" __global__ void top(const float* x, int* out) {
  int old = *out, assumed;
  float v = x[blockIdx.x * blockDim.x + threadIdx.x];
  do { assumed = old; old = atomicCAS(out, assumed, __float_as_int(fmaxf(v, __int_as_float(assumed))));
      } while (old != assumed);
}""")
    ran = executor.run("top", grid=4, block=128, inputs={"x": x}, outputs={"out": np.zeros(1, "i4")}, fills={"out": 0})
    assert ran.findings == []
    assert ran.arrays["out"].view("f4")[0] == x.max()


def test_half_atomics(cuda):
    executor = cuda(
        "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
        'extern "C" __global__ void add(__half2* h, __nv_bfloat16* b) { '
        "atomicAdd(h, __floats2half2_rn(1.f, 2.f)); atomicAdd(b, __float2bfloat16(0.5f)); }"
    )
    ran = executor.run("add", outputs={"h": np.zeros(2, "f2"), "b": np.zeros(2, "u2")}, fills={"h": 0, "b": 0})
    assert ran.findings == []
    assert ran.arrays["h"].tolist() == [32, 64]
    assert from_bf16(ran.arrays["b"]).tolist() == [16, 0]


def test_the_last_block_sees_what_the_others_wrote(cuda):
    executor = cuda("""
__device__ unsigned arrived = 0;
extern "C" __global__ void finish(int* partial, int* out) {
  __shared__ bool last;
  if (threadIdx.x == 0) { partial[blockIdx.x] = blockIdx.x + 1; __threadfence();
      last = atomicAdd(&arrived, 1) == gridDim.x - 1; }
  __syncthreads();
  if (last && threadIdx.x == 0) { int s = 0; for (int i = 0; i < gridDim.x;
      i++) s += ((volatile int*)partial)[i]; *out = s; }
}""")
    buffers = {
        "scratch": {"partial": np.zeros(20, "i4")},
        "outputs": {"out": np.zeros(1, "i4")},
        "arguments": ("partial", "out"),
    }
    for _ in range(2):
        check(executor, "finish", [210], grid=20, **buffers)


def test_a_block_may_wait_for_a_later_block(cuda):
    executor = cuda("""
extern "C" __global__ void wait(int* flag, int* out) {
  if (blockIdx.x == gridDim.x - 1) { if (threadIdx.x == 0) atomicExch(flag, 7); }
  else { while (atomicAdd(flag, 0) == 0) {} }
  out[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(flag, 0);
}""")
    ran = executor.run(
        "wait",
        grid=6,
        block=32,
        scratch={"flag": np.ones(1, "i4")},
        outputs={"out": np.zeros(192, "i4")},
        fills={"flag": 0},
        arguments=("flag", "out"),
    )
    assert ran.findings == []
    assert (ran.arrays["out"] == 7).all()


def test_a_spin_lock_in_a_warp_makes_progress(cuda):
    executor = cuda("""
extern "C" __global__ void guarded(int* lock, int* out) {
  while (atomicCAS(lock, 0, 1) != 0) {}
  *(volatile int*)out = *(volatile int*)out + 1;
  atomicExch(lock, 0);
}""")
    ran = executor.run(
        "guarded",
        grid=2,
        block=64,
        scratch={"lock": np.ones(1, "i4")},
        outputs={"out": np.ones(1, "i4")},
        fills={"lock": 0, "out": 0},
        arguments=("lock", "out"),
    )
    assert ran.arrays["out"][0] == 128


def test_dynamic_shared_memory_follows_static(cuda):
    executor = cuda("""
extern "C" __global__ void reverse(int* out, int n) {
  extern __shared__ int dynamic[];
  __shared__ int fixed[32];
  fixed[threadIdx.x] = 1000;
  dynamic[threadIdx.x] = threadIdx.x;
  __syncthreads();
  out[threadIdx.x] = dynamic[n - 1 - threadIdx.x] + fixed[threadIdx.x];
}""")
    check(
        executor,
        "reverse",
        np.arange(32)[::-1] + 1000,
        shared_bytes=128,
        outputs={"out": np.zeros(32, "i4")},
        arguments=("out", 32),
    )


def test_local_arrays_and_device_functions(cuda):
    executor = cuda("""
__device__ __noinline__ int pick(const int* table, int k) { return table[k % 8]; }
__device__ __noinline__ float4 scale(float4 v, float s) { v.x *= s; v.w += s; return v; }
extern "C" __global__ void call(float* out, int shift) {
  int table[8];
  for (int k = 0; k < 8; k++) table[(k + shift) % 8] = k * 10;
  float4 v = scale(make_float4(threadIdx.x, 1, 2, 3), 2.f);
  out[threadIdx.x] = pick(table, threadIdx.x) + v.x + v.w;
}""")
    i = np.arange(32)
    check(executor, "call", ((i - 3) % 8) * 10 + 2 * i + 5, outputs={"out": np.zeros(32, "f4")}, arguments=("out", 3))


def test_a_device_function_with_a_barrier(cuda):
    executor = cuda("""
__device__ __noinline__ int swap(int* s, int v) { s[threadIdx.x] = v; __syncthreads();
    int r = s[threadIdx.x ^ 33]; __syncthreads(); return r; }
extern "C" __global__ void twice(int* out) { __shared__ int s[64];
    out[threadIdx.x] = swap(s, swap(s, threadIdx.x) + 100); }
""")
    check(executor, "twice", np.arange(64) + 100, block=64, outputs={"out": np.zeros(64, "i4")})


def test_recursion_is_unsupported_and_says_where(cuda):
    executor = cuda("""
__device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
extern "C" __global__ void call(int* out) {
  *out = fib(9); }
""")
    assert executor.loaded["unsupported"]["line"] in (2, 4)
    assert "calls itself" in executor.loaded["unsupported"]["message"]


def test_structs_constants_and_module_variables(cuda):
    executor = cuda("""
struct Weights { float w[5]; int n; };
__constant__ float table[4] = {1.f, 2.f, 4.f, 8.f};
__device__ int calls = 40;
extern "C" __global__ void mix(float* out, int k) {
  int c = atomicAdd(&calls, 1);
  out[threadIdx.x] = table[(threadIdx.x + k) & 3] + (c >= 40);
}""")
    for _ in range(2):
        check(
            executor,
            "mix",
            np.array([1, 2, 4, 8] * 8)[(np.arange(32) + 1) % 4] + 1,
            outputs={"out": np.zeros(32, "f4")},
            arguments=("out", 1),
        )


def test_scalars_of_every_type(cuda):
    executor = cuda("""
extern "C" __global__ void all(double* out, bool b, unsigned char c, short s, long long l, float f, double d,
                               size_t z) {
  out[0] = b; out[1] = c; out[2] = s; out[3] = l; out[4] = f; out[5] = d; out[6] = z;
}""")
    arguments = (
        "out",
        Scalar("bool", True),
        Scalar("unsigned char", 200),
        Scalar("short", -7),
        Scalar("long long", -(2**40)),
        0.5,
        Scalar("double", math.pi),
        Scalar("size_t", 2**40),
    )
    check(
        executor,
        "all",
        [1, 200, -7, -(2**40), 0.5, math.pi, 2**40],
        block=1,
        outputs={"out": np.zeros(7)},
        arguments=arguments,
    )


def test_a_grid_and_a_block_in_three_dimensions(cuda):
    executor = cuda("""
extern "C" __global__ void where(int* out) {
  int b = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  int t = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[b * blockDim.x * blockDim.y * blockDim.z + t] = b * 1000 + t;
}""")
    expected = (np.arange(24)[:, None] * 1000 + np.arange(30)).ravel()
    check(executor, "where", expected, grid=(2, 3, 4), block=(5, 3, 2), outputs={"out": np.zeros(720, "i4")})


def test_float4_loads_and_stores(cuda):
    x = normal(1024)
    executor = cuda(
        'extern "C" __global__ void copy(const float4* x, float4* out) { float4 v = x[threadIdx.x]; '
        "v.y *= 2; out[threadIdx.x] = v; }"
    )
    expected = x.copy()
    expected[1::4] *= 2
    check(executor, "copy", expected, block=256, inputs={"x": x}, outputs={"out": np.zeros(1024, "f4")})


MATH = {
    "expf(x)": (np.exp, 2e-7),
    "exp2f(x)": (np.exp2, 2e-7),
    "logf(fabsf(x))": (lambda x: np.log(np.abs(x)), 4e-7),
    "log2f(fabsf(x))": (lambda x: np.log2(np.abs(x)), 4e-7),
    "log1pf(fabsf(x))": (lambda x: np.log1p(np.abs(x)), 4e-7),
    "tanhf(x)": (np.tanh, 4e-7),
    "erff(x)": (np.vectorize(math.erf), 4e-7),
    "sinf(x * 1000)": (lambda x: np.sin((x * np.float32(1000)).astype("f4").astype("f8")), 4e-7),
    "cosf(x * 1e6f)": (lambda x: np.cos((x.astype("f4") * np.float32(1e6)).astype("f8")), 4e-7),
    "powf(fabsf(x), 2.5f)": (lambda x: np.abs(x) ** 2.5, 6e-7),
    "sqrtf(fabsf(x))": (lambda x: np.sqrt(np.abs(x)), 6e-8),
    "rsqrtf(fabsf(x))": (lambda x: 1 / np.sqrt(np.abs(x)), 3e-7),
    "cbrtf(x)": (np.cbrt, 4e-7),
    "1.f / x": (lambda x: 1 / x, 6e-8),
    "__expf(x)": (np.exp, 1e-6),
    "__fdividef(1.f, x)": (lambda x: 1 / x, 3e-7),
    "floorf(x) + ceilf(x) * 10 + truncf(x) * 100 + rintf(x) * 1000": (
        lambda x: np.floor(x) + np.ceil(x) * 10 + np.trunc(x) * 100 + np.rint(x) * 1000,
        0,
    ),
    "(float)exp((double)x)": (np.exp, 6e-8),
    "(float)(sin((double)x) * 1e6) * 1e-6f": (np.sin, 2e-7),
    "(float)log(fabs((double)x))": (lambda x: np.log(np.abs(x)), 6e-8),
    "(float)tgamma(fabs((double)x) + 1)": (np.vectorize(lambda x: math.gamma(abs(x) + 1)), 1e-7),
    "fmodf(x, 0.3f)": (lambda x: np.fmod(x, np.float64(np.float32(0.3))), 1e-6),
    "x < 0 ? -1.f : (x > 1 ? 1.f : x)": (lambda x: np.where(x < 0, -1, np.minimum(x, 1)), 0),
}


@pytest.mark.parametrize("expression", MATH)
def test_functions_of_the_math_library(cuda, expression):
    function, tolerance = MATH[expression]
    x = np.concatenate([normal(1000), np.float32([0.5, -0.5, 3, -3, 1e-3, 20, -20, 7])])
    executor = cuda(
        f'extern "C" __global__ void f(const float* in, float* out, int n) {{ {GUARD} float x = in[i]; '
        f"out[i] = {expression}; }}"
    )
    ran = executor.run(
        "f", grid=8, block=128, inputs={"in": x}, outputs={"out": np.zeros_like(x)}, arguments=("in", "out", x.size)
    )
    assert ran.findings == []
    np.testing.assert_allclose(
        ran.arrays["out"],
        function(x.astype("f8")),
        rtol=max(tolerance, 1e-12),
        atol=1e-6 if "fmod" in expression else 1e-10,
    )


@pytest.mark.parametrize("kind", ["int", "unsigned", "long long", "unsigned long long", "short"])
def test_integer_division_and_remainder(cuda, kind):
    dtype = {"int": "i4", "unsigned": "u4", "long long": "i8", "unsigned long long": "u8", "short": "i2"}[kind]
    limits = np.iinfo(dtype)
    a = RNG.integers(limits.min, limits.max, 256, dtype=dtype)
    b = np.concatenate([RNG.integers(1, 100, 128, dtype=dtype), RNG.integers(1, limits.max, 128, dtype=dtype)])
    executor = cuda(
        f'extern "C" __global__ void f(const {kind}* a, const {kind}* b, {kind}* q, {kind}* r) {{ '
        "int i = threadIdx.x; q[i] = a[i] / b[i]; r[i] = a[i] % b[i]; }"
    )
    ran = executor.run(
        "f", block=256, inputs={"a": a, "b": b}, outputs={"q": np.zeros(256, dtype), "r": np.zeros(256, dtype)}
    )
    quotient = [
        int(math.copysign(abs(int(x)) // int(y), int(x)))
        if abs(int(x)) < 2**50
        else (abs(int(x)) // int(y)) * (1 if x >= 0 else -1)
        for x, y in zip(a, b, strict=True)
    ]
    np.testing.assert_array_equal(ran.arrays["q"], np.array(quotient, dtype))
    np.testing.assert_array_equal(
        ran.arrays["r"], np.array([int(x) - int(q) * int(y) for x, y, q in zip(a, b, quotient, strict=True)], dtype)
    )


def test_double_arithmetic_is_ieee(cuda):
    a, b, c = normal(64, dtype="f8"), normal(64, dtype="f8"), normal(64, dtype="f8")
    executor = cuda(
        'extern "C" __global__ void f(const double* a, const double* b, const double* c, double* out) { '
        "int i = threadIdx.x; out[i] = __dadd_rn(__dmul_rn(a[i], b[i]), c[i]) / sqrt(fabs(b[i])); }"
    )
    check(
        executor,
        "f",
        (a * b + c) / np.sqrt(np.abs(b)),
        block=64,
        inputs={"a": a, "b": b, "c": c},
        outputs={"out": np.zeros(64)},
    )


def test_a_switch_and_a_long_loop(cuda):
    executor = cuda("""
extern "C" __global__ void collatz(int* out) {
  unsigned v = threadIdx.x + 1; int n = 0;
  while (v != 1) { switch (v % 4) { case 0: v /= 4; n += 2; break; case 2: v /= 2; n++; break;
      default: v = 3 * v + 1; n++; } }
  out[threadIdx.x] = n;
}""")

    def length(v):
        n = 0
        while v != 1:
            v, n = (v // 2, n + 1) if v % 2 == 0 else (3 * v + 1, n + 1)
        return n

    check(executor, "collatz", [length(i + 1) for i in range(128)], block=128, outputs={"out": np.zeros(128, "i4")})


def test_softmax_of_rows(cuda):
    x = normal(16, 100)
    executor = cuda("""
extern "C" __global__ void softmax(const float* x, float* out, int n) {
  const float* row = x + (size_t)blockIdx.x * n;
  float top = -1e30f, sum = 0;
  for (int i = threadIdx.x; i < n; i += 32) top = fmaxf(top, row[i]);
  for (int o = 16; o; o >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, o));
  for (int i = threadIdx.x; i < n; i += 32) sum += expf(row[i] - top);
  for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
  for (int i = threadIdx.x; i < n; i += 32) out[(size_t)blockIdx.x * n + i] = expf(row[i] - top) / sum;
}""")
    e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    check(
        executor,
        "softmax",
        e / e.sum(1, keepdims=True),
        tolerance=1e-6,
        grid=16,
        inputs={"x": x},
        outputs={"out": np.zeros_like(x)},
        arguments=("x", "out", 100),
    )


def test_printf_is_ignored(cuda):
    executor = cuda('extern "C" __global__ void say(int* out) { printf("%d\\n", threadIdx.x); out[threadIdx.x] = 1; }')
    check(executor, "say", np.ones(32), outputs={"out": np.zeros(32, "i4")})


def test_tensors_without_elements(cuda):
    executor = cuda(f'extern "C" __global__ void copy(const float* x, float* out, int n) {{ {GUARD} out[i] = x[i]; }}')
    empty = np.zeros((0, 4), "f4")
    check(executor, "copy", empty, inputs={"x": empty}, outputs={"out": empty}, arguments=("x", "out", 0))


def test_an_empty_grid_runs_nothing(cuda):
    executor = cuda('extern "C" __global__ void set(float* out) { *out = 1; }')
    check(executor, "set", [5], grid=0, outputs={"out": np.full(1, 5, "f4")})


def test_what_is_discarded_is_lost_and_nothing_beside_it(cuda):
    text = """extern "C" __global__ void k(float* out) {
    out[threadIdx.x] = threadIdx.x;
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("discard.global.L2 [%0], 128;" ::"l"(out + 32) : "memory");
}"""
    ran = cuda(text).run("k", block=96, outputs={"out": np.zeros(96, "f4")})
    expected = np.arange(96, dtype="f4")
    expected[32:64] = ran.arrays["out"][32]
    assert ran.arrays["out"][32] < -1e38
    np.testing.assert_array_equal(ran.arrays["out"], expected)


def test_a_discard_past_the_end_is_out_of_bounds(cuda):
    text = """extern "C" __global__ void k(float* out) {
    out[threadIdx.x] = 1; asm volatile("discard.global.L2 [%0], 128;" ::"l"(out + 16) : "memory");
}"""
    found = cuda(text).run("k", block=32, outputs={"out": np.zeros(32, "f4")}).finding()
    assert found["code"] == "out-of-bounds-write"
