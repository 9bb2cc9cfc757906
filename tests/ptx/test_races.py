"""Accesses of one word by two threads are errors where one writes another value and nothing orders them, only there."""

from __future__ import annotations

import re

import numpy as np
import pytest

from kernel_lsp.ptx.executor_process import Session
from kernel_lsp.ptx.races import layout as race_memory
from tests.ptx.harness import Executor

BLOCKS, THREADS = 4, 64
LAST_BLOCK = """
    __shared__ bool is_last;
    if (t == 0) { g[b] = 1.0f; BEFORE is_last = atomicAdd(ticket, 1) == gridDim.x - 1; }
    __syncthreads();
    if (is_last && t == 0) { AFTER float s = 0; for (int j = 0; j < gridDim.x; ++j) s += READ; out[0] = s; }
"""
FENCE, PLAIN, VOLATILE = "__threadfence();", "g[j]", "((volatile float*)g)[j]"
CHAIN = """
    if (t == 0) {
        float s = 0;
        if (b > 0) { while (((volatile int*)ticket)[b] == 0); AFTER s = g[b - 1]; }
        g[b] = s + 1.0f; BEFORE ((volatile int*)ticket)[b + 1] = 1;
    }
"""
GRID_BARRIER = """
    for (int turn = 1; turn < 6; ++turn) {
        if (turn & 1) g[i] = turn; else out[i] += g[(i + THREADS) % n];
        __syncthreads();
        if (t == 0) {
            __threadfence(); atomicAdd(ticket, 1);
            while (((volatile int*)ticket)[0] < turn * (int)gridDim.x);
            AFTER
        }
        __syncthreads();
    }
"""


def last_block(before: str, after: str, read: str) -> str:
    return LAST_BLOCK.replace("BEFORE", before).replace("AFTER", after).replace("READ", read)


def chain(before: str, after: str) -> str:
    return CHAIN.replace("BEFORE", before).replace("AFTER", after)


def grid_barrier(after: str) -> str:
    return GRID_BARRIER.replace("AFTER", after)


def tree(between: str, volatile: str = "") -> str:
    """The sum of a warp in shared memory, with one step's barrier between reading and writing."""
    return f"""
    __shared__ {volatile} float s[64];
    s[t] = i; __syncthreads();
    if (t < 32) for (int half = 32; half > 0; half /= 2) {{
        float other = s[t + half]; {between} s[t] += other; {between}
    }}
    if (t == 0) out[b] = s[0];
    """


TICKET_BY_HAND = """
    if (t == 0) {
        ((volatile float*)g)[b] = i; __threadfence();
        volatile int* count = ticket; const int mine = *count; *count = mine + 1; __threadfence();
        if (mine == gridDim.x - 1) { float s = 0; for (int j = 0; j <= mine; ++j) s += VOLATILE; out[0] = s; }
    }
""".replace("VOLATILE", VOLATILE)
GENERATIONS = """
    volatile int* generation = ticket + 1;
    for (int turn = 1; turn < 4; ++turn) {
        if (turn & 1) g[i] = turn; else out[i] += g[(i + THREADS) % n];
        __syncthreads();
        if (t == 0) {
            __threadfence(); const int now = *generation;
            if (atomicAdd(ticket, 1) == gridDim.x - 1) { *ticket = 0; __threadfence(); *generation = now + 1; }
            else while (*generation == now);
            __threadfence();
        }
        __syncthreads();
    }
"""
ONE_WORD = """
    if (t == 0) {
        volatile unsigned long long* word = reinterpret_cast<unsigned long long*>(g);
        unsigned long long before = 1;
        if (b > 0) while (((before = word[b - 1]) >> 32) == 0);
        word[b] = 1ull << 32 | (unsigned)(before + b); out[b] = (unsigned)before;
    }
"""


RACES = {
    "one_sum": "g[0] = g[0] + 1.0f;",
    "a_sum_of_blocks": "g[t] = g[t] + 1.0f;",
    "a_sum_of_neighbours": "g[i / 2] += 1.0f;",
    "neighbour": "out[i] = 1.0f; if (i + THREADS < n) out[i] += out[i + THREADS]; else out[i] += out[i - THREADS];",
    "two_values": "g[0] = i;",
    "no_fence": last_block("", "", PLAIN),
    "no_fence_volatile": last_block("", "", VOLATILE),
    "fence_after_the_ticket": last_block("", FENCE, PLAIN),
    "fence_of_the_block": last_block("__threadfence_block();", FENCE, PLAIN),
    "fence_of_the_block_volatile": last_block("__threadfence_block();", "__threadfence_block();", VOLATILE).replace(
        "g[b] = 1.0f", "((volatile float*)g)[b] = i"
    ),
    "no_fence_of_volatile_sums": last_block("", "", VOLATILE).replace("g[b] = 1.0f", "((volatile float*)g)[b] = i"),
    "read_only_cache": last_block(FENCE, FENCE, "__ldg(g + j)"),
    "read_only_cache_of_one_thread": "g[i] = i; __threadfence(); __syncthreads(); out[i] = __ldg(g + i);",
    "atomics_of_the_block": "atomicAdd_block(g, 1.0f);",
    "atomics_of_the_block_and_of_all": "if (b & 1) atomicAdd_block(g, 1.0f); else atomicAdd(g, 1.0f);",
    "volatile_sum": "if (t == 0) { volatile float* sum = g; *sum = *sum + i; }",
    "relaxed_sum": """if (t == 0) { float old;
        asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(old) : "l"(g) : "memory"); old += b + 1;
        asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" :: "l"(g), "f"(old) : "memory"); }""",
    "volatile_ticket": TICKET_BY_HAND,
    "fence_of_one_thread_alone": """
        __shared__ bool is_last; g[i] = i;
        if (t == 0) { __threadfence(); is_last = atomicAdd(ticket, 1) == gridDim.x - 1; }
        __syncthreads();
        if (is_last) { __threadfence(); float s = 0; for (int j = t; j < n; j += blockDim.x) s += g[j]; out[i] = s; }
        """,
    "no_fence_of_the_reader": chain(FENCE, ""),
    "no_fence_of_the_writer": chain("", FENCE),
    "reader_may_have_cached": grid_barrier(""),
    "plain_store_before_atomics": "if (i == 0) g[0] = 1.0f; atomicAdd(g, 1.0f);",
    "read_of_a_sum_of_atomics": "__shared__ float s; if (t == 0) s = 0; __syncthreads(); atomicAdd(&s, 1.0f); "
    "if (t == 0) out[b] = s;",
    "shared_update": "__shared__ int s[8]; if (t < 8) s[t] = 0; __syncthreads(); s[t % 8] += t; __syncthreads(); "
    "out[i] = s[t % 8];",
    "no_barrier_at_all": "__shared__ float s[64]; s[t] = i; out[i] = s[t ^ 32];",
    "no_barrier_in_a_warp": "__shared__ float s[64]; s[t] = i; out[i] = s[t ^ 1];",
    "half_a_warp_waits": "__shared__ float s[64]; s[t] = i; if (t % 32 < 16) __syncwarp(0xffff); out[i] = s[t ^ 16];",
    "no_barrier_in_a_loop": "__shared__ float s[64]; for (int k = 0; k < 3; ++k) "
    "{ s[t] = k + i; __syncthreads(); out[i] += s[t ^ 33]; }",
    "warp_in_step": tree(""),
    "warp_in_step_volatile": tree("", "volatile"),
    "halves": "__shared__ __half_raw s[64]; s[t].x = t; __syncthreads(); s[t ^ 1].x += s[t].x; out[i] = s[t].x;",
    "wrong_named_barrier": '__shared__ float s[64]; s[t] = i; asm volatile("bar.sync %0, 32;" :: "r"(1 + t / 32)); '
    "out[i] = s[t ^ 32];",
}
ORDERED = {
    "own": "g[i] += 1.0f; g[i] += 1.0f;",
    "same_value": "g[t] = 1.0f; out[i] = 2.0f;",
    "same_value_read_back": "g[0] = 3.0f; out[i] = g[0];",
    "same_value_in_shared": "__shared__ int s; if (t > 3) s = 7; if (t > 3) out[i] = s; __syncthreads(); out[i] = s;",
    "barrier": "g[i] = 1.0f; __syncthreads(); out[i] = g[i ^ 1];",
    "warp": "g[i] = i; __syncwarp(); out[i] = g[i ^ 1];",
    "shuffle": "__shared__ float s[64]; s[t] = i; out[i] = __shfl_xor_sync(~0u, i, 1) + s[t ^ 1];",
    "atomics": "atomicAdd(g, 1.0f); out[i] = atomicAdd(g + 1, 1.0f);",
    "volatile": "((volatile float*)g)[t] = 1.0f; out[i] = ((volatile float*)g)[t];",
    "atomics_of_the_block_in_its_word": "atomicAdd_block(g + b, 1.0f); __syncthreads(); out[i] = g[b];",
    "atomics_of_the_block_in_shared_memory": "__shared__ float s; if (t == 0) s = 0; __syncthreads(); "
    "atomicAdd_block(&s, 1.0f); __syncthreads(); out[i] = s;",
    "volatile_sum_of_one_thread": "volatile float* sum = g + i; *sum = *sum + 1.0f; *sum = *sum + 1.0f;",
    "volatile_sum_under_a_lock": """
        if (t == 0) { while (atomicCAS(ticket, 0, 1)); __threadfence(); volatile float* sum = g; *sum = *sum + b;
          __threadfence(); atomicExch(ticket, 0); }
        """,
    "generations": GENERATIONS,
    "flag_and_value_in_one_word": ONE_WORD,
    "volatile_look_before_an_update": "if (((volatile int*)ticket)[0] < i) atomicMax(ticket, i);",
    "read_only_cache_of_what_nothing_wrote": "out[i] = __ldg(g + i);",
    "bytes": "reinterpret_cast<char*>(g)[i] = 1; out[i] = reinterpret_cast<char*>(g)[i];",
    "last_block": last_block(FENCE, FENCE, PLAIN),
    "last_block_volatile": last_block(FENCE, "", VOLATILE),
    "last_block_after_a_barrier": last_block(FENCE, "", PLAIN),
    "last_block_past_the_cache": last_block(FENCE, "", "__ldcg(g + j)"),
    "last_block_resets": last_block(FENCE, FENCE + "*ticket = 0;", PLAIN),
    "fence_before_a_barrier": """
        __shared__ bool is_last; g[i] = i; __threadfence(); __syncthreads();
        if (t == 0) is_last = atomicAdd(ticket, 1) == gridDim.x - 1;
        __syncthreads();
        if (is_last) { __threadfence(); float s = 0; for (int j = t; j < n; j += blockDim.x) s += g[j]; out[i] = s; }
        """,
    "fence_after_a_barrier": """
        __shared__ bool is_last; g[i] = i; __syncthreads();
        if (t == 0) { __threadfence(); is_last = atomicAdd(ticket, 1) == gridDim.x - 1; __threadfence(); }
        __syncthreads();
        if (is_last) { float s = 0; for (int j = t; j < n; j += blockDim.x) s += g[j]; out[i] = s; }
        """,
    "every_thread_counts": """
        g[i] = i; __threadfence();
        if (atomicAdd(ticket, 1) == n - 1) { __threadfence(); for (int j = 0; j < n; ++j) out[0] += g[j]; }
        """,
    "sum_by_atomics_then_ticket": """
        atomicAdd(g, 1.0f); __threadfence(); __syncthreads();
        if (t == 0 && atomicAdd(ticket, 1) == gridDim.x - 1) { __threadfence(); g[0] = g[0] / n; }
        """,
    "chain": chain(FENCE, FENCE),
    "chain_of_plain_flags": chain(FENCE, FENCE).replace("((volatile int*)ticket)[b + 1]", "ticket[b + 1]"),
    "grid_barrier": grid_barrier(FENCE),
    "lock": """
        if (t == 0) while (atomicCAS(ticket, 0, 1));
        if (t == 0) { __threadfence(); g[0] += b; __threadfence(); atomicExch(ticket, 0); }
        """,
    "lock_opened_by_a_store": """
        if (t == 0) { while (atomicCAS(ticket, 0, 1)); __threadfence(); g[0] += b; __threadfence(); ticket[0] = 0; }
        """,
    "release_and_acquire": """
        if (t == 0) { g[b] = b; asm volatile("red.release.gpu.global.add.u32 [%0], 1;" :: "l"(ticket) : "memory");
          int seen; do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(ticket) : "memory");
          while (seen < gridDim.x); out[b] = g[(b + 1) % gridDim.x]; }
        """,
    "compare_and_swap": """
        __shared__ int s; if (t == 0) s = 0; __syncthreads();
        int old = s, assumed;
        do { assumed = old; old = atomicCAS(&s, assumed, max(assumed, t)); } while (old != assumed);
        __syncthreads(); out[i] = s;
        """,
    "a_look_before_an_update": """
        __shared__ int s; if (t == 0) s = 0; __syncthreads(); if (s < t) atomicMax(&s, t); __syncthreads(); out[i] = s;
        """,
    "histogram": "__shared__ int s[8]; if (t < 8) s[t] = 0; __syncthreads(); atomicAdd(s + t % 8, t); __syncthreads(); "
    "out[i] = s[t % 8];",
    "tree": tree("__syncwarp();"),
    "tree_volatile": tree("__syncwarp();", "volatile"),
    "halves_of_a_warp": "__shared__ float s[64]; s[t] = i; __syncwarp(t % 32 < 16 ? 0xffff : 0xffff0000); "
    "out[i] = s[t ^ 15];",
    "two_barriers_in_a_loop": "__shared__ float s[64]; for (int k = 0; k < 3; ++k) "
    "{ s[t] = k + i; __syncthreads(); out[i] += s[t ^ 33]; __syncthreads(); }",
    "two_buffers_in_a_loop": "__shared__ float s[2][64]; for (int k = 0; k < 5; ++k) "
    "{ s[k & 1][t] = k + i; __syncthreads(); out[i] += s[k & 1][t ^ 33]; }",
    "halves": "__shared__ __half_raw s[64]; s[t].x = t; out[i] = s[t].x; __syncthreads(); out[i] += s[t ^ 1].x;",
    "some_have_ended": "__shared__ float s[64]; s[t] = i; if (t > 40) return; __syncthreads(); out[i] = s[63 - t];",
    "named_barrier": "__shared__ float s[64]; s[t] = i; asm volatile(\"bar.sync 1, 64;\"); out[i] = s[t ^ 32];",
    "producer_and_consumer": """
        __shared__ float s[32];
        for (int k = 0; k < 3; ++k) {
            if (t < 32) {
                s[t] = k + i;
                asm volatile("bar.arrive 1, 64;" ::: "memory"); asm volatile("bar.sync 2, 64;" ::: "memory");
            } else {
                asm volatile("bar.sync 1, 64;" ::: "memory"); out[i] += s[31 - t % 32];
                asm volatile("bar.arrive 2, 64;" ::: "memory");
            }
        }
        """,
    "flag_in_shared_memory": """
        __shared__ volatile int flag; __shared__ float s; if (t == 0) flag = 0; __syncthreads();
        if (t == 40) { s = i; __threadfence_block(); flag = 1; }
        if (t == 0) { while (flag == 0); __threadfence_block(); out[b] = s; }
        """,
    "counted_barrier": "__shared__ int s[64]; s[t] = t; out[i] = __syncthreads_count(t & 1) + s[63 - t];",
    "values_of_the_block_before": "__shared__ float s[64]; out[i] = i; s[t] = b; out[i] = s[t];",
}  # fmt: skip


def _kernel(name: str, body: str) -> str:
    text = body.replace("THREADS", str(THREADS))
    return (
        f'extern "C" __global__ void {name}(float* g, int* ticket, float* out) {{\n'
        f"const int t = threadIdx.x, b = blockIdx.x, i = b * blockDim.x + t, n = gridDim.x * blockDim.x;\n{text}\n}}\n"
    )


@pytest.fixture(scope="module")
def executor(compile_cuda, tmp_path_factory):
    """All the kernels above, compiled and loaded once."""
    bodies = {
        **{f"race_{name}": body for name, body in RACES.items()},
        **{f"ok_{name}": body for name, body in ORDERED.items()},
    }
    text = "#include <cuda_fp16.h>\n" + "".join(_kernel(name, body) for name, body in bodies.items())
    built = compile_cuda(text, *bodies)
    return Executor(Session(), built.ptx, tmp_path_factory.mktemp("races"), built.symbols)


def run(executor, name, thread_order="reverse", **changes):
    arrays = {"g": np.zeros(BLOCKS * THREADS, "f4"), "ticket": np.zeros(8, "i4")}
    return executor.run(
        name,
        grid=BLOCKS,
        block=THREADS,
        outputs={"out": np.zeros(BLOCKS * THREADS, "f4")},
        scratch=arrays,
        arguments=("g", "ticket", "out"),
        fills={"g": 0, "ticket": 0, "out": 0},
        **{"watches_races": True, "thread_order": thread_order, **changes},
    )


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("name", RACES)
def test_accesses_that_nothing_orders_are_a_race_in_either_order_of_threads(executor, name, order):
    assert "race" in {finding["code"] for finding in run(executor, f"race_{name}", order).findings}


@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("name", ORDERED)
def test_what_is_ordered_or_cannot_differ_is_no_race(executor, name, order):
    assert run(executor, f"ok_{name}", order).findings == []


def test_nothing_is_looked_for_where_it_is_not_asked_for(executor):
    assert run(executor, "race_one_sum", watches_races=False).findings == []


def test_a_long_launch_is_looked_at_only_for_a_while(executor, monkeypatch):
    monkeypatch.setattr(race_memory, "MAX_STEPS", 8)
    assert run(executor, "race_shared_update").findings == []
    assert {found["code"] for found in run(executor, "race_one_sum").findings} == {"race"}


def test_a_later_launch_may_read_what_an_earlier_one_wrote(executor):
    names = {"g": np.zeros(64, "f4"), "ticket": np.zeros(1, "i4"), "out": np.zeros(64, "f4")}
    launch = {"kind": "launch", "kernel": "ok_own", "symbol": "ok_own", "shared_bytes": 0}
    launch |= {
        "grid": (1, 1, 1),
        "block": (1, 1, 1),
        "arguments": [{"kind": "tensor", "tensor": name} for name in names],
    }
    fills = [{"kind": "fill", "tensor": name, "value": 0} for name in names]
    assert executor.run_steps([*fills, launch, launch], scratch=names, watches_races=True).findings == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "neighbour",
            r"writes 4 bytes at byte \d+ of out \(f32\[256\]\), which block \(\d, 0, 0\) read at line \d+"
            r" in the same launch with no __threadfence\(\) and signal between",
        ),
        (
            "no_fence_of_the_reader",
            r"reads 4 bytes at byte 0 of g \(f32\[256\]\), which block \(0, 0, 0\) wrote at line \d+:"
            r" its signal was seen, but there is no __threadfence\(\) after that",
        ),
        (
            "read_only_cache",
            r"reads 4 bytes at byte 0 of g \(f32\[256\]\) through the read-only cache \(__ldg, or const __restrict__\),"
            r" which block \(\d, 0, 0\) wrote at line \d+ in the same launch: no fence makes that cache look again",
        ),
        (
            "atomics_of_the_block",
            r"updates 4 bytes at byte 0 of g \(f32\[256\]\), which block \(\d, 0, 0\) wrote at line \d+ in the same"
            r" launch with no __threadfence\(\) and signal between: what has the scope of a block is atomic for that"
            r" block alone",
        ),
        (
            "no_barrier_in_a_loop",
            r"reads 4 bytes at byte \d+ of shared memory, which thread \(\d+, 0, 0\) of the block wrote at line \d+"
            r" with no __syncthreads\(\) between",
        ),
        (
            "shared_update",
            r"reads 4 bytes at byte \d+ of shared memory, which thread \(\d+, 0, 0\) of the block wrote at line \d+"
            r" with no __syncwarp\(\) or __syncthreads\(\) between",
        ),
    ],
)
def test_a_race_says_who_did_what_and_what_is_missing(executor, name, message):
    found = next(one for one in run(executor, f"race_{name}").findings if one["code"] == "race")
    assert re.fullmatch(message, found["message"])


def test_both_lines_of_a_race_are_named(executor):
    found = run(executor, "race_no_fence_of_the_reader").findings[0]
    assert f"wrote at line {found['line'] + 1}:" in found["message"]
