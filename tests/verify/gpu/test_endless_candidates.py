"""A GPU that gives the right answer does not save a kernel whose loops never end: an assembler dropped them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.core.verdict import Correct, Crashed, Rejected, TimedOut
from kernel_lsp.ptx.executor import PtxExecutor
from kernel_lsp.verify.cpu import executor_checks

from .fake_sessions import TEXT, install, verdict

SCREEN_S = 30.0
"""Far more than the screen of an endless kernel takes, far less than its threads would take one after the other."""


@pytest.fixture(autouse=True)
def fake_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)


def with_loop(loop: str) -> str:
    """The right kernel, and a loop before it."""
    return TEXT.replace("    if (i < N)", f"    {loop}\n    if (i < N)")


@pytest.mark.parametrize(
    "loop",
    [
        "volatile int go_on = 1; while (go_on) {}",
        "volatile int s = 1; while (s) s = s * 3 | 1;",
        "if (N > 1 << 29) for (;;) {}",
    ],
)
async def test_an_endless_loop_is_refused_although_the_gpu_computes_what_is_wanted(tmp_path: Path, loop: str) -> None:
    found = await verdict(tmp_path, with_loop(loop))
    assert isinstance(found.outcome, Rejected)
    assert found.outcome.findings[0].line == 7
    assert not found.stages_s.get("gpu")


async def test_a_loop_without_end_that_looks_like_work_is_run_to_its_limit_and_never_on_the_gpu(tmp_path: Path) -> None:
    started = time.monotonic()
    found = await verdict(tmp_path, with_loop("for (float s = 1; s != 0.3f; s = -s) if (i < N) out[i] = s * x[i];"))
    assert isinstance(found.outcome, TimedOut)
    assert found.outcome.findings[0].line == 7
    assert time.monotonic() - started < SCREEN_S


async def test_threads_that_wait_for_ever_never_reach_the_gpu(tmp_path: Path) -> None:
    loop = "__shared__ volatile int go_on; go_on = 1; __syncthreads(); while (go_on) {}"
    found = await verdict(tmp_path, with_loop(loop))
    assert isinstance(found.outcome, Crashed)
    assert [finding.code for finding in found.outcome.findings] == ["endless-wait"]


async def test_a_small_case_that_the_screen_cuts_short_passes_when_it_ends_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(executor_checks.SCREEN_LIMITS, max_instructions=20_000, max_thread_instructions=5_000)
    monkeypatch.setattr(executor_checks, "SCREEN_LIMITS", short)
    serial = TEXT.replace("<<<ceil_div(N, 256), 256>>>", "<<<1, 1>>>")
    serial = serial.replace("int i = blockIdx.x * blockDim.x + threadIdx.x;", "for (int i = 0; i < N; ++i)")
    found = await verdict(tmp_path, serial)
    assert isinstance(found.outcome, Correct)
    assert not any("not screened" in note for note in found.notes)


@pytest.mark.parametrize(("limit", "at_most"), [("MAX_SCREENED_OPERATIONS", -1), ("MAX_SCREENED_INSTRUCTIONS", 100)])
async def test_a_candidate_too_long_to_screen_is_ranked_without_and_screened_beside_its_full_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, at_most: int
) -> None:
    assert "executor" in (await verdict(tmp_path, depth="rank")).stages_s
    monkeypatch.setattr(executor_checks, limit, at_most)
    ranked = await verdict(tmp_path, depth="rank")
    assert isinstance(ranked.outcome, Correct)
    assert "executor" not in ranked.stages_s
    found = await verdict(tmp_path, with_loop("volatile int go_on = 1; while (go_on) {}"))
    assert isinstance(found.outcome, Rejected)


async def test_what_no_executor_ends_is_only_inspected_for_endless_loops_and_left_to_the_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    for name in ("load", "inspect", "run"):
        real = getattr(PtxExecutor, name)

        def counted(*given: Any, name: str = name, real: Any = real, **more: Any) -> Any:
            called.append(name)
            return real(*given, **more)

        monkeypatch.setattr(PtxExecutor, name, counted)
    monkeypatch.setattr(executor_checks, "MAX_RUN_OPERATIONS", -1)
    found = await verdict(tmp_path)
    assert isinstance(found.outcome, Correct)
    assert called == ["inspect"]
    assert [note for note in found.notes if "screened" in note] == [
        "affine: not screened for races and stray accesses: its smallest size is too long for the executor"
    ]
    endless = await verdict(tmp_path, with_loop("volatile int go_on = 1; while (go_on) {}"))
    assert isinstance(endless.outcome, Rejected)


async def test_a_kernel_of_long_blocks_is_screened_where_it_has_the_fewest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_blocks = TEXT.replace("<<<ceil_div(N, 256), 256>>>", "<<<N, 32>>>").replace(
        "int i = blockIdx.x * blockDim.x + threadIdx.x;", "int i = blockIdx.x + N * (threadIdx.x > 0);"
    )
    short = replace(executor_checks.SCREEN_LIMITS, max_instructions=600)
    monkeypatch.setattr(executor_checks, "SCREEN_LIMITS", short)
    monkeypatch.setattr(executor_checks, "BRIEF_INSTRUCTIONS", 1_200)
    found = await verdict(tmp_path, by_blocks)
    assert isinstance(found.outcome, Correct)
    assert [note for note in found.notes if "screened" in note] == [
        "affine: screened for races and stray accesses at one size alone: the others are too long"
    ]


async def test_a_candidate_without_a_kernel_of_its_own_is_not_too_long_to_screen(tmp_path: Path) -> None:
    by_library = "// kernel-lsp: 1\n// op: affine(x: f32[N]) -> (out: f32[N])\n// library: aten::mul(x, x) -> (out)\n"
    found = await verdict(tmp_path, by_library, depth="rank")
    assert isinstance(found.outcome, Crashed)
    assert "not a library function" in found.outcome.message
