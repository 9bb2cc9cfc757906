"""`wgmma` multiplies 64 rows by a tile in shared memory, as the PTX ISA lays both out."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.harness import Executor, Ran

PTX_HEAD = ".version 9.0\n.target sm_90a\n.address_size 64"
RNG = np.random.default_rng(7)
SOURCE = """
// Rows of a and of out are 16 to a warp; the tile has 16 columns of 8 terms, 8 columns by 4 terms together.
// With swizzle 1, the terms of a column are the first of a row of 128 bytes, whose pieces of 16 are exchanged.
extern "C" __global__ void k(const float* a, const float* b, const float* c, float* out, int adds, int swizzle) {
    __shared__ __align__(1024) float tile[2][2][8][4], rows[16][32];
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4, col = lane % 4;
    const int n = threadIdx.x / 8, k = threadIdx.x % 8;
    tile[k / 4][n / 8][n % 8][k % 4] = rows[n][k ^ n % 8 * 4] = b[n * 8 + k];
    FENCE
    __syncthreads();
    unsigned r[4];
    for (int i = 0; i < 4; ++i) r[i] = __float_as_uint(a[(row + i % 2 * 8) * 8 + col + i / 2 * 4]);
    float d[8];
    for (int i = 0; i < 8; ++i) d[i] = c[(row + i / 2 % 2 * 8) * 16 + i / 4 * 8 + col * 2 + i % 2];
    const unsigned at = (unsigned)__cvta_generic_to_shared(swizzle ? &rows[0][0] : &tile[0][0][0][0]);
    const unsigned long long strides = swizzle ? 1ull << 16 | 64ull << 32 : 16ull << 16 | 8ull << 32;
    const unsigned long long described = at >> 4 | strides | (unsigned long long)swizzle << 62;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %13, 0;"
                 "wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32 "  // LINE multiply
                 "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1; }"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
                 : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "l"(described), "r"(adds));
    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");
    for (int i = 0; i < 8; ++i) out[(row + i / 2 % 2 * 8) * 16 + i / 4 * 8 + col * 2 + i % 2] = d[i];
}
"""


def numbers(*shape: int) -> np.ndarray:
    """Return random numbers that TF32 holds."""
    return (RNG.standard_normal(shape).astype("f4").view("u4") & np.uint32(0xFFFFE000)).view("f4")


FENCE = 'asm volatile("fence.proxy.async.shared::cta;" ::: "memory");'


def ran(cuda, adds: int, swizzle: int = 0, fence: str = FENCE) -> tuple[Ran, np.ndarray]:
    """Run the kernel. Returns its report and the sums of float64."""
    a, b, c = numbers(64, 8), numbers(16, 8), numbers(64, 16)
    executor: Executor = cuda(SOURCE.replace("FENCE", fence))
    report = executor.run(
        "k",
        inputs={"a": a, "b": b, "c": c},
        outputs={"out": np.zeros((64, 16), "f4")},
        arguments=("a", "b", "c", "out", adds, swizzle),
        block=128,
        watches_races=True,
    )
    return report, a.astype("f8") @ b.astype("f8").T + adds * c


@pytest.mark.parametrize(("adds", "swizzle"), [(0, 0), (1, 0), (1, 1)])
def test_four_warps_multiply_by_a_tile_in_shared_memory(cuda, adds, swizzle):
    report, wanted = ran(cuda, adds, swizzle)
    assert np.allclose(report.arrays["out"], wanted, rtol=1e-6, atol=1e-6)
    assert not report.findings


def test_a_tile_that_is_written_without_a_proxy_fence_is_found(cuda):
    found = ran(cuda, 0, fence="")[0].finding()
    assert found["code"] == "race"
    assert "by wgmma, which thread" in found["message"]
    assert "with no fence.proxy.async between" in found["message"]


def test_a_tile_with_another_swizzle_is_refused(cuda):
    report, _ = ran(cuda, 0, swizzle=2)
    assert report.findings


@pytest.mark.parametrize(
    "form",
    [
        "m64n16k16.f32.f16.f16 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, {%r0, %r1, %r2, %r3}, %rd0, %p0, 1, 1, 0",
        "m64n16k8.f32.tf32.tf32 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, %rd0, %rd1, %p0, 1, 1",
        "m64n16k8.f32.tf32.tf32 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}, {%r0, %r1, %r2, %r3}, %rd0, %p0, -1, 1",
    ],
)
def test_other_forms_are_unsupported(ptx, form):
    registers = ".reg .b32 %r<4>; .reg .b64 %rd<2>; .reg .f32 %f<8>; .reg .pred %p<1>;"
    text = f".visible .entry k() {{ {registers} wgmma.mma_async.sync.aligned.{form}; ret; }}"
    assert "unsupported" in ptx(f"{PTX_HEAD}\n{text}").loaded
