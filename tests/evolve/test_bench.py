"""A benchmark's rows: none is lost to another's hang or crash, and a second start goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.core.benchmark import BenchEntry
from kernel_lsp.core.event import RunFinished
from kernel_lsp.errors import TargetError
from kernel_lsp.evolve.run import bench
from kernel_lsp.evolve.run.bench import BenchLedger, BenchPlan, bench_entries
from kernel_lsp.source.suite import BenchTask

FINISHED = RunFinished(run_id="r", candidate_id="c", reason="fastest", n_proposed=1, n_built=1, n_correct=1)


async def events(target: str) -> AsyncIterator[RunFinished]:
    """Behave as the target's name says."""
    if target == "hangs":
        await asyncio.sleep(60)
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
        return SimpleNamespace(events=lambda: events(target))

    monkeypatch.setattr(bench, "start_request", start)
    return ran


async def run(folder: Path, *targets: str, resumed: bool = False) -> dict[str, BenchEntry]:
    plan = BenchPlan(folder, tuple(map(BenchTask, targets)), {}, folder, deadline_s=0.2)
    ledger = BenchLedger(folder / "l.jsonl", resumed=resumed)
    return {entry.target: entry async for entry, _ in bench_entries(plan, ledger)}


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


async def test_a_task_that_took_the_command_down_twice_is_passed_over(tmp_path: Path, ran: list[str]) -> None:
    ledger = BenchLedger(tmp_path / "l.jsonl", resumed=False)
    for target in ("a", "a", "b", "b"):
        ledger.start(target)
    ledger.stop("b")  # once by the user
    found = await run(tmp_path, "a", "b", resumed=True)
    assert [found[target].status for target in "ab"] == ["refused", "verified"]
