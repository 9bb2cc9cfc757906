"""Blocks of a cluster race like all others, unless the barrier of the cluster or a signal orders what they do."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kernel_lsp.ptx.executor_process import Session
from tests.ptx.harness import CLUSTER, Executor

BLOCKS, THREADS = 8, 32
RELAXED = 'asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");'
LAST_CLUSTER = """
    __shared__ bool last;
    g[i] = i; EARLY c.sync();
    if (r == 0 && t == 0) { BEFORE last = atomicAdd(ticket, 1) == gridDim.x / 4 - 1; AFTER }
    c.sync();
    if (*c.map_shared_rank(&last, 0)) out[i] = g[(i + 128) % n];
    c.sync();
"""
FENCE = "__threadfence();"
FLAG = """
    __shared__ volatile int flag; if (t == 0) flag = 0;
    c.sync();
    volatile int* its_flag = c.map_shared_rank((int*)&flag, r ^ 1);
    if (t == 0) { g[b] = b; BEFORE *its_flag = 1; while (flag == 0); AFTER out[b] = g[b ^ 1]; }
    c.sync();
"""


def last_cluster(early: str = "", before: str = "", after: str = "") -> str:
    return LAST_CLUSTER.replace("EARLY", early).replace("BEFORE", before).replace("AFTER", after)


def flag(before: str, after: str) -> str:
    return FLAG.replace("BEFORE", before).replace("AFTER", after)


RACES = {
    "nothing_between": "g[i] = i; out[i] = g[i ^ 32];",
    "barrier_of_the_block": "g[i] = i; __syncthreads(); out[i] = g[i ^ 32];",
    "another_cluster": "g[i] = i; c.sync(); out[i] = g[(i + 128) % n];",
    "overwritten_too_early": "g[i] = i; c.sync(); out[i] = g[i ^ 32]; g[i] = 0;",
    "written_after_the_arrival": "c.barrier_arrive(); g[i] = i; c.barrier_wait(); out[i] = g[i ^ 32];",
    "read_before_the_wait": "g[i] = i; c.barrier_arrive(); out[i] = g[i ^ 32]; c.barrier_wait();",
    "relaxed_arrival": f"g[i] = i; {RELAXED} c.barrier_wait(); out[i] = g[i ^ 32];",
    "fence_before_the_write": f"__threadfence(); g[i] = i; {RELAXED} c.barrier_wait(); out[i] = g[i ^ 32];",
    "relaxed_arrival_of_shared_memory": f"""
        s[t] = i; {RELAXED} c.barrier_wait(); out[i] = c.map_shared_rank(s, r ^ 1)[t]; c.sync();
        """,
    "all_push_into_one": "c.sync(); c.map_shared_rank(s, 0)[t] = i; c.sync(); out[i] = s[t];",
    "shared_overwritten_too_early": """
        s[t] = i; c.sync(); out[i] = c.map_shared_rank(s, r ^ 1)[t]; s[t] = 0; c.sync();
        """,
    "own_shared_memory": "s[t] = i; out[i] = s[t ^ 1]; c.sync();",
    "a_sum_of_the_cluster": "if (t == 0) s[0] = 0; c.sync(); *c.map_shared_rank(s, 0) += i; c.sync(); out[i] = s[0];",
    "no_fence_before_the_ticket": last_cluster(after=FENCE),
    "no_fence_before_a_flag_in_shared_memory": flag("", FENCE),
    "no_fence_after_a_flag_in_shared_memory": flag(FENCE, ""),
}
ORDERED = {
    "barrier": "g[i] = i; c.sync(); out[i] = g[i ^ 32];",
    "of_its_own_block": "g[i] = i; c.sync(); out[i] = g[i ^ 1];",
    "barriers_in_a_loop": "for (int k = 0; k < 3; ++k) { g[i] = k + i; c.sync(); out[i] += g[i ^ 33]; c.sync(); }",
    "work_between": "g[i] = i; c.barrier_arrive(); out[i] = 1; c.barrier_wait(); out[i] += g[i ^ 32];",
    "fence_and_relaxed_arrival": f"g[i] = i; __threadfence(); {RELAXED} c.barrier_wait(); out[i] = g[i ^ 32];",
    "fence_of_one_and_relaxed_arrivals": f"""
        g[i] = i; __syncthreads(); if (t == 0) __threadfence(); {RELAXED} c.barrier_wait(); out[i] = g[i ^ 32];
        """,
    "relaxed_arrivals_of_others": f"""
        g[i] = i; __syncthreads(); if (t == 0) c.barrier_arrive(); else {RELAXED} c.barrier_wait(); out[i] = g[i ^ 32];
        """,
    "nothing_to_say": f"{RELAXED} c.barrier_wait(); c.map_shared_rank(s, r ^ 1)[t] = i; c.sync(); out[i] = s[t];",
    "pushed": "c.sync(); c.map_shared_rank(s, r ^ 1)[t] = i; c.sync(); out[i] = s[31 - t];",
    "pulled": "s[t] = i; c.sync(); out[i] = c.map_shared_rank(s, r ^ 1)[31 - t]; c.sync(); s[t] = 0; out[i] += s[t];",
    "own_window": "s[t] = i; c.sync(); c.map_shared_rank(s, r)[t] += 1; __syncthreads(); out[i] = s[t ^ 1];",
    "updates": "if (t == 0) s[0] = 0; c.sync(); atomicAdd(c.map_shared_rank(s, 0), 1.0f); c.sync(); out[i] = s[0];",
    "one_has_ended": "g[i] = i; if (r == 2) return; c.sync(); out[i] = g[i ^ 64];",
    "last_cluster": last_cluster(before=FENCE, after=FENCE),
    "last_cluster_by_its_barrier": last_cluster(before=FENCE),
    "last_cluster_after_fences_of_all": last_cluster(early=FENCE, after=FENCE),
    "flag_in_shared_memory": flag(FENCE, FENCE),
}  # fmt: skip


def _kernel(name: str, body: str) -> str:
    return (
        f'extern "C" __global__ void __cluster_dims__(4, 1, 1) {name}(float* g, int* ticket, float* out) {{\n'
        "__shared__ float s[32]; cluster_group c{}; const int r = c.block_rank();\n"
        f"const int t = threadIdx.x, b = blockIdx.x, i = b * blockDim.x + t, n = gridDim.x * blockDim.x;\n{body}\n}}\n"
    )


@pytest.fixture(scope="module")
def executor(compile_cuda, tmp_path_factory):
    """All the kernels above, compiled and loaded once."""
    bodies = {
        **{f"race_{name}": body for name, body in RACES.items()},
        **{f"ok_{name}": body for name, body in ORDERED.items()},
    }
    text = f"{CLUSTER}\n" + "".join(_kernel(name, body) for name, body in bodies.items())
    built = compile_cuda(text, *bodies)
    return Executor(Session(), built.ptx, tmp_path_factory.mktemp("cluster_races"), built.symbols)


def run(executor, name, thread_order="reverse"):
    return executor.run(
        name,
        grid=BLOCKS,
        block=THREADS,
        outputs={"out": np.zeros(BLOCKS * THREADS, "f4")},
        scratch={"g": np.zeros(BLOCKS * THREADS, "f4"), "ticket": np.zeros(8, "i4")},
        arguments=("g", "ticket", "out"),
        fills={"g": 0, "ticket": 0, "out": 0},
        thread_order=thread_order,
        watches_races=True,
    )


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("name", RACES)
def test_accesses_that_nothing_orders_are_a_race_in_either_order(executor, name, order):
    assert "race" in {finding["code"] for finding in run(executor, f"race_{name}", order).findings}


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("name", ORDERED)
def test_what_the_barrier_of_the_cluster_or_a_signal_orders_is_no_race(executor, name, order):
    assert run(executor, f"ok_{name}", order).findings == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "barrier_of_the_block",
            r"\w+ 4 bytes at byte \d+ of g \(f32\[256\]\), which block \(\d, 0, 0\) of the cluster \w+ at line \d+"
            r" with no cluster\.sync\(\) between",
        ),
        (
            "relaxed_arrival_of_shared_memory",
            r"reads 4 bytes at byte \d+ of the shared memory of block \d of the cluster, which block \(\d, 0, 0\) of"
            r" the cluster wrote at line \d+ with no cluster\.sync\(\) between",
        ),
        (
            "another_cluster",
            r"\w+ 4 bytes at byte \d+ of g \(f32\[256\]\), which block \(\d, 0, 0\) \w+ at line \d+ in the same launch"
            r" with no __threadfence\(\) and signal between",
        ),
    ],
)
def test_a_race_in_a_cluster_says_who_did_what_and_what_is_missing(executor, name, message):
    found = next(one for one in run(executor, f"race_{name}").findings if one["code"] == "race")
    assert re.fullmatch(message, found["message"]), found["message"]
