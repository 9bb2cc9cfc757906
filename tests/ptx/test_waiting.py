"""Threads that wait for ever are told from those that wait for a while."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_lsp.ptx.checks.livelock import BlockMemory, Stillness
from kernel_lsp.ptx.run.buffers import Region

KERNEL = """
extern "C" __global__ void k(int* flag, float* out) {{
    const int t = threadIdx.x, b = blockIdx.x, last = gridDim.x - 1;
    {body}
    out[b * blockDim.x + t] = 1.0f;
}}
"""


@pytest.fixture
def run(cuda):
    """Return the outcome of a kernel of that body, with `flag` zero."""

    def launch(body, n_blocks=3, **options):
        executor = cuda(KERNEL.format(body=body), "k")
        arrays = {"flag": np.zeros(4, "i4"), "out": np.zeros(64 * n_blocks, "f4")}
        return executor.run(
            "k", grid=n_blocks, block=64, scratch=arrays, fills={"flag": 0}, max_instructions=10**9, **options
        )

    return launch


@pytest.mark.parametrize("n_blocks", [1, 3, 13])
@pytest.mark.parametrize(
    "body",
    [
        "while (*(volatile int*)flag == 0) {}",
        "while (atomicCAS(flag, 1, 2) != 5) {}",
        "while (atomicAdd(flag, 0) == 0) __nanosleep(20);",
        "if (t == 3) while (atomicExch(flag + 1, 1) != 7) {} __syncthreads();",
        "if (b == last) while (*(volatile int*)flag == 0) {}",
        "__shared__ volatile int go; go = 1; __syncthreads(); while (go) {}",
    ],
)
def test_waiting_for_what_nobody_does_is_an_error_at_its_line(run, body, n_blocks):
    ran = run(body, n_blocks)
    assert not ran.answer.get("timed_out")
    assert (ran.finding()["code"], ran.finding()["line"]) == ("endless-wait", 4)


@pytest.mark.parametrize(
    "body",
    [
        "if (b == 0 && t == 0) { while (*(volatile int*)flag == 0) {} } if (b == last) atomicExch(flag, 1);",
        "if (t == 0) { atomicAdd(flag, 1); while (atomicAdd(flag, 0) <= last) {} } __syncthreads();",
        "if (t == 0) { while (atomicAdd(flag, 0) != last - b) {} atomicAdd(flag, 1); }",
        "if (t == 0 && b < last) for (int n = 0; n < 90000 && *(volatile int*)flag == 0; ++n) {}",
        "if (t == 0) while (atomicCAS(flag, 0, 1) != 0) {} __syncthreads(); if (t == 0) atomicExch(flag, 0);",
    ],
    ids=["for the last block", "for all", "for the next", "for so long", "for a lock"],
)
def test_waiting_for_what_another_block_does_ends(run, body):
    ran = run(body)
    assert (ran.findings, ran.answer.get("timed_out")) == ([], None)
    assert (ran.arrays["out"] == 1).all()


def test_a_wait_that_changes_something_for_ever_is_a_time_out(run):
    ran = run("if (t == 0) while (atomicAdd(flag, 2) != 1) {}", n_blocks=2)
    assert ran.answer["timed_out"]


def test_of_blocks_that_wait_for_one_that_was_left_out_nothing_is_said(run):
    body = "if (t == 0 && b > 0) { if (b == 2) atomicExch(flag, 1); else while (atomicAdd(flag, 0) == 0) {} }"
    ran = run(body, n_blocks=9, sample_blocks={"n": 2, "seed": 0})
    assert (ran.findings, ran.answer.get("timed_out")) == ([], None)
    assert ran.answer["report"]["n_blocks_run"] == [1]


def test_a_long_computation_that_could_wait_is_looked_at_a_few_times(run, monkeypatch):
    n_looks = []
    parts = Stillness._parts
    monkeypatch.setattr(Stillness, "_parts", lambda self, blocks: n_looks.append(1) or parts(self, blocks))
    body = "if (t == 0 && b == 0) { float v = 0; for (int n = 0; n < 2000000; ++n) v = v * 0.5f + flag[n & 3];"
    ran = run(body + " atomicAdd(flag + 1, (int)v); }", n_blocks=1)
    assert ran.findings == []
    assert 2 <= len(n_looks) <= 12


def test_what_comes_back_every_third_turn_comes_back(tmp_path):
    stillness, region = Stillness((), 0, 8), Region(4096)
    block = BlockMemory(region, region.address, region.address + 2048)
    turns = []
    for turn in range(40):
        region.memory[3000] = turn % 3
        turns.append(stillness.has_come_back([block]))
    assert any(turns)
    region.close()


FEW_AT_ONCE = """
extern "C" __global__ void all(int* state, int* out) {
  atomicAdd(state, 1);
  while (*(volatile int*)state < (int)gridDim.x) {}
  out[blockIdx.x] = 1;
}
extern "C" __global__ void earlier(int* state, int* out) {
  if (blockIdx.x > 0) while (((volatile int*)state)[blockIdx.x - 1] == 0) {}
  __threadfence();
  atomicExch(state + blockIdx.x, 1);
  out[blockIdx.x] = 1;
}
extern "C" __global__ void later(int* state, int* out) {
  if (blockIdx.x + 1 < gridDim.x) while (((volatile int*)state)[blockIdx.x + 1] == 0) {}
  __threadfence();
  atomicExch(state + blockIdx.x, 1);
  out[blockIdx.x] = 1;
}
"""


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize(("name", "n_at_once", "ends"), [
    ("all", 16, True), ("all", 15, False), ("earlier", 1, True), ("later", 16, True), ("later", 8, False),
])  # fmt: skip
def test_blocks_that_have_not_started_are_waited_for_in_vain_where_few_run_at_once(cuda, name, n_at_once, ends, order):
    ran = cuda(FEW_AT_ONCE).run(
        name,
        grid=16,
        block=1,
        scratch={"state": np.zeros(16, "i4")},
        outputs={"out": np.zeros(16, "i4")},
        fills={"state": 0, "out": 0},
        arguments=("state", "out"),
        thread_order=order,
        resident_blocks={name: n_at_once},
    )
    assert [finding["code"] for finding in ran.findings] == ([] if ends else ["endless-wait"])
    assert ends == ran.arrays["out"].all()
