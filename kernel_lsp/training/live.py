"""Train a policy on tasks whose schedules are measured while it picks them: live rewards of a device.

with Journal.open(path) as journal:
    async with open_tasks(targets, Path.cwd(), settings) as tasks:
        pool = await LivePool.of(tasks, models, journal, LiveSettings(seed=0), ends=time.monotonic() + 600)
        await train_live(pool, models.policy, n_rounds=8)

Every reward rests on a verdict: a schedule that is incorrect, or that nothing timed, counts as `FAILED_LOG_TIME`. Each
schedule is evaluated once, and its result is in the journal at once, so that a command that was killed goes on where it
stopped, with the same picks.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import numpy as np

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.model import Noun
from kernel_lsp.errors import UserError
from kernel_lsp.generate.program import plan_program
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.training.environment import LiveBackend, LiveTask
from kernel_lsp.training.features import RealizedLike, draw_schedules
from kernel_lsp.training.policy import Array, Indices, Policy, Pool
from kernel_lsp.training.ppo import Picks, PpoSettings, Trainer
from kernel_lsp.training.ranker import Models, ScheduleRanker
from kernel_lsp.verify.session.session import Session

FAILED_LOG_TIME = 3.0
"""Logarithm of the time over the default's of a schedule that failed: the bound of the policy's history features."""
LINE_START = '{"device":'
CORES_OF_A_CAPTURE = 2
MIN_CANDIDATES = 3
"""Minimum schedules of a task, the default included: an order of fewer is no choice."""


class Evaluated(Noun):
    """A line of the journal. `time_us` is None for a schedule that is incorrect or was not timed; `device` is where the
    verdict was reached."""

    device: str
    task: str
    candidate_id: str
    schedule: dict[str, int | str]
    time_us: float | None
    kind: str
    summary: str


class Journal:
    """The evaluations of a training, a JSON line each, written as they end."""

    def __init__(self, known: Mapping[tuple[str, str], Evaluated], file: IO[str]) -> None:
        self._known, self._file = dict(known), file

    @staticmethod
    @contextmanager
    def open(path: Path) -> Iterator[Journal]:
        """Yield the journal of a file, which need not exist. A last line without its end, of a command that was killed,
        is dropped. Raises UserError for a file of another kind, OSError."""
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        rest = text[len(whole) :]
        try:
            known = [Evaluated.model_validate_json(line) for line in whole.splitlines()]
            if rest[: len(LINE_START)] != LINE_START[: len(rest)]:
                raise ValueError("the beginning of another line")
        except ValueError:
            step = "name another file with --journal"
            raise UserError("this is no journal of a training", file=str(path), next_step=step) from None
        if rest:
            path.write_text(whole, encoding="utf-8")
        with path.open("a", encoding="utf-8") as file:
            yield Journal({(each.device, each.candidate_id): each for each in known}, file)

    def find(self, device: str, candidate_id: str) -> Evaluated | None:
        return self._known.get((device, candidate_id))

    def add(self, found: Evaluated) -> None:
        """Write one evaluation. Raises OSError."""
        self._known[found.device, found.candidate_id] = found
        self._file.write(found.model_dump_json() + "\n")
        self._file.flush()


@dataclass(frozen=True)
class LiveSettings:
    """`n_candidates` schedules of each task are drawn; episodes of `n_picks` choose among them, `n_episodes` of each
    task in a round."""

    n_candidates: int = 32
    n_picks: int = 7
    n_episodes: int = 4
    seed: int = 0

    def of_trainer(self) -> PpoSettings:
        """Return the settings of the updates: episodes of one task are compared with each other, as there is no critic
        that knows live tasks."""
        return PpoSettings(n_picks=self.n_picks, n_episodes=self.n_episodes, seed=self.seed, advantages="group")


@dataclass(frozen=True)
class OpenedTask:
    """A task with its verifier. `device` is where its verdicts are reached, `n_slots` how many at a time; `kind` is
    that of its times."""

    live: LiveTask
    device: str
    n_slots: int
    kind: Literal["measured", "estimated"]

    @property
    def name(self) -> str:
        return self.live.task.target


@asynccontextmanager
async def open_tasks(targets: Sequence[str], directory: Path, settings: Settings) -> AsyncIterator[list[OpenedTask]]:
    """Yield the targets, each captured in a session of its own: a verifier is of the last captured task. Raises
    TargetError, also for what the generator has no rules for, EnvironmentProblem."""
    free = asyncio.Semaphore(max(1, (os.cpu_count() or 1) // CORES_OF_A_CAPTURE))

    async def opened(target: str) -> OpenedTask:
        async with free:
            return await _opened(target, directory, settings, stack)

    async with AsyncExitStack() as stack:
        opening = [asyncio.create_task(opened(target)) for target in targets]
        try:
            yield await asyncio.gather(*opening)
        finally:
            await end_tasks(*opening)


async def _opened(target: str, directory: Path, settings: Settings, stack: AsyncExitStack) -> OpenedTask:
    """Open a target in a session that ends with the stack."""
    source = read_target(target, directory)
    session = await stack.enter_async_context(Session(settings))
    task = await session.capture(source, with_backward=False, for_device=True)
    verifier = await session.verifier(source, task)
    live = LiveTask(task, verifier, plan_program(task, gpu=session.gpu))
    if await session.gpu_index() is not None and await session.gpu_device() is not None:
        return OpenedTask(live, verifier.device_name, verifier.n_slots, "measured")
    device = f"{verifier.device_name}, estimates for {session.gpu.name}"
    return OpenedTask(live, device, verifier.n_slots, "estimated")


@dataclass(frozen=True)
class DrawnTask:
    """A task and the schedules that its policy chooses from, the default first, with their features."""

    opened: OpenedTask
    candidates: tuple[RealizedLike, ...]
    rows: Array


def draw_task(opened: OpenedTask, models: Models, settings: LiveSettings) -> DrawnTask:
    """Return the task with drawn schedules that are promising, as a search has them. Raises UserError where there are
    too few for a choice."""
    task, program = opened.live.task, opened.live.program
    assert program is not None, "opened tasks have one"
    drawn = draw_schedules(program, settings.n_candidates, settings.seed)
    ranker = ScheduleRanker(models, task, drawn[0])
    kept = [drawn[0], *(drawn[place] for place in sorted(ranker.promising(drawn)) if place)]
    rows = [(each, row) for each in kept if (row := ranker.row(each)) is not None]
    if len(rows) < MIN_CANDIDATES:
        raise UserError(f"{opened.name} has too few schedules to choose from: {len(rows)}", next_step="leave it out")
    return DrawnTask(opened, tuple(each for each, _ in rows), np.stack([row for _, row in rows]))


class DeadlineReached(Exception):
    """The time for measurements is over."""


class LivePool:
    """The pool of live tasks. A candidate's time is infinite until it is evaluated."""

    def __init__(self, tasks: Sequence[DrawnTask], pool: Pool, journal: Journal, settings: LiveSettings) -> None:
        self.tasks, self.pool, self.settings = tuple(tasks), pool, settings
        self.ends = math.inf
        """Time of the monotonic clock from which on nothing is evaluated any more."""
        self.n_evaluated = self.n_replayed = self.n_failed = 0
        """Evaluations on the device, results from the journal, and those of both that failed."""
        self.kinds: set[str] = set()
        """Kinds of the times: measured, estimated."""
        self._journal = journal
        self._default_us = np.ones(len(self.tasks))
        self._slots = [asyncio.Semaphore(each.opened.n_slots) for each in self.tasks]
        self._backends = [LiveBackend([each.opened.live], depth="rank") for each in self.tasks]

    @staticmethod
    async def of(
        tasks: Sequence[OpenedTask],
        models: Models,
        journal: Journal,
        settings: LiveSettings,
        ends: float = math.inf,
    ) -> LivePool:
        """Return the pool of these tasks, once their default schedules are evaluated. `ends` is as the attribute.
        Raises UserError for a task without a choice, or whose default fails, and DeadlineReached."""
        drawn = [draw_task(each, models, settings) for each in tasks]
        unknown = [np.array([1.0] + [math.inf] * (len(each.candidates) - 1)) for each in drawn]
        features = [models.projection(each.rows) for each in drawn]
        pool = Pool.of(features, unknown, [models.cost_model(each.rows) for each in drawn])
        live = LivePool(drawn, pool, journal, settings)
        live.ends = ends
        defaults = await live._evaluated([(place, 0) for place in range(len(drawn))])
        for place, found in enumerate(defaults):
            if found.time_us is None:
                raise UserError(f"the default schedule of {found.task} has no time: {found.summary}")
            live._default_us[place] = found.time_us
        return live

    async def measure(self, picks: Picks) -> None:
        """Evaluate those of the picks that have no time yet, and enter their times. Raises DeadlineReached."""
        log_times = self.pool.log_times
        wanted = {pair for pair in zip(*(each.tolist() for each in picks), strict=True) if np.isinf(log_times[pair])}
        pairs = sorted(wanted)
        for (task, candidate), found in zip(pairs, await self._evaluated(pairs), strict=True):
            log_times[task, candidate] = (
                FAILED_LOG_TIME if found.time_us is None else math.log(found.time_us / self._default_us[task])
            )

    def default_us(self, task: int) -> float:
        """Return the time of a task's default schedule."""
        return float(self._default_us[task])

    def best_us(self, task: int) -> float:
        """Return the best time of a task so far."""
        return float(self._default_us[task] * math.exp(self.pool.best[task]))

    async def follow(self, policy: Policy, n_picks: int) -> Indices:
        """Return the picks of the policy, the most promising of each step, a row for each task; the default first."""
        measured = np.zeros(self.pool.exists.shape, dtype=bool)
        measured[:, 0] = True
        rows, picked = np.arange(len(self.tasks)), [np.zeros(len(self.tasks), dtype=np.int64)]
        for step in range(n_picks):
            inputs = policy.inputs(self.pool, measured, (n_picks - step) / n_picks)
            choice = policy.log_probabilities(inputs, self.pool.exists & ~measured).argmax(axis=1)
            await self.measure((rows, choice))
            measured[rows, choice] = True
            picked.append(choice)
        return np.stack(picked, axis=1)

    async def _evaluated(self, pairs: Sequence[tuple[int, int]]) -> list[Evaluated]:
        """Evaluate candidates of tasks at once, as far as there are slots. Raises DeadlineReached; what ended before
        is in the journal."""
        running = [asyncio.create_task(self._evaluate(*pair)) for pair in pairs]
        try:
            async with asyncio.timeout(None if math.isinf(self.ends) else max(0.0, self.ends - time.monotonic())):
                return list(await asyncio.gather(*running))
        except TimeoutError:
            raise DeadlineReached from None
        finally:
            await end_tasks(*running)

    async def _evaluate(self, place: int, candidate: int) -> Evaluated:
        opened, realized = self.tasks[place].opened, self.tasks[place].candidates[candidate]
        candidate_id = Candidate(text=realized.text, origin=Origin(proposer="generator")).id
        found = self._journal.find(opened.device, candidate_id)
        if found is not None:
            self.n_replayed += 1
        else:
            async with self._slots[place]:
                outcome = await self._backends[place].evaluate(opened.live.task.name, dict(realized.schedule))
            is_timed = outcome.time_kind == opened.kind  # an estimate is no time of a GPU
            found = Evaluated(
                device=opened.device,
                task=opened.name,
                candidate_id=candidate_id,
                schedule=dict(realized.schedule),
                time_us=outcome.time_us if is_timed else None,
                kind=outcome.time_kind if is_timed else "none",
                summary=outcome.summary if is_timed or outcome.time_us is None else f"not timed: {outcome.summary}",
            )
            self._journal.add(found)
            self.n_evaluated += 1
        self.n_failed += found.time_us is None
        self.kinds |= {found.kind} - {"none"}
        return found


@dataclass(frozen=True)
class LiveTraining:
    """The rounds of a training that ended, whether the deadline ended it, and the mean share of the best known time at
    the end of each round's episodes."""

    n_rounds: int
    is_cut: bool
    curve: tuple[float, ...]


async def train_live(live: LivePool, policy: Policy, *, n_rounds: int, recorded: Trainer | None = None) -> LiveTraining:
    """Train the policy in place: each round samples episodes of every live task and updates it once, and once on the
    tasks of `recorded`. Ends at the deadline with the last whole round."""
    trainer = Trainer(live.pool, live.settings.of_trainer(), policy)
    for number in range(n_rounds):
        try:
            await trainer.iterate_live(live.measure)
        except DeadlineReached:
            return LiveTraining(number, is_cut=True, curve=tuple(trainer.curve))
        if recorded is not None:
            recorded.iterate()
    return LiveTraining(n_rounds, is_cut=False, curve=tuple(trainer.curve))
