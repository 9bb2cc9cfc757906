"""Run a benchmark: each task in a run of its own, whose hang or crash costs no other task."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernel_lsp.core.benchmark import BenchEntry, Status
from kernel_lsp.core.event import RunFinished, TaskCaptured
from kernel_lsp.errors import KernelLspError
from kernel_lsp.evolve.run.optimize import start_request
from kernel_lsp.source.suite import BenchTask
from kernel_lsp.verify.tasks.bench_score import bench_time, speedups

_logger = logging.getLogger(__name__)
MAX_STARTS = 2
"""Starts of a task that ended with the whole command, after which a resumed run passes it over."""


@dataclass(frozen=True)
class BenchPlan:
    """Tasks of a benchmark and their settings. `deadline_s` bounds each task, in seconds. `every_configuration`
    gives each further configuration of a task folder a row, ``FOLDER::2`` and so on."""

    directory: Path
    tasks: tuple[BenchTask, ...]
    overrides: Mapping[str, Any]
    results: Path
    deadline_s: float
    every_configuration: bool = False


async def bench_entries(plan: BenchPlan, ledger: BenchLedger) -> AsyncIterator[tuple[BenchEntry, int]]:
    """Yield the entry of each task, and how many are left; those of the ledger at once."""
    known = ledger.finished()
    waiting = deque(plan.tasks)
    while waiting:
        task = waiting.popleft()
        entry = known.get(task.target) or await _recorded(plan, task, ledger)
        if plan.every_configuration and "::" not in task.target:
            waiting.extendleft(reversed(_configurations(task, entry)))
        yield entry, len(waiting)


def _configurations(task: BenchTask, entry: BenchEntry) -> Sequence[BenchTask]:
    return [replace(task, target=f"{task.target}::{number}") for number in range(2, entry.n_configurations + 1)]


async def _recorded(plan: BenchPlan, task: BenchTask, ledger: BenchLedger) -> BenchEntry:
    if ledger.is_given_up(task.target):
        return _failure(task, "refused", f"the command ended {MAX_STARTS} times while this task ran")
    ledger.start(task.target)
    try:
        entry = await _bounded(plan, task)
    except (asyncio.CancelledError, KeyboardInterrupt):
        ledger.stop(task.target)
        raise
    ledger.finish(entry)
    return entry


async def _bounded(plan: BenchPlan, task: BenchTask) -> BenchEntry:
    """Run one task within its deadline. Any failure is its row."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(plan.deadline_s):
            return await _run(plan, task)
    except TimeoutError:
        return _failure(task, "failed", f"time limit of {plan.deadline_s:.0f} s per task", time.monotonic() - started)
    except KernelLspError as error:
        return _failure(task, "refused", error.message, time.monotonic() - started)
    except Exception as error:  # an error of ours in one task is no reason to lose the others
        _logger.exception("%s failed", task.target)
        message = f"internal error: {type(error).__name__}: {error}"
        return _failure(task, "failed", message, time.monotonic() - started)


def _failure(task: BenchTask, status: Status, detail: str, elapsed_s: float = 0.0) -> BenchEntry:
    return BenchEntry(target=task.target, status=status, detail=detail, elapsed_s=elapsed_s)


async def _run(plan: BenchPlan, task: BenchTask) -> BenchEntry:
    finished: RunFinished | None = None
    captured: TaskCaptured | None = None
    overrides = {**plan.overrides, "out_directory": plan.results / re.sub(r"[^\w.]+", "_", task.target).strip("_.")}
    handle = start_request(plan.directory, task.target, task.backward, overrides, peers=task.peers)
    async for event in handle.events():
        finished = event if isinstance(event, RunFinished) else finished
        captured = event if isinstance(event, TaskCaptured) else captured
    assert finished is not None, "a run ends with RunFinished or raises"
    times = tuple(bench_time(name, comparison) for name, comparison in finished.comparisons.items())
    return BenchEntry(
        target=task.target,
        status="verified" if finished.candidate_id is not None else "none",
        detail=finished.reason,
        times=times,
        speedups=speedups(times),
        claimed=speedups(times, by_claim=True),
        recommendation=finished.recommendation,
        library_steps=finished.library_steps,
        n_configurations=len(captured.configurations) + captured.n_uncovered if captured is not None else 1,
        n_covered=len(captured.configurations) if captured is not None else 1,
        elapsed_s=finished.elapsed_s,
        cost_usd=finished.cost_usd,
    )


class BenchLedger:
    """One file. A line that is cut short, as by a crash, is ignored."""

    def __init__(self, path: Path, *, resumed: bool) -> None:
        """Without `resumed`, a ledger of an earlier run is kept beside it, with `.old` behind its name."""
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        if not resumed and path.exists():
            os.replace(path, path.with_name(f"{path.name}.old"))
        self._lines = list(_read(path))

    def finished(self) -> dict[str, BenchEntry]:
        """Return the entries of finished tasks by target; the last one of each counts."""
        found: dict[str, BenchEntry] = {}
        for line in self._lines:
            if line.get("kind") == "finished":
                try:
                    entry = BenchEntry.model_validate(line["entry"])
                except (ValidationError, KeyError):
                    continue  # of another version: the task runs again
                found[entry.target] = entry
        return found

    def is_given_up(self, target: str) -> bool:
        """Return True when the command ended unexpectedly each time that this task ran."""
        count = Counter(line.get("kind") for line in self._lines if line.get("target") == target)
        return count["started"] - count["stopped"] >= MAX_STARTS

    def start(self, target: str) -> None:
        self._append({"kind": "started", "target": target})

    def stop(self, target: str) -> None:
        """Record that the user interrupted the task."""
        self._append({"kind": "stopped", "target": target})

    def finish(self, entry: BenchEntry) -> None:
        self._append({"kind": "finished", "entry": entry.model_dump(mode="json")})

    def _append(self, line: Mapping[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def ledger_name(identity: Mapping[str, Any]) -> str:
    """Return the file name for what a run was asked: the same request finds its ledger again."""
    return f"{hashlib.sha256(json.dumps(identity, sort_keys=True, default=str).encode()).hexdigest()[:12]}.jsonl"


def _read(path: Path) -> Iterator[dict[str, Any]]:
    if not path.exists():
        return
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            yield line
