"""Lanes that have taken different branches are together at `activemask` for sure only after they have met."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx.test_findings import kernel

SUM = "for (int o = 16; o; o /= 2) s += __shfl_xor_sync(__activemask(), s, o); if (threadIdx.x == 0) out[0] = s;"
ROW = "float s = 0; for (int i = threadIdx.x; i < n; i += 32) s += x[i];"
PARAMETERS = "const float* x, float* out, int n"
COUNT = """
int first = threadIdx.x % 3 == 0 ? __float_as_int(x[threadIdx.x]) : 7;
if (threadIdx.x < n) {
  unsigned m = __activemask();
  int leader = __ffs(m) - 1, before;
  if (threadIdx.x % 32 == leader) before = atomicAdd((int*)out, __popc(m));
  before = __shfl_sync(m, before, leader);
  if (first == 12345) out[1] = before;
}
"""


def total(executor, n, *, apart):
    inputs, outputs = {"x": np.ones(64, "f4")}, {"out": np.zeros(2, "f4")}
    ran = executor.run(
        "k", inputs=inputs, outputs=outputs, arguments=("x", "out", n), fills={"out": 0}, keeps_lanes_apart=apart
    )
    assert ran.findings == []
    return ran.arrays["out"]


def test_lanes_that_left_a_loop_at_different_times_may_be_apart(cuda):
    executor = cuda(kernel(ROW + SUM, PARAMETERS))
    assert total(executor, 40, apart=False)[0] == 40
    assert total(executor, 40, apart=True)[0] != 40


def test_lanes_that_went_the_same_way_are_together(cuda):
    executor = cuda(kernel(ROW + SUM, PARAMETERS))
    assert total(executor, 64, apart=True)[0] == 64


@pytest.mark.parametrize("meeting", ["__syncwarp();", "__syncthreads();", "s = __shfl_sync(~0u, s, threadIdx.x);"])
def test_lanes_that_have_met_are_together_again(cuda, meeting):
    assert total(cuda(kernel(ROW + meeting + SUM, PARAMETERS)), 40, apart=True)[0] == 40


def test_a_count_that_each_group_of_lanes_adds_to_is_right_however_they_fall_apart(cuda):
    executor = cuda(kernel(COUNT, PARAMETERS))
    assert {int(total(executor, 29, apart=apart).view("i4")[0]) for apart in (False, True)} == {29}
