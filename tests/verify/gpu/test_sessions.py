"""Several sessions at once on one GPU: what one does leaves the others alone, and none outlives its end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.verdict import CheckOutcome, Correct, Verdict
from kernel_lsp.plan.parser import parse
from kernel_lsp.process.tree import descendants
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.gpu import slot as gpu_slot
from kernel_lsp.verify.gpu.checks import GpuChecks
from kernel_lsp.verify.session.pipeline import DEVICE_NAME as EXECUTOR
from kernel_lsp.verify.session.session import Session

from .fake_sessions import TEXT, install, settings, verdict
from .harness import gpu, run, worker

END_S = 20.0


class EarlyError(Exception):
    """Return what a session raises before it has done anything."""


@pytest.fixture(autouse=True)
def fake_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)


async def early(folder: Path, after_s: float = 0.0) -> Verdict:
    async with Session(settings(folder)):
        await asyncio.sleep(after_s)
        raise EarlyError


async def test_one_that_raises_early_leaves_the_others_their_verdicts(tmp_path: Path) -> None:
    first, second, third = await asyncio.gather(
        verdict(tmp_path), early(tmp_path), early(tmp_path, 1.0), return_exceptions=True
    )
    assert isinstance(first, Verdict)
    assert isinstance(first.outcome, Correct), first.outcome
    assert first.device.startswith("Fake GPU")
    assert isinstance(second, EarlyError)
    assert isinstance(third, EarlyError)


async def test_those_that_are_given_up_with_it_end_soon_and_leave_no_process(tmp_path: Path) -> None:
    before = set(descendants(os.getpid()))
    others = [asyncio.create_task(verdict(tmp_path)) for _ in range(2)]
    with pytest.raises(EarlyError):
        await early(tmp_path, 0.8)
    for other in others:
        other.cancel()
    done, _ = await asyncio.wait(others, timeout=END_S)
    assert done == set(others)
    assert set(descendants(os.getpid())) <= before


async def test_a_kernel_that_was_begun_before_its_task_was_known_gets_its_verdict(tmp_path: Path) -> None:
    plan = parse(TEXT).plan
    assert plan is not None
    async with Session(settings(tmp_path)) as own:
        own.begin(TEXT, plan)
        source = read_target("task.py::affine", tmp_path)
        verifier = await own.verifier(source, await own.capture(source, with_backward=False))
        candidate = Candidate(text=TEXT, origin=Origin(proposer="user"))
        first, again = [await verifier.verify(candidate, "full") for _ in range(2)]
    assert isinstance(first.outcome, Correct), first.outcome
    assert isinstance(again.outcome, Correct), again.outcome


async def test_an_evaluation_ends_with_its_session(tmp_path: Path) -> None:
    async with Session(settings(tmp_path)) as own:
        source = read_target("task.py::affine", tmp_path)
        verifier = await own.verifier(source, await own.capture(source, with_backward=False))
        left_behind = asyncio.create_task(verifier.verify(Candidate(text=TEXT, origin=Origin(proposer="user")), "full"))
        await asyncio.sleep(0)
    assert left_behind.cancelled() or isinstance(await settled(left_behind), asyncio.CancelledError)


async def settled(task: asyncio.Task[Verdict]) -> object:
    (result,) = await asyncio.gather(task, return_exceptions=True)
    return result


async def test_a_replacement_that_does_not_come_up_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the next replacement starts at once; nobody needs it when the session ends."""
    stuck = tmp_path / "stuck.py"
    stuck.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(gpu_slot, "OPEN_DEADLINE_S", 300.0)
    makers: list[Callable[[], Worker]] = [lambda: worker(stuck), worker, worker]
    async with gpu(tmp_path, lambda: makers.pop()()) as device:
        await run(device, tmp_path, "illegal_address")
        await run(device, tmp_path, "affine")
        closing = asyncio.create_task(device.slot.__aexit__())
        done, _ = await asyncio.wait([closing], timeout=END_S)
    assert done


async def test_what_ran_on_the_gpu_is_measured_again_at_once_and_screened_beside_its_full_check(tmp_path: Path) -> None:
    async with Session(settings(tmp_path)) as session:
        source = read_target("task.py::affine", tmp_path)
        verifier = await session.verifier(source, await session.capture(source, with_backward=False))
        candidates = [Candidate(text=text, origin=Origin(proposer="user")) for text in (TEXT, f"{TEXT}\n")]
        ranked, again = [await verifier.verify(candidates[0], depth) for depth in ("rank", "screen")]
        known, new = [await verifier.verify(candidate, "full") for candidate in candidates]
    assert (ranked.is_correct, again.is_correct) == (True, True)
    assert "executor" in ranked.stages_s
    assert not any(stage.startswith("executor") for stage in again.stages_s)
    assert isinstance(known.outcome, Correct)
    assert isinstance(new.outcome, Correct)
    assert [case.device for case in known.outcome.cases].count(EXECUTOR) == [
        case.device for case in new.outcome.cases
    ].count(EXECUTOR)
    assert "executor" in new.stages_s
    assert "executor" not in known.stages_s
    assert "executor, beside the GPU" in known.stages_s


async def test_the_first_measurement_does_not_wait_for_the_cases_of_the_full_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, real = list[str](), GpuChecks.check

    async def check(*arguments: Any, **options: Any) -> CheckOutcome | None:
        found = await real(*arguments, **options)
        order.append("measured")
        return found

    monkeypatch.setattr(GpuChecks, "check", check)
    ahead = "kernel_lsp.verify.session.pipeline.Evaluator.make_full_cases_ahead"
    monkeypatch.setattr(ahead, lambda *_: order.append("cases of the full check"))
    await verdict(tmp_path, depth="rank")
    assert order == ["measured", "cases of the full check"]
