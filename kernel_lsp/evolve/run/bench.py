"""Run a benchmark: each task in a run of its own, whose hang or crash costs no other task."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernel_lsp.config import find_workspace, load_settings
from kernel_lsp.core.benchmark import BenchEntry, Status, bench_time, speedups
from kernel_lsp.core.digest import sha256_of
from kernel_lsp.core.event import CandidateEvaluated, Event, RunFinished, StageStarted, TaskCaptured
from kernel_lsp.core.words import counted
from kernel_lsp.errors import EnvironmentProblem, KernelLspError, SettingError
from kernel_lsp.evolve.run.optimize import start_request
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.source.suite import BenchTask
from kernel_lsp.verify.model.cases import StageTimes
from kernel_lsp.verify.session.start import SessionStart
from kernel_lsp.verify.timing.baselines import N_COMPILED_MODES

_logger = logging.getLogger(__name__)
MAX_STARTS = 2
"""Starts of a task that ended with the whole command, after which a resumed run passes it over."""
SEARCH_SHARE = 0.5
"""Share of a task's time after which no candidate starts. The full check of the best one, and torch.compile's modes,
have the rest."""
OF_THE_MACHINE = (EnvironmentProblem, SettingError)
"""Errors of the machine or its settings, which every task meets: an unreachable host, a missing device."""


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
    devices: tuple[str, ...] = ()
    """Devices that run tasks side by side, e.g. ``cuda:0`` and ``cuda:1``; empty for the settings' own."""
    on_event: Callable[[str, Event], None] = lambda _target, _event: None
    """Receives the events of each task's run."""


class Lane:
    """One of the places where tasks run one after another. The session of the next one starts while the full check of
    the one before it runs: its worker imports torch for seconds."""

    def __init__(self, number: int, device: str | None) -> None:
        """`device` is None where the settings decide."""
        self._number, self._device = number, device
        self._begun: tuple[AsyncExitStack, asyncio.Task[SessionStart]] | None = None
        self.has_next = False
        """True while a task is to follow."""
        self.has_run = False
        """True once a task has run: the environment has been in order."""

    def overrides(self, plan: BenchPlan) -> Mapping[str, Any]:
        """Return the settings of its runs."""
        device = {} if self._device is None else {"device": self._device}
        return {"run_deadline_s": plan.deadline_s * SEARCH_SHARE, **plan.overrides, **device}

    def workspace(self, plan: BenchPlan) -> Path:
        """Return the workspace of its runs, which one run holds at a time."""
        return find_workspace(plan.directory) if self._number == 0 else plan.results / f"lane-{self._number}"

    def start_next(self, plan: BenchPlan) -> None:
        """Begin to start the session of the task that follows, if one does, unless that has begun."""
        if self.has_next and self._begun is None:
            settings, stack = load_settings(plan.directory, self.overrides(plan)), AsyncExitStack()
            start = SessionStart(settings, n_compiled_modes=N_COMPILED_MODES)
            self._begun = stack, asyncio.create_task(stack.enter_async_context(start))

    @asynccontextmanager
    async def started(self) -> AsyncIterator[SessionStart | None]:
        """Hold the session's start that was begun before; None without one."""
        begun, self._begun = self._begun, None
        if begun is None:
            yield None
            return
        stack, starting = begun
        async with stack:
            yield await starting

    async def close(self) -> None:
        """End a start that no task needs."""
        begun, self._begun = self._begun, None
        if begun is not None:
            stack, starting = begun
            async with stack:
                await end_tasks(starting)


async def bench_entries(plan: BenchPlan, ledger: BenchLedger) -> AsyncIterator[BenchEntry]:
    """Yield the entry of each task as it ends; those of the ledger at once. Each of the plan's devices has a task at a
    time. Raises EnvironmentProblem or SettingError where the first task meets one before its capture: so would all
    others."""
    known, waiting = ledger.kept(plan.deadline_s), deque(plan.tasks)
    ended = asyncio.Queue[BenchEntry | None]()

    async def run_on(lane: Lane) -> None:
        try:
            while waiting:
                task = waiting.popleft()
                lane.has_next = bool(waiting)
                entry = known.get(task.target) or await _recorded(plan, task, ledger, lane)
                if plan.every_configuration and "::" not in task.target:
                    waiting.extendleft(reversed(_configurations(task, entry)))
                ended.put_nowait(entry)
        finally:
            await lane.close()
            ended.put_nowait(None)

    running = [asyncio.create_task(run_on(Lane(*each))) for each in enumerate(plan.devices or (None,))]
    try:
        n_running = len(running)
        while n_running:
            found = await ended.get()
            if found is None:
                n_running -= 1
            else:
                yield found
        await asyncio.gather(*running)
    finally:
        await end_tasks(*running)


def _configurations(task: BenchTask, entry: BenchEntry) -> Sequence[BenchTask]:
    return [replace(task, target=f"{task.target}::{number}") for number in range(2, entry.n_configurations + 1)]


async def _recorded(plan: BenchPlan, task: BenchTask, ledger: BenchLedger, lane: Lane) -> BenchEntry:
    if ledger.is_given_up(task.target):
        return _Row(task).entry("refused", f"the command ended {MAX_STARTS} times while this task ran")
    ledger.start(task.target)
    try:
        entry = await _bounded(plan, task, lane)
    except (asyncio.CancelledError, KeyboardInterrupt, *OF_THE_MACHINE):
        ledger.stop(task.target)
        raise
    lane.has_run = True
    ledger.finish(entry)
    return entry


async def _bounded(plan: BenchPlan, task: BenchTask, lane: Lane) -> BenchEntry:
    """Run one task within its deadline. Any failure is its row, but for `OF_THE_MACHINE` of the first one."""
    row = _Row(task)
    try:
        async with asyncio.timeout(plan.deadline_s):
            await _run(plan, task, row, lane)
        return row.finished_entry()
    except TimeoutError:
        if row.has_result:  # the time ended while its processes did
            return row.finished_entry()
        limit = f"time limit of {plan.deadline_s:.0f} s per task"
        return row.entry("failed", f"{limit} {row.place()}; --deadline raises it")
    except OF_THE_MACHINE as error:  # "failed", so that a resumed run has the task run again
        if not lane.has_run and not row.is_captured:
            raise
        return row.entry("failed", f"{error.message}; {error.next_step}".rstrip("; "))
    except KernelLspError as error:
        return row.entry("refused", error.message)
    except Exception as error:  # an error of ours in one task is no reason to lose the others
        _logger.exception("%s failed", task.target)
        return row.entry("failed", f"internal error: {type(error).__name__}: {error}")


async def _run(plan: BenchPlan, task: BenchTask, row: _Row, lane: Lane) -> None:
    folder = re.sub(r"[^\w.]+", "_", task.target).strip("_.")
    overrides = {**lane.overrides(plan), "out_directory": plan.results / folder}
    async with lane.started() as start:
        handle = start_request(plan.directory, task.target, task.backward, overrides, peers=task.peers)
        handle.workspace, handle.start = lane.workspace(plan), start
        try:
            async for event in handle.events():
                row.take(event)
                plan.on_event(task.target, event)
                if row.is_in_full_check:
                    lane.start_next(plan)
        finally:
            if row.is_in_full_check and handle.full_check is not None:
                row.take_unfinished(handle.full_check)


class _Row:
    """The row of a task, from the events of its run so far."""

    def __init__(self, task: BenchTask) -> None:
        self._task, self._started = task, time.monotonic()
        self._captured: TaskCaptured | None = None
        self._finished: RunFinished | None = None
        self._first_s: float | None = None
        self._best_us: dict[str, float] = {}
        """Times of correct candidates."""
        self._stages_s: dict[str, float] = {}
        self._result_s: float | None = None
        self._is_in_full_check = False
        self._unfinished: StageTimes | None = None
        """Stages of a full check that did not end."""

    def take(self, event: Event) -> None:
        """Record what the row needs of an event, and when it came."""
        now_s = time.monotonic() - self._started
        if isinstance(event, TaskCaptured):
            self._captured, self._stages_s["capture"] = event, now_s
        elif isinstance(event, CandidateEvaluated) and event.depth != "full":
            self._stages_s["search"] = now_s - self._stages_s.get("capture", 0.0)
            if event.outcome == "correct" and event.score_us is not None:
                self._best_us[event.candidate_id] = event.score_us
                self._first_s = self._stages_s["search"] if self._first_s is None else self._first_s
        elif isinstance(event, StageStarted):
            self._is_in_full_check = "search" in self._stages_s
        elif isinstance(event, RunFinished):
            self._finished, self._result_s = event, now_s
            self._take_full_check(event.stages_s)

    def take_unfinished(self, stages: StageTimes) -> None:
        """Record how far a full check came that did not end."""
        self._unfinished = stages
        self._take_full_check(stages.stages_s)

    def _take_full_check(self, stages_s: Mapping[str, float]) -> None:
        before_s = self._stages_s.get("capture", 0.0) + self._stages_s.get("search", 0.0)
        self._stages_s["full check"] = time.monotonic() - self._started - before_s
        self._stages_s |= {f"full check: {name}": seconds for name, seconds in stages_s.items()}

    @property
    def is_captured(self) -> bool:
        """Check whether the task was captured."""
        return self._captured is not None

    @property
    def has_result(self) -> bool:
        """Check whether the run has ended but for its processes."""
        return self._finished is not None

    @property
    def is_in_full_check(self) -> bool:
        """Check whether the search has ended and the result is still to come."""
        return self._is_in_full_check and not self.has_result

    def place(self) -> str:
        """Return the run's progress in words."""
        if self._captured is None:
            return "ended its capture"
        if not self._best_us:
            return "ended before any candidate was correct"
        passed, best_us = counted(len(self._best_us), "candidate"), min(self._best_us.values())
        stages = self._unfinished.words_of_cancelled() if self._unfinished is not None else ""
        where = f"ended in its full check ({stages})" if stages else "ended before a full check did"
        return f"{where}: {passed} passed the screen, the best in {best_us:.4g} us"

    def entry(self, status: Status, detail: str, **values: Any) -> BenchEntry:
        """Return the row as far as it is known."""
        captured, now_s = self._captured, time.monotonic() - self._started
        outcomes = self._finished.configurations if self._finished is not None else ()
        if self._result_s is not None:
            self._stages_s["end of processes"] = now_s - self._result_s
        return BenchEntry(
            target=self._task.target,
            status=status,
            detail=detail,
            n_configurations=len(captured.configurations) + captured.n_uncovered if captured is not None else 1,
            n_covered=sum(outcome.is_served for outcome in outcomes) if outcomes else int(status == "verified"),
            elapsed_s=now_s if self._result_s is None else self._result_s,
            first_kernel_s=self._first_s,
            stages_s=self._stages_s,
            **values,
        )

    def finished_entry(self) -> BenchEntry:
        """Return the row of a run that has ended."""
        finished = self._finished
        assert finished is not None, "a run ends with RunFinished or raises"
        times = tuple(bench_time(name, comparison) for name, comparison in finished.comparisons.items())
        return self.entry(
            "verified" if finished.candidate_id is not None else "none",
            finished.reason,
            times=times,
            speedups=speedups(times),
            claimed=speedups(times, by_claim=True),
            recommendation=finished.recommendation,
            library_steps=finished.library_steps,
            cut_short=finished.stopped if finished.is_cut_short else "",
            cost_usd=finished.cost_usd,
        )


class BenchLedger:
    """One file. A line that is cut short, as by a crash, is ignored."""

    def __init__(self, path: Path, *, resumed: bool) -> None:
        """Without `resumed`, a ledger of an earlier run is kept beside it, with `.old` behind its name."""
        self._path = path
        self._lines = list(_read(path))
        self.n_set_aside = 0 if resumed else len(self.finished())
        """Rows of the earlier run that this one does not keep."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if not resumed and path.exists():
            os.replace(path, path.with_name(f"{path.name}.old"))
            self._lines = []

    def kept(self, deadline_s: float) -> dict[str, BenchEntry]:
        """Return the finished entries that a run with this time limit per task keeps: one that failed sooner than that
        runs again."""
        return {
            target: entry
            for target, entry in self.finished().items()
            if entry.status != "failed" or entry.elapsed_s >= deadline_s
        }

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
    return f"{sha256_of(json.dumps(identity, sort_keys=True, default=str), 12)}.jsonl"


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
