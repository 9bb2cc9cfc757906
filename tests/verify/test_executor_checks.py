"""A slow kernel is run on its smallest cases before time is up, and the verdict says what was left out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundOperation, BoundTensor
from kernel_lsp.core.verdict import CaseResult
from kernel_lsp.verify.cpu import executor_checks
from kernel_lsp.verify.cpu.cpu_device import LoadedKernel, Profile
from kernel_lsp.verify.cpu.executor_checks import (
    FULL_BUDGET_S,
    FULL_LIMITS,
    MAX_INSTRUCTIONS,
    MAX_INSTRUCTIONS_OF_BLOCKS,
    MAX_OPERATIONS,
    MIN_CASES,
    REST_BUDGET_S,
    check,
    sample_of,
)
from kernel_lsp.verify.devices.device import CaseRun, Skipped
from kernel_lsp.verify.model.cases import Case, Plan, Progress
from tests.verify.copies import prepared


class SlowKernel(LoadedKernel):
    """Takes so many seconds of a clock of its own for a large case, a tenth of a second for a small one."""

    ran: list[str]
    found: Profile | Skipped = Skipped("not here")
    now_s = large_s = 0.0

    async def profile(self, *_: Any) -> Profile | Skipped:
        return self.found

    async def run(self, case: Case, bound: Any, *_: Any) -> CaseRun:
        self.now_s += self.large_s if bound.tensors[0].n_elements > 100 else 0.1
        self.code.used_s = self.now_s
        self.ran.append(case.family)
        result = CaseResult(operation="f", family=case.family, shapes={}, n_blocks=1, n_blocks_run=1, errors=())
        return CaseRun(result, (), 1)


def _operation(n_elements: int) -> BoundOperation:
    tensor = BoundTensor(name="x", dtype=DType.F32, shape=(n_elements,), role="input")
    return BoundOperation(name="f", dims={}, tensors=(tensor,), steps=())


def _plan() -> Plan:
    """Twenty large cases, then small ones."""
    sizes = [1000] * 20 + [10] * 5
    return [(Case("forward", (), f"{n}-{position}", 0, "forward"), _operation(n)) for position, n in enumerate(sizes)]


async def _ran(
    large_s: float, monkeypatch: pytest.MonkeyPatch, n_operations: int = 0, n_instructions: int = 0
) -> tuple[SlowKernel, Progress]:
    """Large cases ask PyTorch for so many operations, and the kernel for so many instructions."""
    none: Any = None
    code: Any = SimpleNamespace(built=None, used_s=0.0)
    progress = Progress("c")
    device = SlowKernel(code, none, prepared("launch: k<<<B, 32>>>(x, out, D)"), _plan(), progress, none)
    device.ran, device.large_s = [], large_s
    if n_instructions:
        device.found = Profile(())
    monkeypatch.setattr(executor_checks, "refused_when_larger", lambda *_: None)
    monkeypatch.setattr(executor_checks, "environments_of", lambda _: ())
    counts = {"n_operations": lambda _, case, __: n_operations * case.family.startswith("1000")}
    counts |= {"n_instructions": lambda _, bound: n_instructions * (bound.tensors[0].n_elements > 100)}
    counts |= {"growth_of": lambda *_: 1.0}
    for name, count in counts.items():
        monkeypatch.setattr(executor_checks, name, count)
    monkeypatch.setattr(executor_checks, "_estimate", lambda *_: None)
    found = await check(device)
    assert found is None
    return device, progress


@pytest.mark.parametrize(
    ("growth", "n_wanted"), [(1.0, None), (8.0, None), (64.0, 1600)], ids=["alike", "larger", "far larger"]
)
def test_blocks_are_sampled_where_each_has_far_more_to_do(growth: float, n_wanted: int | None) -> None:
    bound = prepared("launch: k<<<B, 32>>>(x, out, D)").bind("forward", {"B": 50_000, "D": 4})
    profile: Any = SimpleNamespace(instructions_per_block=1000.0)
    limits = replace(FULL_LIMITS, complete_instructions=102_400_000)
    found = sample_of(bound, profile, limits, 7, lambda: growth)
    assert (None if found is None else found.n_blocks) == n_wanted


async def test_every_case_of_a_fast_kernel_is_run_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    device, progress = await _ran(0.1, monkeypatch)
    assert device.ran == [case.family for case, _ in _plan()]
    assert progress.notes == ["forward: not profiled: not here"]


async def test_small_cases_of_a_slow_kernel_are_run_when_its_time_is_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    device, progress = await _ran(FULL_BUDGET_S / 5, monkeypatch)
    assert {family for family in device.ran if family.startswith("10-")} == {f"10-{n}" for n in range(20, 25)}
    assert "more input families were not run (CPU time)" in progress.notes[-1]


async def test_a_very_slow_kernel_has_its_least_cases_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    device, _ = await _ran(FULL_BUDGET_S + REST_BUDGET_S, monkeypatch)
    assert len(device.ran) == MIN_CASES


@pytest.mark.parametrize(("more", "less", "n_run"), [(1, 1, 5), (0, 1, 25), (1, 0, 25)])
async def test_what_only_a_gpu_has_the_time_for_is_not_run_and_said(
    more: int, less: int, n_run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take a case in which both the target and the kernel need too much."""
    device, progress = await _ran(0.1, monkeypatch, MAX_OPERATIONS + more, MAX_INSTRUCTIONS + less)
    assert len(device.ran) == n_run
    said = (
        "f: not run at the captured sizes and in 19 more cases: all blocks would have to, and only a GPU has the time"
    )
    assert progress.notes == ([said] if n_run == 5 else [])


@pytest.mark.parametrize(("more", "n_run"), [(1, 5), (0, 25)])
async def test_many_blocks_that_would_not_end_in_time_are_left_to_a_gpu_whatever_the_target_needs(
    more: int, n_run: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, progress = await _ran(0.1, monkeypatch, 1, MAX_INSTRUCTIONS_OF_BLOCKS + more)
    assert len(device.ran) == n_run
    assert ("only a GPU has the time" in " ".join(progress.notes)) is (n_run == 5)


async def test_a_kernel_of_which_nothing_was_counted_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    device, _ = await _ran(0.1, monkeypatch, MAX_OPERATIONS + 1)
    assert len(device.ran) == 25
