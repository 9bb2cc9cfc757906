"""Updates that are made of several accesses, each of them atomic, lose what others do in between."""

from __future__ import annotations

import numpy as np
import pytest

KERNEL = """
extern "C" __global__ void k(int* word, int* out) {{
    const int own = blockIdx.x * blockDim.x + threadIdx.x + 1;
    {body}
}}
"""
N_THREADS = 8
TORN = [
    "const int old = atomicAdd(word, 0); atomicExch(word, old + own);",
    "const int old = atomicExch(word, 0); atomicExch(word, old + own);",
    "const int old = atomicAdd(word, 0); atomicCAS(word, old, old + own);",
    "const int old = *word; atomicCAS(word, old, old + own);",
    "const int old = *(volatile int*)word; *(volatile int*)word = old + own;",
    "int old = atomicAdd(word, 0); for (int i = 0; i < 3; ++i) { const int seen = atomicCAS(word, old, old + own);"
    " if (seen == old) break; old = seen; }",
    "__shared__ int sum; if (threadIdx.x == 0) sum = 0; __syncthreads(); const int old = atomicAdd(&sum, 0);"
    " atomicExch(&sum, old + own); __syncthreads(); if (threadIdx.x == 0) atomicAdd(word, sum);",
]
WHOLE = [
    "atomicAdd(word, own);",
    "int old = *word, seen; while ((seen = atomicCAS(word, old, old + own)) != old) old = seen;",
    "bool is_done = false; while (!is_done) if (atomicCAS(word + 1, 0, 1) == 0) { __threadfence();"
    " *(volatile int*)word += own; __threadfence(); atomicExch(word + 1, 0); is_done = true; }",
    "const int place = atomicAdd(word + 1, 1); while (*(volatile int*)(word + 2) != place) {}"
    " *(volatile int*)word += own; __threadfence(); *(volatile int*)(word + 2) = place + 1;",
    "atomicAdd(word + 1, own); __threadfence(); if (atomicAdd(word + 2, 1) == gridDim.x * blockDim.x - 1)"
    " *word = atomicExch(word + 1, 0);",
    "for (int i = 0; i < 40; ++i) { atomicAdd(word, own); atomicSub(word, own); } atomicAdd(word, own);",
]


@pytest.fixture
def total(cuda):
    """Return what eight threads have added to a word."""

    def of(body, interruptions, n_blocks):
        executor = cuda(KERNEL.format(body=body), "k")
        scratch = {"word": np.zeros(4, "i4"), "out": np.zeros(1, "i4")}
        ran = executor.run(
            "k",
            grid=n_blocks,
            block=N_THREADS // n_blocks,
            scratch=scratch,
            fills={"word": 0},
            max_instructions=10**8,
            interruptions=interruptions,
        )
        assert ran.findings == []
        assert "timed_out" not in ran.answer
        return ran.arrays["word"][0]

    return of


@pytest.mark.parametrize("interruptions", ["in_order", "in_turns"])
@pytest.mark.parametrize("n_blocks", [1, 2])
@pytest.mark.parametrize("body", TORN)
def test_updates_in_parts_lose_others(total, body, n_blocks, interruptions) -> None:
    assert total(body, "none", n_blocks) == 36
    assert total(body, interruptions, n_blocks) != 36


@pytest.mark.parametrize("interruptions", ["in_order", "in_turns"])
@pytest.mark.parametrize("n_blocks", [1, 8])
@pytest.mark.parametrize("body", WHOLE)
def test_whole_updates_do_not(total, body, n_blocks, interruptions) -> None:
    assert total(body, interruptions, n_blocks) == 36


def test_the_last_to_write_changes_with_the_order(total) -> None:
    body = "if (atomicAdd(word, 0) < own) atomicExch(word, own);"
    assert {total(body, "in_order", 8), total(body, "in_turns", 8)} == {1, 8}
