"""Run a synthesis: workers attempt indices in parallel, and attempts are settled in the order of their indices.

So the accepted tasks do not depend on the number of processes, apart from what the bounds on time drop.

Summarize a synthesis: how many tasks each filter was asked about and dropped, and the time of each stage.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kernel_lsp.config import Settings
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.errors import EnvironmentProblem, KernelLspError, UserError
from kernel_lsp.evolve.archive.dataset import parquet_module
from kernel_lsp.process.confinement import sandbox_level
from kernel_lsp.process.interpreter import find_python
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.source.suite import expand_targets
from kernel_lsp.synthesize.attempt import FILTERS, Attempt, Attempts, HeldOut, Trace, trace_target
from kernel_lsp.synthesize.index import Journal, open_journal, write_index, write_task
from kernel_lsp.synthesize.models import TaskModels
from kernel_lsp.synthesize.request import SynthesisFolder, SynthesisRequest

CRAWL_DEADLINE_S = 600.0
MAX_ATTEMPTS_PER_TASK = 30
"""Maximum attempts per accepted task and the next one; a share below this is a fault of the options."""
MIN_ATTEMPTS = 200
N_TASKS_PER_WORKER = 300
"""Attempts after which a worker is replaced: torch keeps what it compiled."""

Progress = Callable[["Synthesis"], None]


@dataclass
class Synthesis:
    """The state of a synthesis, and its result."""

    n_tasks: int
    request: SynthesisRequest
    accepted: list[Attempt] = field(default_factory=list)
    dropped: list[Attempt] = field(default_factory=list)
    held_out: HeldOut = field(default_factory=lambda: HeldOut({}))
    hashes: set[str] = field(default_factory=set)
    """Graph hashes of accepted tasks."""
    n_resumed: int = 0
    elapsed_s: float = 0.0

    @property
    def is_complete(self) -> bool:
        return len(self.accepted) >= self.n_tasks

    @property
    def is_exhausted(self) -> bool:
        n_settled = len(self.accepted) + len(self.dropped)
        return n_settled >= max(MIN_ATTEMPTS, MAX_ATTEMPTS_PER_TASK * (len(self.accepted) + 1))

    def settle(self, attempt: Attempt) -> None:
        """Accept or drop the next attempt in order; the first of equal graphs stays."""
        if attempt.dropped_by or attempt.trace is None:
            self.dropped.append(attempt)
        elif attempt.trace.graph_hash in self.hashes:
            self.dropped.append(attempt.model_copy(update={"dropped_by": "duplicate"}))
        else:
            self.hashes.add(attempt.trace.graph_hash)
            self.accepted.append(attempt)


async def synthesize(
    n_tasks: int,
    request: SynthesisRequest,
    folder: SynthesisFolder,
    settings: Settings,
    n_processes: int,
    progress: Progress,
    models: TaskModels | None = None,
) -> Synthesis:
    """Return the finished synthesis, its files written. Raises EnvironmentProblem, UserError."""
    parquet_module()  # missing, it is told before any work
    for each in request.held_out:
        if not Path(each.partition("::")[0]).exists():
            step = "correct --held-out: no task would be compared with it"
            raise UserError("there is no such file or folder", file=each, next_step=step)
    for path in (folder.tasks, folder.drafts):
        path.mkdir(parents=True, exist_ok=True)
    python = await find_python(settings.python)
    targets = expand_targets(request.held_out, Path.cwd()) if request.held_out else []
    async with _Workers(python, settings, n_processes) as workers:
        torch_version = await _crawl(workers, folder)
        catalogue_hash = hashlib.sha256(folder.catalogue.read_bytes()).hexdigest()[:16]
        request = request.model_copy(update={"torch_version": torch_version, "catalogue_hash": catalogue_hash})
        synthesis = Synthesis(n_tasks, request)
        with open_journal(folder.journal, request) as journal:
            synthesis.n_resumed = len(journal.attempts)
            synthesis.held_out = await _traced(workers, targets)
            attempts = Attempts(request, folder, synthesis.held_out, models)
            n_at_once = workers.n + (models.n_at_once if models is not None else 0)
            try:
                await _run(synthesis, journal, attempts, workers, folder, progress, n_at_once)
            except ExceptionGroup as group:  # the first error of what ran side by side
                raise group.exceptions[0] from None
    for draft in folder.drafts.iterdir():
        draft.unlink()
    write_index(folder, request, synthesis.accepted)
    return synthesis


async def _run(
    synthesis: Synthesis,
    journal: Journal,
    attempts: Attempts,
    workers: _Workers,
    folder: SynthesisFolder,
    progress: Progress,
    n_at_once: int,
) -> None:
    """Attempt indices, `n_at_once` beside each other: more than there are workers, where some wait for models. Replies
    that are still out when it is done, which a person may never write, are not waited for."""
    started = time.monotonic()
    waiting = (index for index in itertools.count() if index not in journal.attempts)
    next_settled = 0

    def settle() -> None:
        """Settle attempts in the order of their indices, as far as they are known."""
        nonlocal next_settled
        while not synthesis.is_complete and next_settled in journal.attempts:
            n_before = len(synthesis.accepted)
            synthesis.settle(journal.attempts[next_settled])
            if len(synthesis.accepted) > n_before:
                write_task(folder, synthesis.accepted[-1])
            next_settled += 1

    settle()

    async def work() -> None:
        while not (synthesis.is_complete or synthesis.is_exhausted):
            index = next(waiting)
            journal.add(await attempts.attempt(workers.lend, index, synthesis.hashes))
            (folder.drafts / f"task_{index}.py").unlink(missing_ok=True)
            settle()
            synthesis.elapsed_s = time.monotonic() - started
            progress(synthesis)
        if n_at_once > workers.n:
            for task in tasks:
                task.cancel()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work()) for _ in range(n_at_once)]


class _Workers:
    """One worker for each slot, replaced when it died or is old."""

    def __init__(self, python: Path, settings: Settings, n: int) -> None:
        self.n = n
        self._python, self._settings = python, settings
        self._workers: list[Worker | None] = [None] * n
        self._used = [0] * n
        self._free: asyncio.LifoQueue[int] = asyncio.LifoQueue()
        for slot in reversed(range(n)):
            self._free.put_nowait(slot)

    async def __aenter__(self) -> _Workers:
        return self

    async def __aexit__(self, *_: object) -> None:
        for slot in range(self.n):
            await self._close(slot)

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Worker]:
        """Lend the worker of a free slot. Raises EnvironmentProblem when it cannot be started."""
        slot = await self._free.get()
        try:
            yield await self.get(slot)
        finally:
            self._free.put_nowait(slot)

    async def get(self, slot: int) -> Worker:
        """Return the slot's worker. Raises EnvironmentProblem when it cannot be started."""
        worker = self._workers[slot]
        if worker is not None and worker.is_alive and self._used[slot] < N_TASKS_PER_WORKER:
            self._used[slot] += 1
            return worker
        await self._close(slot)
        self._workers[slot] = started = Worker(
            self._python,
            capture_deadline_s=self._settings.capture_deadline_s,
            cache=self._settings.cache_directory,
            sandbox=sandbox_level(self._settings.sandbox),
        )
        self._used[slot] = 0
        return await started.__aenter__()

    async def _close(self, slot: int) -> None:
        worker, self._workers[slot] = self._workers[slot], None
        if worker is not None:
            await worker.__aexit__()


async def _crawl(workers: _Workers, folder: SynthesisFolder) -> str:
    """Write the catalogue of operators, each process crawling a share, unless it is there; return torch's version."""
    description = await (await workers.get(0)).describe()
    with suppress(OSError, ValueError, KeyError):
        if json.loads(folder.catalogue.read_text())["torch_version"] == description.torch_version:
            return description.torch_version
    shares = await asyncio.gather(*(_crawl_share(workers, slot) for slot in range(workers.n)))
    operators = sorted((entry for share in shares for entry in share), key=lambda entry: str(entry["short"]))
    if not any(entry["uses"] for entry in operators):
        raise EnvironmentProblem("no operator of torch could be used", next_step="check the interpreter's torch")
    text = json.dumps({"operators": operators, "torch_version": description.torch_version})
    folder.catalogue.write_text(text)
    return description.torch_version


async def _crawl_share(workers: _Workers, slot: int) -> list[dict[str, object]]:
    worker = await workers.get(slot)
    reply = await worker.ask("crawl_operators", {"share": slot, "n_shares": workers.n}, deadline_s=CRAWL_DEADLINE_S)
    return list(reply["operators"])


async def _traced(workers: _Workers, targets: Sequence[str]) -> HeldOut:
    """Trace the held-out tasks, a share in each process. What cannot be traced is compared with nothing."""
    traces: dict[str, Trace] = {}
    untraced: dict[str, str] = {}

    async def share(slot: int) -> None:
        for target in targets[slot :: workers.n]:
            worker = await workers.get(slot)
            try:
                traces[target] = await trace_target(worker, target, Path.cwd())
            except KernelLspError as error:
                untraced[target] = error.message

    try:
        await asyncio.gather(*map(share, range(workers.n)))
    except KernelLspError as error:
        raise EnvironmentProblem(f"held-out tasks cannot be traced: {error.message}") from error
    return HeldOut(traces, untraced)


class FilterCount(Noun):
    """Tasks that reached a filter, and those that it dropped."""

    filter: str
    n_reached: int
    n_dropped: int

    @property
    def share_passed(self) -> float:
        return 1.0 - self.n_dropped / self.n_reached if self.n_reached else 1.0


class SynthesisSummary(Noun):
    """JSON output of `kernel-lsp synthesize --json`. Times are in seconds; those of stages sum over processes."""

    schema_version: int = SCHEMA_VERSION
    folder: str
    index: str
    n_tasks: int
    n_wanted: int
    n_attempts: int
    n_resumed: int
    n_duplicates: int
    n_captured: int
    n_held_out: int
    untraced_held_out: dict[str, str]
    filters: tuple[FilterCount, ...]
    structures: dict[str, int]
    proposers: dict[str, int]
    n_opinions: int
    device: str
    compiler: str
    elapsed_s: float
    stage_s: dict[str, float]


def summarize(synthesis: Synthesis, folder: SynthesisFolder) -> SynthesisSummary:
    """Return the summary of a finished or interrupted synthesis."""
    settled = [*synthesis.accepted, *synthesis.dropped]
    stages: Counter[str] = Counter()
    for attempt in settled:
        stages.update(attempt.seconds)
    hashes = [attempt.trace.graph_hash for attempt in synthesis.accepted if attempt.trace is not None]
    return SynthesisSummary(
        folder=str(folder.root),
        index=str(folder.index),
        n_tasks=len(synthesis.accepted),
        n_wanted=synthesis.n_tasks,
        n_attempts=len(settled),
        n_resumed=synthesis.n_resumed,
        n_duplicates=len(hashes) - len(set(hashes)),
        n_captured=sum(attempt.is_captured for attempt in synthesis.accepted),
        n_held_out=len(synthesis.held_out.traces),
        untraced_held_out=synthesis.held_out.untraced,
        filters=_counts(settled),
        structures=dict(Counter(attempt.structure for attempt in synthesis.accepted)),
        proposers=dict(Counter(attempt.proposer for attempt in synthesis.accepted)),
        n_opinions=sum(attempt.opinion is not None for attempt in settled),
        device=next((attempt.device for attempt in synthesis.accepted), ""),
        compiler=next((attempt.compiler for attempt in synthesis.accepted), ""),
        elapsed_s=round(synthesis.elapsed_s, 1),
        stage_s={name: round(seconds, 1) for name, seconds in stages.items()},
    )


def _counts(settled: list[Attempt]) -> tuple[FilterCount, ...]:
    """Count along the filters' order: a dropped task reaches none after the filter that dropped it."""
    dropped = Counter(attempt.dropped_by for attempt in settled)
    counts, n_left = [], len(settled)
    for name in FILTERS:
        counts.append(FilterCount(filter=name, n_reached=n_left, n_dropped=dropped[name]))
        n_left -= dropped[name]
    return tuple(counts)
