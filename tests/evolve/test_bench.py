"""A benchmark's rows: none is lost to another's hang or crash, and a second start goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.core.benchmark import BenchEntry
from kernel_lsp.core.event import CandidateEvaluated, Event, RunFinished, StageStarted, TaskCaptured
from kernel_lsp.errors import EnvironmentProblem, TargetError
from kernel_lsp.evolve.run import bench
from kernel_lsp.evolve.run.bench import BenchLedger, BenchPlan, bench_entries
from kernel_lsp.source.suite import BenchTask
from kernel_lsp.verify.model.cases import StageTimes

FINISHED = RunFinished(run_id="r", candidate_id="c", reason="fastest", n_proposed=1, n_built=1, n_correct=1)


CAPTURED = TaskCaptured(name="n", summary="", n_nodes=1, n_nodes_backward=0, configurations=())


def evaluated(candidate_id: str, score_us: float | None) -> CandidateEvaluated:
    outcome = "mismatch" if score_us is None else "correct"
    kind: Any = "none" if score_us is None else "measured"
    facts = {"generation": 0, "depth": "rank", "message": "", "score_kind": kind}
    return CandidateEvaluated(candidate_id=candidate_id, outcome=outcome, score_us=score_us, **facts)


async def events(target: str) -> AsyncIterator[Event]:
    """Behave as the target's name says."""
    if target == "hangs":
        await asyncio.sleep(60)
    if target == "no machine":
        raise EnvironmentProblem("no worker", next_step="start one")
    yield CAPTURED
    await asyncio.sleep(0.02)
    if target == "goes on":
        yield evaluated("a", 12.0)
        yield StageStarted(message="full check")
        await asyncio.sleep(0.02)
    for event in (evaluated("a", None), evaluated("b", 12.0), evaluated("c", 10.0)):
        yield event
    if target == "hangs in its full check":
        await asyncio.sleep(60)
    if target == "cut short":
        yield FINISHED.model_copy(update={"is_cut_short": True, "stopped": "time limit", "stages_s": {"gpu time": 1.0}})
        await asyncio.sleep(60)  # as its processes end, longer than the row's time
        return
    if target == "crashes":
        raise RuntimeError("boom")
    if target == "refused":
        raise TargetError("no shapes")
    yield FINISHED


@pytest.fixture(name="ran")
def started_targets(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    ran: list[str] = []

    def start(directory: Path, target: str, *_: Any, **__: Any) -> SimpleNamespace:
        ran.append(target)
        stages = StageTimes()
        run = checking(stages) if target == "is cut in its full check" else events(target)
        return SimpleNamespace(events=lambda: run, full_check=stages)

    monkeypatch.setattr(bench, "start_request", start)
    return ran


async def checking(stages: StageTimes) -> AsyncIterator[Event]:
    """Begin a full check that does not end."""
    for event in (CAPTURED, evaluated("a", 12.0), StageStarted(message="full check")):
        yield event
    stages.add_stage("gpu cases", 3.0)
    stages.n_cases["references"] = 12, 31
    with stages.stage("references"):
        await asyncio.sleep(60)


async def run(
    folder: Path, *targets: str, resumed: bool = False, devices: tuple[str, ...] = (), deadline_s: float = 0.4
) -> dict[str, BenchEntry]:
    plan = BenchPlan(folder, tuple(map(BenchTask, targets)), {}, folder, deadline_s=deadline_s, devices=devices)
    ledger = BenchLedger(folder / "l.jsonl", resumed=resumed)
    return {entry.target: entry async for entry in bench_entries(plan, ledger)}


async def test_a_row_that_hangs_or_crashes_loses_no_other(tmp_path: Path, ran: list[str]) -> None:
    found = await run(tmp_path, "hangs", "crashes", "refused", "good")
    assert [entry.status for entry in found.values()] == ["failed", "failed", "refused", "verified"]
    assert "RuntimeError: boom" in found["crashes"].detail


async def test_a_resumed_run_goes_on_and_a_new_one_begins_anew(tmp_path: Path, ran: list[str]) -> None:
    await run(tmp_path, "a", "b")
    with (tmp_path / "l.jsonl").open("a") as file:
        file.write('{"kind": "fini')  # as a crash cuts a line short
    assert list(await run(tmp_path, "a", "b", "c", resumed=True)) == ["a", "b", "c"]
    assert ran == ["a", "b", "c"]
    await run(tmp_path, "a")
    assert ran[3:] == ["a"]
    assert (tmp_path / "l.jsonl.old").is_file()


async def test_a_fault_of_the_machine_ends_the_first_task_with_all_and_a_later_one_until_it_resumes(
    tmp_path: Path, ran: list[str]
) -> None:
    with pytest.raises(EnvironmentProblem):
        await run(tmp_path, "no machine", "good")
    found = await run(tmp_path, "good", "no machine")
    assert (found["no machine"].status, found["no machine"].detail) == ("failed", "no worker; start one")
    ran.clear()
    with pytest.raises(EnvironmentProblem):
        await run(tmp_path, "good", "no machine", resumed=True)
    assert ran == ["no machine"]


async def test_a_task_that_took_the_command_down_twice_is_passed_over(tmp_path: Path, ran: list[str]) -> None:
    ledger = BenchLedger(tmp_path / "l.jsonl", resumed=False)
    for target in ("a", "a", "b", "b"):
        ledger.start(target)
    ledger.stop("b")  # once by the user
    found = await run(tmp_path, "a", "b", resumed=True)
    assert [found[target].status for target in "ab"] == ["refused", "verified"]


async def test_a_row_whose_search_was_cut_short_keeps_its_kernel_and_says_so(tmp_path: Path, ran: list[str]) -> None:
    found = await run(tmp_path, "cut short", "good")
    assert [(entry.status, entry.cut_short) for entry in found.values()] == [
        ("verified", "time limit"),
        ("verified", ""),
    ]
    row = found["cut short"]
    assert row.stages_s["full check: gpu time"] == 1.0
    assert row.first_kernel_s is not None
    assert row.first_kernel_s >= 0.02
    assert row.stages_s["search"] >= row.first_kernel_s
    assert row.stages_s["end of processes"] >= 0.05
    assert row.elapsed_s < 0.4 - 0.05


async def test_a_row_that_ends_in_its_full_check_says_what_was_known(tmp_path: Path, ran: list[str]) -> None:
    (row,) = (await run(tmp_path, "hangs in its full check")).values()
    assert (row.status, row.times) == ("failed", ())
    assert "ended before a full check did: 2 candidates passed the screen, the best in 10 us" in row.detail
    assert row.detail.endswith("; --deadline raises it")


async def test_a_row_that_is_cut_in_its_full_check_names_the_stage_and_keeps_all_times(
    tmp_path: Path, ran: list[str]
) -> None:
    (row,) = (await run(tmp_path, "is cut in its full check")).values()
    assert "ended in its full check (references, 12 of 31 cases, 0 s): 1 candidate passed the screen" in row.detail
    assert row.stages_s["full check: gpu cases"] == 3.0
    assert 0.0 < row.stages_s["full check: references"] <= row.stages_s["full check"] <= row.elapsed_s


async def test_a_row_that_failed_within_less_than_the_time_limit_runs_again(tmp_path: Path, ran: list[str]) -> None:
    await run(tmp_path, "hangs", "good")
    await run(tmp_path, "hangs", "good", resumed=True)
    assert ran == ["hangs", "good"]
    await run(tmp_path, "hangs", "good", resumed=True, deadline_s=0.6)
    assert ran == ["hangs", "good", "hangs"]


async def test_candidates_have_half_of_a_rows_time(
    tmp_path: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[dict[str, Any]]()

    def start(directory: Path, target: str, backward: bool, overrides: dict[str, Any], **_: Any) -> SimpleNamespace:
        given.append(overrides)
        return SimpleNamespace(events=lambda: events(target))

    monkeypatch.setattr(bench, "start_request", start)
    await run(tmp_path, "good")
    assert given[0]["run_deadline_s"] == pytest.approx(0.2)


async def test_tasks_run_side_by_side_on_several_gpus_each_in_a_workspace_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = list[tuple[str, str, SimpleNamespace]]()
    both_run = asyncio.Event()

    async def waiting() -> AsyncIterator[Event]:
        if len(started) == 2:
            both_run.set()
        await both_run.wait()
        yield FINISHED

    def start(directory: Path, target: str, backward: bool, overrides: dict[str, Any], **_: Any) -> SimpleNamespace:
        handle = SimpleNamespace(events=waiting, workspace=None)
        started.append((target, overrides["device"], handle))
        return handle

    monkeypatch.setattr(bench, "start_request", start)
    found = await run(tmp_path, "a", "b", "c", devices=("cuda:0", "cuda:1"))
    assert [entry.status for entry in found.values()] == ["verified"] * 3
    assert {device for _, device, _ in started} == {"cuda:0", "cuda:1"}
    assert len({handle.workspace for _, device, handle in started[:2]}) == 2


async def test_the_next_session_starts_while_the_full_check_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = list[object]()
    log = list[str]()

    class Start:
        def __init__(self, settings: Settings, *, n_compiled_modes: int) -> None:
            self.limit_s = settings.run_deadline_s
            assert n_compiled_modes == 3

        async def __aenter__(self) -> Start:
            log.append("entered")
            return self

        async def __aexit__(self, *_: object) -> None:
            log.append("exited")

    class Handle(SimpleNamespace):
        async def events(self) -> AsyncIterator[Event]:
            used.append(self.start)
            log.append(self.target)
            async for event in events(self.kind):
                yield event

    def start(directory: Path, target: str, *_: Any, **__: Any) -> Handle:
        return Handle(target=target, kind="good" if target == "b" else "goes on")

    monkeypatch.setattr(bench, "start_request", start)
    monkeypatch.setattr(bench, "SessionStart", Start)
    found = await run(tmp_path, "a", "b", "c")
    assert [entry.status for entry in found.values()] == ["verified"] * 3
    assert log == ["a", "entered", "b", "exited", "c"]  # `b` has no full check, and nothing follows `c`
    assert [type(each) for each in used] == [type(None), Start, type(None)]
    assert getattr(used[1], "limit_s", None) == pytest.approx(0.2)
