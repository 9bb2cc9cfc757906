"""The environment of a kernel writer: propose a kernel or a schedule, get its verdict and reward.

environment = KernelEnvironment(RecordedBackend(table), n_steps=4)
observation = environment.reset("L1_23_Softmax_0")
step = await environment.step(table.tasks[0].schedules[0].schedule)

An action is a `.cu` text or a schedule of the generator, as text a JSON object. Rewards are those of CUDA Agent
(arXiv 2602.24286).

-1: incorrect; 1: correct; 2: also more than 5 % faster than eager PyTorch; 3: also faster than every timed mode of
`torch.compile`. The lower reward of forward and backward counts. Estimates earn at most 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Protocol

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.measurement import Comparison, TimedBaseline
from kernel_lsp.core.model import Noun
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import UserError
from kernel_lsp.plan.parser import parse
from kernel_lsp.training.features import SchedulableProgram
from kernel_lsp.training.table import ScheduleTable, TimedTask

FASTER = 1.05
N_FINDINGS = 3
"""Findings of an incorrect kernel that a history shows."""
EAGER = "eager"
WRONG: Final = -1
RIGHT: Final = 1
FASTER_THAN_EAGER: Final = 2
FASTER_THAN_COMPILE: Final = 3


class Reward(Noun):
    """`kind` is that of the times behind it; ``none`` without times."""

    value: Literal[-1, 1, 2, 3]
    kind: Literal["measured", "estimated", "none"]


def reward(verdict: Verdict) -> Reward:
    """Return the lowest reward of all operations."""
    if not verdict.is_correct:
        return Reward(value=WRONG, kind="none")
    if not verdict.times:
        return Reward(value=RIGHT, kind="none")
    rewards = [_of_operation(comparison) for comparison in verdict.times.values()]
    return min(rewards, key=lambda found: found.value)


def reward_of_speedups(speedups: Mapping[str, float], kind: Literal["measured", "estimated"]) -> Reward:
    """Return the reward of a correct kernel with these speedups over PyTorch, by baseline."""
    eager = speedups.get(EAGER)
    compiled = [speedup for name, speedup in speedups.items() if name != EAGER]
    if eager is None or eager <= FASTER:
        return Reward(value=RIGHT, kind=kind)
    if kind == "measured" and compiled and all(speedup > FASTER for speedup in compiled):
        return Reward(value=FASTER_THAN_COMPILE, kind=kind)
    return Reward(value=FASTER_THAN_EAGER, kind=kind)


def _of_operation(comparison: Comparison) -> Reward:
    return reward_of_speedups(_speedups(comparison), comparison.ours.kind)


def _speedups(comparison: Comparison) -> dict[str, float]:
    """Return speedups by baseline: the measured ratio where there is one, else that of the times."""
    ours_us = comparison.ours.time_us
    ratios = {each.name: each.ratio for each in comparison.baselines if isinstance(each, TimedBaseline)}
    return {
        name: ratio.value if (ratio := ratios.get(name)) is not None else time_us / ours_us
        for name, time_us in comparison.baselines_us.items()
    }


Action = str | Mapping[str, int | str]
"""A kernel's text, or the choices of a schedule."""


@dataclass(frozen=True)
class Outcome:
    """The result of one action. `time_us` is None where nothing was timed or estimated; `summary` is what an agent
    reads."""

    reward: Reward
    time_us: float | None
    summary: str
    time_kind: Literal["measured", "estimated", "none"] = "none"


@dataclass(frozen=True)
class Attempt:
    """One step of the history."""

    action: Action
    outcome: Outcome


@dataclass(frozen=True)
class Observation:
    """The state: the task and the history of the episode."""

    task: str
    description: str
    history: tuple[Attempt, ...]
    n_left: int

    def text(self) -> str:
        """Return the observation as a prompt."""
        lines = [self.description]
        for number, attempt in enumerate(self.history, start=1):
            lines.append(f"Attempt {number}: {action_text(attempt.action)}\n-> {attempt.outcome.summary}")
        lines.append(f"{self.n_left} attempts are left.")
        return "\n\n".join(lines)


@dataclass(frozen=True)
class Step:
    """Result of one step: the observation, its reward and whether the episode has ended."""

    observation: Observation
    reward: int
    is_done: bool
    outcome: Outcome


class Backend(Protocol):
    """Evaluates actions."""

    @property
    def tasks(self) -> Sequence[str]: ...
    def describe(self, task: str) -> str: ...
    async def evaluate(self, task: str, action: Action) -> Outcome: ...


class KernelEnvironment:
    """One episode at a time: `n_steps` attempts at one task. It ends earlier with the highest reward."""

    def __init__(self, backend: Backend, n_steps: int = 4) -> None:
        self._backend, self._n_steps = backend, n_steps
        self._observation: Observation | None = None

    def reset(self, task: str) -> Observation:
        """Begin an episode. Raises UserError for an unknown task."""
        if task not in self._backend.tasks:
            raise UserError(f"the environment has no task '{task}'", next_step="choose one of its `tasks`")
        self._observation = Observation(task, self._backend.describe(task), (), self._n_steps)
        return self._observation

    async def step(self, action: Action) -> Step:
        """Evaluate an action. Raises UserError outside of an episode."""
        before = self._observation
        if before is None or before.n_left == 0:
            raise UserError("the episode has ended", next_step="call reset first")
        outcome = await self._backend.evaluate(before.task, action)
        is_done = before.n_left == 1 or outcome.reward.value == FASTER_THAN_COMPILE
        history = (*before.history, Attempt(action, outcome))
        after = Observation(before.task, before.description, history, 0 if is_done else before.n_left - 1)
        self._observation = after
        return Step(after, outcome.reward.value, is_done, outcome)


class RecordedBackend:
    """Replays a table of measured times: for tests, and for training without a GPU. Actions are its schedules."""

    def __init__(self, table: ScheduleTable) -> None:
        self._gpu = table.gpu
        self._tasks = {task.name: task for task in table.tasks}

    @property
    def tasks(self) -> Sequence[str]:
        return tuple(self._tasks)

    def describe(self, task: str) -> str:
        """Return the task and its recorded schedules."""
        found = self._tasks[task]
        lines = [f"Task {task} ({found.family}) on {self._gpu}. Choose a schedule:"]
        return "\n".join(lines + [action_text(each.schedule) for each in found.schedules])

    async def evaluate(self, task: str, action: Action) -> Outcome:
        """Return the recorded outcome. Raises UserError for a kernel, and for a schedule that was not recorded."""
        found = self._tasks[task]
        if isinstance(action, str) and parse(action).plan is None:
            return Outcome(Reward(value=WRONG, kind="none"), None, "no schedule, and no kernel with a launch plan")
        timed = None if isinstance(action, str) else found.find(action)
        if timed is None:
            step = "choose one of its recorded schedules, or use the live backend"
            raise UserError(f"nothing is recorded for this action on '{task}'", next_step=step)
        if not timed.is_correct:
            return Outcome(Reward(value=WRONG, kind="none"), None, "incorrect, or it did not run")
        assert timed.time_us is not None
        summary = f"correct, {timed.time_us:.1f} us"
        return Outcome(_recorded_reward(found, timed.time_us), timed.time_us, summary, "measured")


@dataclass(frozen=True)
class LiveTask:
    """A task with its verifier; `program` renders schedules, where the generator has rules for the task."""

    task: Task
    verifier: CandidateVerifier
    program: SchedulableProgram | None = None


class CandidateVerifier(Protocol):
    """The single entry point of verdicts, `kernel_lsp.verify.session.verifier.Verifier`."""

    async def verify(self, candidate: Candidate, depth: Literal["rank", "screen", "full"]) -> Verdict: ...


class LiveBackend:
    """Verifies and measures actions on the session's devices. Every reward comes from `Verifier.verify`."""

    def __init__(self, tasks: Sequence[LiveTask], depth: Literal["rank", "screen", "full"] = "full") -> None:
        """`depth` is that of the verdicts: only ``full`` is verified. Raises UserError for two tasks of one name."""
        self._tasks = {each.task.name: each for each in tasks}
        if len(self._tasks) < len(tasks):
            raise UserError("two live tasks have the same name", next_step="rename one: task.model_copy(update=...)")
        self._depth = depth

    @property
    def tasks(self) -> Sequence[str]:
        return tuple(self._tasks)

    def describe(self, task: str) -> str:
        """Return the reference that a kernel has to compute, and the choices of a schedule."""
        live = self._tasks[task]
        text = f"Write a CUDA kernel with a launch plan for:\n\n{live.task.reference_source}"
        if live.program is None:
            return text
        knobs = live.program.realize({}).knobs
        choices = "\n".join(f"{knob.name}: {json.dumps(list(knob.values))}" for knob in knobs)
        return f"{text}\nOr choose a schedule, as a JSON object with any of:\n{choices}"

    async def evaluate(self, task: str, action: Action) -> Outcome:
        """Return the outcome of the verdict. Raises UserError for a schedule of a task without a program."""
        live, ignored = self._tasks[task], ""
        if isinstance(action, str):
            text, origin = action, Origin(proposer="model", operator="translate")
        else:
            if live.program is None:
                raise UserError(f"the generator has no rule for '{task}'", next_step="propose a kernel's text")
            realized = live.program.realize(action)
            if not realized.is_valid:
                return Outcome(Reward(value=WRONG, kind="none"), None, "the templates do not support this schedule")
            text, origin = realized.text, Origin(proposer="generator", schedule=dict(realized.schedule))
            ignored = "".join(f"; it has no choice {name}" for name in action if name not in realized.schedule)
        outcome = outcome_of(await live.verifier.verify(Candidate(text=text, origin=origin), self._depth))
        return replace(outcome, summary=outcome.summary + ignored)


def outcome_of(verdict: Verdict) -> Outcome:
    """Return a verdict as the outcome of an action."""
    measured = verdict.measurement or verdict.estimate
    time_us = measured.time_us if verdict.is_correct and measured is not None else None
    kind: Literal["measured", "estimated"] = "measured" if verdict.measurement is not None else "estimated"
    words = [verdict.outcome.kind.replace("_", " "), getattr(verdict.outcome, "message", "")]
    words += [each.message for each in getattr(verdict.outcome, "findings", ())[:N_FINDINGS]]
    words.append("" if time_us is None else f"{time_us:.1f} us {kind}")
    summary = ", ".join(word for word in words if word)
    return Outcome(reward(verdict), time_us, summary, "none" if time_us is None else kind)


def action_text(action: Action) -> str:
    """Return an action as the text that a model writes: the kernel, or the schedule as a JSON object."""
    return action if isinstance(action, str) else json.dumps(dict(action))


def parse_action(text: str) -> Action:
    """Return the action of a text: a JSON object is a schedule, and any other text a kernel."""
    if not text.lstrip().startswith("{"):
        return text
    try:
        return dict(json.loads(text))
    except ValueError:
        return text


def _recorded_reward(task: TimedTask, time_us: float) -> Reward:
    speedups = {name: each / time_us for name, each in task.baselines_us.items()}
    return reward_of_speedups(speedups, "measured") if EAGER in speedups else Reward(value=RIGHT, kind="measured")
