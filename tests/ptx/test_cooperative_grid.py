"""Blocks of a cooperative launch wait for each other at the grid's barrier, and only those."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_lsp.ptx.executor_process import Session
from kernel_lsp.ptx.run.launch_setup import invalid_cooperation
from tests.ptx.harness import Executor, fill_steps, launch_step

BLOCKS, THREADS = 5, 64
N = BLOCKS * THREADS
TEXT = """
#include <cooperative_groups.h>
namespace cg = cooperative_groups;
#define PLACES const int i = cg::this_grid().thread_rank(), n = cg::this_grid().size(), next = (i + blockDim.x) % n

extern "C" __global__ void once(float* g, float* out) {
    PLACES;
    g[i] = i;
    cg::this_grid().sync();
    out[i] = g[next];
}
extern "C" __global__ void in_a_loop(float* g, float* out) {
    PLACES;
    float sum = 0.0f;
    for (int turn = 0; turn < 3; ++turn) {
        g[turn % 2 * n + i] = i + turn;
        cg::this_grid().sync();
        sum += g[turn % 2 * n + next];
    }
    out[i] = sum;
}
extern "C" __global__ void one_too_few(float* g, float* out) {
    PLACES;
    float sum = 0.0f;
    for (int turn = 0; turn < 3; ++turn) {
        g[i] = i + turn;
        cg::this_grid().sync();
        sum += g[next];
    }
    out[i] = sum;
}
extern "C" __global__ void without(float* g, float* out) {
    PLACES;
    g[i] = i;
    __syncthreads();
    out[i] = g[next];
}
extern "C" __global__ void by_arrival_and_wait(float* g, float* out) {
    PLACES;
    g[i] = i;
    auto token = cg::this_grid().barrier_arrive();
    float mine = 0.5f;
    cg::this_grid().barrier_wait(static_cast<decltype(token)&&>(token));
    out[i] = g[next] + mine;
}
extern "C" __global__ void one_leaves(float* g, float* out) {
    PLACES;
    g[i] = i;
    if (blockIdx.x == 2) return;
    cg::this_grid().sync();
    out[i] = g[next];
}
extern "C" __global__ void past_the_word(unsigned* g, float* out) {
    unsigned high, low;
    asm("mov.u32 %0, %%envreg1;" : "=r"(high));
    asm("mov.u32 %0, %%envreg2;" : "=r"(low));
    out[threadIdx.x] = ((unsigned*)((unsigned long long)high << 32 | low))[2];
}
"""
NAMES = ("once", "in_a_loop", "one_too_few", "without", "by_arrival_and_wait", "one_leaves", "past_the_word")
PLACE = np.arange(N, dtype="f4")
NEXT = (PLACE + THREADS) % N
ORDERS = ("forward", "reverse", "random")


@pytest.fixture(scope="module")
def executor(compile_cuda, tmp_path_factory) -> Executor:
    """All the kernels above, compiled and loaded once."""
    built = compile_cuda(TEXT, *NAMES)
    return Executor(Session(), built.ptx, tmp_path_factory.mktemp("grids"), built.symbols)


@pytest.fixture
def run(executor):
    def launch(*kernels, attributes=None, **options):
        cooperative = {"cooperative": 1} if attributes is None else attributes
        steps = [
            {**launch_step(executor, name, BLOCKS, THREADS, 0, ("g", "out")), "attributes": cooperative}
            for name in kernels
        ]
        arrays = {"g": np.zeros(2 * N, "f4"), "out": np.zeros(N, "f4")}
        options = {"watches_races": True, "max_instructions": 10**8, "max_thread_instructions": 10**8} | options
        return executor.run_steps([*fill_steps({"g": 0}), *steps], scratch=arrays, **options)

    return launch


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("kernel", "expected"),
    [("once", NEXT), ("in_a_loop", 3 * NEXT + 3), ("by_arrival_and_wait", NEXT + 0.5)],
    ids=["once", "in a loop", "arrival and wait"],
)
def test_what_was_written_before_the_barrier_is_read_after_it(run, kernel, expected, order):
    ran = run(kernel, thread_order=order)
    assert ran.findings == []
    assert (ran.arrays["out"] == expected).all()


def test_each_launch_of_a_plan_has_a_barrier_of_its_own(run):
    ran = run("in_a_loop", "once", "once")
    assert ran.findings == []
    assert (ran.arrays["out"] == NEXT).all()


def test_counters_do_not_depend_on_how_long_the_executor_makes_blocks_wait(run):
    forward, reverse = (dict(run("in_a_loop", thread_order=order).counters) for order in ("forward", "reverse"))
    polled = [counters.pop("n_polled_instructions") for counters in (forward, reverse)]
    assert min(polled) > 0
    assert forward.pop("max_instructions_per_thread") == reverse.pop("max_instructions_per_thread") < 400
    assert forward["n_instructions"] == reverse["n_instructions"]
    assert forward["n_global_requests"] == reverse["n_global_requests"]


def test_a_few_blocks_of_a_grid_stop_at_its_barrier_beside_large_tensors(executor):
    step = {**launch_step(executor, "once", BLOCKS, THREADS, 0, ("g", "out")), "attributes": {"cooperative": 1}}
    arrays = {"g": np.zeros(2 * N, "f4"), "out": np.zeros(N, "f4"), "beside": np.zeros(5 << 20, "f4")}
    few = {"n": 2, "seed": 0, "blocks": ()}
    ran = executor.run_steps([*fill_steps({"g": 0}), step], scratch=arrays, sample_blocks=few, max_instructions=10**8)
    assert "timed_out" not in ran.answer
    assert ran.counters["n_blocks_run"] < BLOCKS


def test_to_wait_costs_few_instructions(run):
    line = next(one for one in run("once").counters["lines"] if one["line"] == line_of("once", 3))
    assert line["n_instructions"] < 20 * N


@pytest.mark.parametrize("order", ORDERS)
def test_without_the_barrier_it_is_a_race(run, order):
    found = {(finding["code"], finding["line"]) for finding in run("without", thread_order=order).findings}
    assert found == {("race", line_of("without", 2)), ("race", line_of("without", 4))}


@pytest.mark.parametrize("order", ORDERS)
def test_a_block_that_is_one_barrier_ahead_changes_what_others_read(run, order):
    ran = run("one_too_few", thread_order=order)
    assert not (ran.arrays["out"] == 3 * NEXT + 3).all()


def test_a_block_that_leaves_lets_the_others_wait_for_ever(run):
    ran = run("one_leaves")
    assert (ran.finding()["code"], ran.finding()["line"]) == ("endless-wait", line_of("one_leaves", 4))
    assert not ran.answer.get("timed_out")


def test_a_launch_that_is_not_cooperative_traps_as_on_a_gpu_and_is_told_what_it_lacks(run):
    found = run("once", attributes={}).finding()
    assert (found["code"], found["line"]) == ("trap", line_of("once", 3))
    assert "without cooperative=1" in found["message"]


def test_nothing_but_the_workspace_is_there(run):
    found = run("past_the_word").finding()
    assert found["code"] == "out-of-bounds-read"
    assert "right after the end of what the driver keeps for the grid's barrier" in found["message"]


def test_without_a_cooperative_launch_its_address_is_null(run):
    assert run("past_the_word", attributes={}).finding()["code"] == "null-pointer"


@pytest.mark.parametrize(
    ("n_blocks", "n_threads", "n_shared_bytes", "is_refused"),
    [(132 * 2, 1024, 0, False), (132 * 2 + 1, 1024, 0, True), (132, 32, 227 << 10, False), (133, 32, 227 << 10, True)],
)
def test_more_blocks_than_a_gpu_holds_are_no_cooperative_launch(n_blocks, n_threads, n_shared_bytes, is_refused):
    assert bool(invalid_cooperation(n_blocks, n_threads, n_shared_bytes)) is is_refused


def test_such_a_launch_is_refused(executor):
    ran = executor.run(
        "once",
        grid=132 * 32 + 1,
        block=64,
        scratch={"g": np.zeros(1, "f4"), "out": np.zeros(1, "f4")},
        attributes={"cooperative": 1},
    )
    assert ran.finding()["code"] == "invalid-launch"


def line_of(kernel: str, offset: int) -> int:
    """The number of a line of a kernel, counted from its head."""
    return next(number for number, line in enumerate(TEXT.split("\n"), 1) if f" {kernel}(" in line) + offset
