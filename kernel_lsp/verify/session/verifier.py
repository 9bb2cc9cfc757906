"""The single entry point of verdicts: pipeline, scalar mutations and the configurations of the task's folder.

async with await session.verifier(source, task) as verifier:
    verdict = await verifier.verify(candidate, "full")
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.task import TargetSource, Task, UncoveredConfiguration
from kernel_lsp.core.verdict import ConfigurationOutcome, Crashed, TimedOut, Unsupported, Verdict
from kernel_lsp.errors import KernelLspError, TargetError
from kernel_lsp.plan.contract import ContractError, constant_dim_violated
from kernel_lsp.plan.parser import parse
from kernel_lsp.plan.renaming import with_task_names
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.verify.gpu.checks import MeasuringGpu, Untimed
from kernel_lsp.verify.model.cases import SCREEN_FAMILIES, Depth, StageTimes, sizes_of
from kernel_lsp.verify.model.resolved_kernel import Prepared, prepare
from kernel_lsp.verify.session.evaluation import Evaluation
from kernel_lsp.verify.session.pipeline import N_SLOTS, Evaluator, Platform, RunBuilder
from kernel_lsp.verify.session.scalar_mutation import MutatedTask, ScalarMutation

Value = TypeVar("Value")
SLOTS_PER_GPU = 2
"""Candidates per GPU at a time: one is compiled and screened while another occupies the GPU."""
OUTSIDE = "outside the kernel's contract, where the operator runs PyTorch"
ConfigurationVerdict = tuple[UncoveredConfiguration, Verdict | TargetError | ContractError]
"""A candidate's verdict in a configuration, or why that could not be captured or has other constants in its shapes."""


class Verifier:
    """Reaches the verdicts on candidates of one task. Keeps executors warm between them. Use as ``async with``.

    A full verdict runs a candidate on the captured task, on the task with mutated scalars, and on those configurations
    of the task's folder that the capture does not cover. The first failure decides. A screen runs the first alone.
    """

    def __init__(
        self, source: TargetSource, task: Task, platform: Platform, measured_on: Sequence[MeasuringGpu]
    ) -> None:
        """`measured_on` are the GPUs: candidates run and are timed on one of them; none for the executor alone."""
        self._task, self._platform, self._measured_on = task, platform, measured_on
        self._evaluator = Evaluator(task, platform, measured_on)
        self._untimed = [MeasuringGpu(gpu.device, Untimed()) for gpu in measured_on]
        self.n_slots = max(N_SLOTS, SLOTS_PER_GPU * len(measured_on))
        self._variants: dict[str, Evaluator] = {}
        self._mutation = ScalarMutation(source, task, platform)
        self._uncovered = UncoveredCaptures(source, task, platform)
        self._under_way: set[asyncio.Task[Any]] = set()
        self.full_check: StageTimes | None = None
        """Stages of the full check that began last; None before the first."""

    async def __aenter__(self) -> Verifier:
        self._platform.cpu.executors.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Cancel what is under way: otherwise it would start new processes, and hold the GPU."""
        await end_tasks(*self._under_way)
        for evaluator in (self._evaluator, *self._variants.values()):
            await evaluator.close()

    @property
    def device_name(self) -> str:
        """Return the name of the device that verdicts are reached on."""
        return self._evaluator.device_name

    @property
    def baseline_wait_s(self) -> float:
        """Return the longest time that a full verdict waits for PyTorch's compiled modes; 0 where nothing is timed."""
        return self._evaluator.baseline_wait_s

    def is_on_gpu(self, candidate_id: str) -> bool:
        """Check whether the candidate occupies a GPU: ending it there would cost the GPU's worker."""
        return any(gpu.device.current_candidate == candidate_id for gpu in self._measured_on)

    @property
    def runs(self) -> RunBuilder:
        """Return the builder that compiles and counts candidates without a verdict, for profiles."""
        return self._evaluator.runs

    async def verify(self, candidate: Candidate, depth: Depth) -> Verdict:
        """Return the verdict. Raises only for a broken machine or a worker that died."""
        if depth != "full":
            return await self._run(Evaluation(self._evaluator, candidate, depth).verdict())
        self._run(self._capture_ahead(candidate))
        evaluation = Evaluation(self._evaluator, candidate, "full")
        self.full_check = times = evaluation.progress
        verdict = await self._run(evaluation.verdict())
        with times.stage("scalar mutations"):
            verdict = await self._with_mutated_scalars(candidate, verdict)
        with times.stage("configurations"):
            verdict = await self._with_configurations(candidate, verdict)
        return verdict.model_copy(update={"stages_s": times.stages_s})

    async def settle(self) -> None:
        """Wait for captures under way. Ending them would end the session's worker, which another task may use next."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _run(self, part: Coroutine[Any, Any, Value]) -> asyncio.Task[Value]:
        """Begin a part of a verdict, which ends with this verifier."""
        task = asyncio.create_task(part)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def _capture_ahead(self, candidate: Candidate) -> None:
        """Capture the mutations while the candidate runs. Failures are raised where the mutations are needed."""
        await self._evaluator.worker_is_free()
        with suppress(KernelLspError):
            await self._mutation.mutated_tasks(candidate)

    async def _with_mutated_scalars(self, candidate: Candidate, verdict: Verdict) -> Verdict:
        if not verdict.is_correct:
            return verdict
        try:
            mutations = await self._run(self._mutation.mutated_tasks(candidate))
        except TargetError as error:
            missing = Unsupported(message=f"not checked with other scalars: {error.message}")
            return verdict.model_copy(update={"outcome": missing, "times": {}})
        screens = list[asyncio.Task[Verdict]]()
        for mutated in mutations:
            screens.append(self._run(self._screened(candidate, mutated, is_first=mutated is mutations[0])))
        try:
            for mutated, screen in zip(mutations, screens, strict=True):
                failure = mutated.failure((await screen).outcome)
                if failure is not None:
                    return verdict.model_copy(update={"outcome": failure, "times": {}})
        finally:
            await end_tasks(*screens)
        return verdict

    def _screened(self, candidate: Candidate, mutated: MutatedTask, is_first: bool) -> Coroutine[Any, Any, Verdict]:
        """Screen a candidate on a mutated task. The first mutation, of all scalars at once, runs on the GPU where there
        is one; the others run on executors meanwhile: a kernel that takes a scalar takes it at every size."""
        evaluator = self._variant(mutated.words, mutated.task, mutated.families, self._untimed if is_first else ())
        return Evaluation(evaluator, candidate, "screen").verdict()

    async def _with_configurations(self, candidate: Candidate, verdict: Verdict) -> Verdict:
        if not verdict.is_correct:
            return verdict
        others = list[ConfigurationVerdict]()
        for other in self._task.uncovered:
            if refused := refused_shapes(candidate, self._task, other):
                others.append((other, refused))
                continue
            task = await self._run(self._uncovered.captured(other))
            if isinstance(task, TargetError):
                others.append((other, task))
                continue
            evaluator = self._variant(f"configuration {other.index}", task, SCREEN_FAMILIES, self._untimed)
            others.append((other, await self._run(Evaluation(evaluator, candidate, "full").verdict())))
        return with_configurations(verdict, covered(candidate, self._task), others)

    def _variant(self, name: str, task: Task, families: tuple[str, ...], run_on: Sequence[MeasuringGpu]) -> Evaluator:
        """Return the evaluator of a variant of the task, which shares the platform and times nothing."""
        if name not in self._variants:
            folder = f"variant-{len(self._variants)}"
            self._variants[name] = Evaluator(task, self._platform, run_on, screen_families=families, name=folder)
        return self._variants[name]


class UncoveredCaptures:
    """Captures the configurations that the task's own capture does not cover, each once for all candidates."""

    def __init__(self, source: TargetSource, task: Task, platform: Platform) -> None:
        self._source, self._task, self._platform = source, task, platform
        self._known: dict[int, Task | TargetError] = {}
        self._capturing = asyncio.Lock()

    async def captured(self, other: UncoveredConfiguration) -> Task | TargetError:
        """Return the configuration as a task, or why it has none. Raises EnvironmentProblem for a broken machine."""
        async with self._capturing:
            if other.index not in self._known:
                self._known[other.index] = await self._capture(other.index)
        return self._known[other.index]

    async def _capture(self, index: int) -> Task | TargetError:
        with_backward = self._task.backward is not None
        try:
            return await self._platform.worker.capture(self._source, with_backward=with_backward, configuration=index)
        except TargetError as error:
            return error


def refused_shapes(candidate: Candidate, task: Task, other: UncoveredConfiguration) -> ContractError | None:
    """Return why the candidate's plan excludes the shapes of a configuration, by a constant dim. A capture of it, 1 to
    4 s each, would only say the same: 13 of 17 configurations of a layer norm, 60 s of its full check."""
    plan = parse(candidate.text).plan
    return None if plan is None else constant_dim_violated(with_task_names(plan, task).forward, other.shapes)


def covered(candidate: Candidate, task: Task) -> list[ConfigurationOutcome]:
    """Return the outcome of a correct candidate in each configuration that the capture covers, from its contract."""
    prepared = prepare(candidate.text, task)
    assert isinstance(prepared, Prepared), "a correct candidate has a plan"
    found = list[ConfigurationOutcome]()
    for each in task.configurations:
        sizes = sizes_of(each, task)
        is_served = sizes is None or all(prepared.holds(direction, sizes) for direction in prepared.directions)
        found.append(ConfigurationOutcome(name=each.name, is_served=is_served, message="" if is_served else OUTSIDE))
    return found


def with_configurations(
    verdict: Verdict, covered: Sequence[ConfigurationOutcome], others: Sequence[ConfigurationVerdict]
) -> Verdict:
    """Return a correct `verdict` with the candidate's outcome in every configuration: those that the capture covers,
    and the others.

    A candidate that crashes or hangs in one is at fault. One that is incorrect in another than the first does not serve
    that one.
    """
    found = (*covered, *(_outcome(*other) for other in others))
    outcomes = [each.outcome for _, each in others if isinstance(each, Verdict)]
    faults = [outcome for outcome in outcomes if isinstance(outcome, Crashed | TimedOut)]
    changes = {"configurations": found if len(found) > 1 else ()}
    return verdict.model_copy(update={**changes, "outcome": faults[0]} if faults else changes)


def _outcome(other: UncoveredConfiguration, found: Verdict | TargetError | ContractError) -> ConfigurationOutcome:
    if isinstance(found, TargetError):
        return ConfigurationOutcome(name=other.name, is_served=False, message=found.message)
    if isinstance(found, ContractError):
        return ConfigurationOutcome(name=other.name, is_served=False, message=f"{found.message}; {other.reason}")
    message = "" if found.is_correct else f"{_words(found)}; {other.reason}"
    return ConfigurationOutcome(name=other.name, is_served=found.is_correct, message=message)


def _words(verdict: Verdict) -> str:
    outcome = verdict.outcome
    if outcome.kind == "build_failed":
        return outcome.findings[0].message if outcome.findings else "it does not build"
    return getattr(outcome, "message", outcome.kind)
