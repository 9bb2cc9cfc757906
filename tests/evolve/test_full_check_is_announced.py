"""Before the full check of what a search found it is said what is done, and for how long it may wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kernel_lsp.cli.optimize import RunView
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.event import Event, GenerationStarted, NewBest, RunStarted, StageStarted
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.run.evaluations import Evaluations
from kernel_lsp.evolve.run.final_verification import Ending, Finalist
from kernel_lsp.server.jobs.progress import Tracker

from .world import FakeDevice, kernel, verdict_of

WAIT_S = 45.0
MINUTE = 60.0


@asynccontextmanager
async def ending_of(folder: Path, device: FakeDevice, *texts: str) -> AsyncIterator[tuple[Ending, Evaluations]]:
    """The end of a search that found the kernels in `texts`, best first."""
    candidates = [Candidate(text=text, origin=Origin(proposer="generator", description="")) for text in texts]
    with Archive(folder) as archive:
        run_id = archive.start_run("model.py::scale", {})
        for candidate in candidates:
            archive.save_candidate(run_id, candidate)
        evaluations = Evaluations(run_id, archive, device)
        verdicts = [verdict_of(candidate) for candidate in candidates]
        finalists = [Finalist(c, v, 1.0) for c, v in zip(candidates, verdicts, strict=True)]
        yield Ending(finalists, verdicts, len(candidates), evaluations), evaluations
        await evaluations.close()


async def stages(folder: Path, device: FakeDevice, *texts: str) -> list[str]:
    async with ending_of(folder, device, *texts) as (ending, _):
        events = [event async for event in ending.run()]
    assert [event.kind for event in events] == ["stage_started", "candidate_evaluated"] * (len(events) // 2)
    return [event.message for event in events if isinstance(event, StageStarted)]


async def test_the_wait_is_said_with_its_bound(tmp_path: Path) -> None:
    device = FakeDevice()
    device.baseline_wait_s = WAIT_S
    (said,) = await stages(tmp_path, device, kernel(5))
    assert said.startswith("full check of the best candidate ")
    assert said.endswith(": it waits at most 45 s for torch.compile, to time both")


async def test_where_nothing_is_timed_no_wait_is_spoken_of(tmp_path: Path) -> None:
    (said,) = await stages(tmp_path, FakeDevice(), kernel(5))
    assert "waits" not in said


async def test_each_further_attempt_is_said(tmp_path: Path) -> None:
    first, second = await stages(tmp_path, FakeDevice(), kernel(5, "FULL_WRONG"), kernel(6))
    assert first.startswith("full check of the best candidate")
    assert second.startswith("full check of the next best candidate")


async def test_a_run_can_be_ended_while_it_waits(tmp_path: Path) -> None:
    async with ending_of(tmp_path, FakeDevice(delay_s=MINUTE), kernel(5)) as (ending, evaluations):
        waiting = asyncio.Event()

        async def run() -> None:
            async for event in ending.run():
                assert event.kind == "stage_started", "the check does not end by itself"
                waiting.set()

        task = asyncio.create_task(run())
        await waiting.wait()
        await asyncio.sleep(0.02)
        task.cancel()
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.CancelledError):
                await task
            await evaluations.close()


SAID = StageStarted(message="full check of the best candidate ab: it waits at most 45 s for torch.compile")
RUN: list[Event] = [
    RunStarted(run_id="r", target="t", device="d", target_gpu="H200"),
    GenerationStarted(generation=0, n_generations=1, n_proposals=1),
    NewBest(candidate_id="ab", score_us=6.5, score_kind="measured"),
    SAID,
]


def test_an_editor_s_progress_says_it_with_the_best_so_far() -> None:
    tracker = Tracker()
    for event in RUN:
        tracker.hear(event)  # type: ignore[arg-type]  # RUN holds events alone
    assert tracker.message == f"{SAID.message}, best 6.5 us (measured), cost $0.00"


def test_the_command_line_says_it(capsys: pytest.CaptureFixture[str]) -> None:
    with RunView() as view:
        for event in RUN:
            view.show(event)
    assert SAID.message in " ".join(capsys.readouterr().err.split())


def test_the_progress_shows_the_last_best() -> None:
    """The last candidate of a generation may be the best: nothing else of it is counted afterwards."""
    with RunView() as view:
        for event in RUN[:3]:
            view.show(event)
        assert [task.fields["best"] for task in view._progress.tasks] == ["best 6.5 us (measured)"]
