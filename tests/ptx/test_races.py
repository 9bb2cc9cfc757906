"""Reads of what another thread wrote are errors where nothing orders the two, and only there."""

from __future__ import annotations

import numpy as np
import pytest

KERNEL = """
extern "C" __global__ void k(float* g, int* ticket, float* out) {{
    const int t = threadIdx.x, i = blockIdx.x * blockDim.x + t, n = gridDim.x * blockDim.x;
    {body}
}}
"""
BLOCKS, THREADS = 4, 64


@pytest.fixture
def codes(cuda):
    """The codes of what is found in a kernel of that body, with `g` and `ticket` zero."""

    def run(body, **changes):
        executor = cuda(KERNEL.format(body=body), "k")
        scratch = {"g": np.zeros(BLOCKS * THREADS, "f4"), "ticket": np.zeros(4, "i4")}
        ran = executor.run(
            "k",
            grid=BLOCKS,
            block=THREADS,
            outputs={"out": np.zeros(BLOCKS * THREADS, "f4")},
            scratch=scratch,
            arguments=("g", "ticket", "out"),
            fills={"g": 0, "ticket": 0, "out": 0},
            **{"watches_races": True, **changes},
        )
        return [finding["code"] for finding in ran.findings]

    return run


LAST_BLOCK = """
    __shared__ bool is_last;
    if (t == 0) { g[blockIdx.x] = 1.0f; FENCE is_last = atomicAdd(ticket, 1) == gridDim.x - 1; }
    __syncthreads();
    if (is_last && t == 0) { float s = 0; for (int b = 0; b < gridDim.x; ++b) s += READ; out[0] = s; }
"""


@pytest.mark.parametrize(
    "body",
    [
        "g[0] = g[0] + 1.0f;",
        "g[t] = g[t] + 1.0f;",
        "g[i / 2] += 1.0f;",
        "out[i] = 1.0f; if (i + THREADS < n) out[i] += out[i + THREADS]; else out[i] += out[i - THREADS];",
        LAST_BLOCK.replace("FENCE", "").replace("READ", "g[b]"),
        LAST_BLOCK.replace("FENCE", "").replace("READ", "((volatile float*)g)[b]"),
    ],
    ids=["one sum", "a sum of blocks", "a sum of neighbours", "neighbour", "last block", "last block, volatile"],
)
def test_a_read_of_what_another_thread_wrote_is_a_race(codes, body):
    assert set(codes(body.replace("THREADS", str(THREADS)))) == {"race"}


@pytest.mark.parametrize(
    "body",
    [
        "g[i] += 1.0f; g[i] += 1.0f;",
        "g[t] = 1.0f; out[i] = 2.0f;",
        "g[i] = 1.0f; __syncthreads(); out[i] = g[i ^ 1];",
        "g[i] = 1.0f; __syncwarp(); out[i] = g[i ^ 1];",
        "atomicAdd(g, 1.0f); out[i] = atomicAdd(g + 1, 1.0f);",
        LAST_BLOCK.replace("FENCE", "__threadfence();").replace("READ", "((volatile float*)g)[b]"),
        "((volatile float*)g)[t] = 1.0f; out[i] = ((volatile float*)g)[t];",
        "reinterpret_cast<char*>(g)[i] = 1; out[i] = reinterpret_cast<char*>(g)[i];",
    ],
    ids=["own", "same value", "barrier", "warp", "atomics", "last block", "volatile", "bytes"],
)
def test_what_is_ordered_or_a_threads_own_is_no_race(codes, body):
    assert codes(body) == []


def test_a_later_launch_may_read_what_an_earlier_one_wrote(cuda):
    executor = cuda(KERNEL.format(body="out[i] = g[n - 1 - i]; g[i] = 1.0f;").replace("out[i] = g", "out[i] += g"), "k")
    scratch = {"g": np.zeros(64, "f4"), "ticket": np.zeros(1, "i4"), "out": np.zeros(64, "f4")}
    launch = {"kind": "launch", "kernel": "k", "symbol": "k", "grid": (1, 1, 1), "block": (1, 1, 1), "shared_bytes": 0}
    launch["arguments"] = [{"kind": "tensor", "tensor": name} for name in scratch]
    fills = [{"kind": "fill", "tensor": name, "value": 0} for name in scratch]
    ran = executor.run_steps([*fills, launch, launch], scratch=scratch, watches_races=True)
    assert ran.findings == []


def test_nothing_is_looked_for_where_it_is_not_asked_for(codes):
    assert codes("g[0] = g[0] + 1.0f;", watches_races=False) == []


def test_a_race_says_what_was_read_and_what_was_missing(cuda):
    executor = cuda(KERNEL.format(body="g[0] = g[0] + 1.0f;"), "k")
    arrays = {"g": np.zeros(4, "f4"), "ticket": np.zeros(1, "i4"), "out": np.zeros(4, "f4")}
    fills = {"g": 0}
    ran = executor.run("k", grid=2, block=1, scratch=arrays, fills=fills, watches_races=True)
    finding = ran.finding()
    assert finding["line"] == 4
    assert finding["message"] == (
        "reads 4 bytes at byte 0 of g (f32[4]), which another block has written in this launch with no fence between"
    )
