"""A thread's own arrays: what lies past them is nobody's, and what nothing wrote may be anything."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.test_findings import check_finding, kernel, launch

RING = "volatile float a[{n}]; for (int k = 0; k < 3; ++k) a[(k + threadIdx.x) % 3] = k; out[threadIdx.x] = a[0];"
FRAME = """
extern "C" __global__ void k(const float* x, float* out, int n) {
  float a[4];
  for (int i = 0; i < 4; ++i) a[(i + n) & 3] = x[i];
  float* p = a + (n & 1);
  float total = 0;
  for (int i = 0; i < 3; ++i) total += p[(i + n) % 3];
  out[threadIdx.x] = total;
}"""
NOINLINE = """
__device__ __noinline__ float last(const float* x, int n) {
  float own[2];
  own[n & 1] = x[0]; own[~n & 1] = x[1];
  return ((volatile float*)own)[n];
}
extern "C" __global__ void k(const float* x, float* out, int n) {
  float a[8];
  for (int i = 0; i < 8; ++i) a[(i + n) & 7] = x[i];
  out[threadIdx.x] = last(x, n) + a[n & 7];
}"""


def test_an_index_past_a_local_array_is_found(cuda):
    found = check_finding(cuda(kernel(RING.format(n=2))), "out-of-bounds-write", "the thread's local memory (8 bytes)")
    assert "right after the end of" in found["message"]
    assert launch(cuda(kernel(RING.format(n=3)))).findings == []


def test_arithmetic_within_a_local_array_is_no_error(cuda):
    for n in (0, 1, 2):
        assert launch(cuda(FRAME), arguments=("x", "out", n)).findings == []


def test_an_index_past_the_array_of_a_function_does_not_reach_its_callers(cuda):
    check_finding(cuda(NOINLINE), "out-of-bounds-read", "local memory (8 bytes)", arguments=("x", "out", 2))
    assert launch(cuda(NOINLINE), arguments=("x", "out", 1)).findings == []


@pytest.mark.parametrize(("seed", "byte"), [(0, 0xFF), (1, 0x7F), (2, 0xFE)])
def test_local_memory_that_nothing_wrote_holds_another_byte_by_the_seed(cuda, seed, byte):
    executor = cuda(
        kernel("volatile float a[4]; if (x[0] > 2) a[threadIdx.x & 3] = 1; out[threadIdx.x] = a[threadIdx.x & 3];")
    )
    ran = launch(executor, seed=seed, block=1, outputs={"out": np.zeros(1, "f4")})
    assert ran.arrays["out"].tobytes() == bytes([byte]) * 4
