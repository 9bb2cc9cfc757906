"""The pipeline: plan -> build -> integrity -> profile -> cases -> time -> verdict.

The PTX executor checks everywhere; where there is a GPU, what passed is also run, judged and timed there. A candidate
never raises: whatever it does becomes its outcome.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.measurement import Comparison, Estimate, Measurement
from kernel_lsp.core.plan import BoundLaunch, BoundOperation
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import (
    BuildFailed,
    Built,
    CaseResult,
    CheckOutcome,
    Correct,
    Crashed,
    Mismatch,
    Rejected,
    TimedOut,
    Unsupported,
    Verdict,
)
from kernel_lsp.errors import PlanError
from kernel_lsp.evaluate.case_store import CaseStore, NoCase
from kernel_lsp.evaluate.cases import (
    Case,
    OperationKind,
    captured_sizes,
    configured_sizes,
    full_cases,
    reduced_sizes,
    screen_cases,
)
from kernel_lsp.evaluate.cpu import CaseRun, CpuDevice, Limits, Profile, Skipped
from kernel_lsp.evaluate.cuda import GpuDevice, Measured
from kernel_lsp.evaluate.prepare import Prepared, kernel_names, plan_failure, prepare
from kernel_lsp.gpu.estimate import estimate_eager, estimate_operation
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.ptx.executor import BlockSample, Loaded, PtxExecutor
from kernel_lsp.toolchain.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.integrity import audit

Depth = Literal["screen", "full"]

N_SLOTS = 2
DEVICE_NAME = "PTX executor (CPU)"
COMPILED_AS = "kernel.cu"
"""What a candidate's text is called while it is compiled (`BuildRequest.file_name`), and so in the PTX."""
SCREEN_LIMITS = Limits(complete_instructions=60_000_000, max_instructions=2_000_000_000, deadline_s=30.0)
FULL_LIMITS = Limits(complete_instructions=400_000_000, max_instructions=20_000_000_000, deadline_s=90.0)
"""At roughly 150 M instructions a second, a screen costs under half a second and a complete case under three."""
FULL_BUDGET_S = 25.0
"""Per operation. When it is spent, the families left over are not run; the verdict lists what was."""
MIN_CASES = 4
"""Run whatever the budget says: the captured sizes, two small ones, exact integers."""
MIN_SAMPLED_BLOCKS = 12


@dataclass
class _Progress:
    """What is known of one candidate so far."""

    candidate_id: str
    findings: list[Finding] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)
    times: dict[str, Comparison] = field(default_factory=dict)
    estimates: list[Estimate] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    built: Built | None = None
    has_atomics: bool = False
    """Some kernel adds to device memory: what one block wrote is not the final value."""


class Evaluator:
    """Verdicts on one task. Keeps executors warm between candidates. Use as ``async with``."""

    n_slots = N_SLOTS

    def __init__(
        self,
        task: Task,
        worker: Worker,
        compiler: Compiler,
        gpu: GpuSpec,
        directory: Path,
        *,
        seed: int,
        gpu_device: GpuDevice | None = None,
        sandbox: SandboxLevel | None = None,
    ) -> None:
        """`sandbox` is how executors are confined; None takes the strongest level that this machine has."""
        self._task, self._compiler, self._gpu, self._seed = task, compiler, gpu, seed
        self._gpu_device, self._gpu_turn = gpu_device, asyncio.Lock()
        self._store = CaseStore(task, worker, directory)
        self._device = CpuDevice(self._store, worker, directory, sandbox=sandbox)
        self._idle: list[PtxExecutor] = []
        self._slots = asyncio.Semaphore(N_SLOTS)

    async def __aenter__(self) -> Evaluator:
        return self

    @property
    def device_name(self) -> str:
        """Where verdicts are reached."""
        return DEVICE_NAME if self._gpu_device is None else f"{DEVICE_NAME} and {self._gpu_device.name}"

    def _directions(self) -> tuple[OperationKind, ...]:
        return ("forward",) if self._task.backward is None else ("forward", "backward")

    async def __aexit__(self, *_: object) -> None:
        await self._store.close()
        while self._idle:
            await self._idle.pop().close()

    async def evaluate(self, candidate: Candidate, depth: Depth) -> Verdict:
        """The verdict. Raises only for a broken machine or a worker that died."""
        started, progress = time.monotonic(), _Progress(candidate.id)
        prepared = prepare(candidate.text, self._task)
        outcome: CheckOutcome
        if isinstance(prepared, BuildFailed):
            outcome = prepared
        else:
            progress.findings += prepared.findings
            try:
                outcome = await self._evaluate(candidate, prepared, depth, progress)
            except PlanError as error:
                outcome = plan_failure(error)
        return self._verdict(candidate, depth, outcome, prepared, progress, time.monotonic() - started)

    async def count(self, candidate: Candidate) -> tuple[Profile, ...] | CheckOutcome:
        """What the launches of each direction do at the captured sizes, as the executor counts it; or why it cannot be
        told. Values are not judged."""
        prepared = prepare(candidate.text, self._task)
        if isinstance(prepared, BuildFailed):
            return prepared
        try:
            plans = {direction: self._plan_cases(prepared, direction, "screen")[0] for direction in prepared.directions}
        except PlanError as error:
            return plan_failure(error)
        built = await self._build(candidate, [bound for _, bound in plans.values()])
        if not isinstance(built, Built):
            return built
        refused = _audit(candidate.text, built, _Progress(candidate.id))
        return refused or await self._count(built, list(plans.values()))

    async def _count(
        self, built: Built, plans: Sequence[tuple[Case, BoundOperation]]
    ) -> tuple[Profile, ...] | CheckOutcome:
        profiles = []
        async with self._executor() as executor:
            loaded = await executor.load(built.ptx, COMPILED_AS)
            if not isinstance(loaded, Loaded):
                return loaded
            for case, bound in plans:
                profile = await self._device.profile(executor, built, bound, case, FULL_LIMITS)
                if isinstance(profile, Skipped):
                    return Unsupported(message=profile.reason)
                if not isinstance(profile, Profile):
                    return profile
                profiles.append(profile)
        return tuple(profiles)

    async def _evaluate(
        self, candidate: Candidate, prepared: Prepared, depth: Depth, progress: _Progress
    ) -> CheckOutcome:
        plans = {direction: self._plan_cases(prepared, direction, depth) for direction in prepared.directions}
        built = await self._build(candidate, [bound for plan in plans.values() for _, bound in plan])
        if not isinstance(built, Built):
            return built
        progress.built = built
        progress.findings += built.warnings
        refused = _audit(candidate.text, built, progress)
        if refused is not None:
            return refused
        async with self._executor() as executor:
            loaded = await executor.load(built.ptx, f"{prepared.plan.forward.name}.cu")
            if not isinstance(loaded, Loaded):
                return loaded
            progress.has_atomics = any(kernel.uses_global_atomics for kernel in loaded.kernels)
            for direction in prepared.directions:
                failure = await self._check(executor, built, prepared, direction, plans[direction], depth, progress)
                if failure is not None:
                    return failure
        return Correct(cases=tuple(progress.cases))

    def _plan_cases(
        self, prepared: Prepared, direction: OperationKind, depth: Depth
    ) -> list[tuple[Case, BoundOperation]]:
        """The cases of one direction with the launches each makes; the captured sizes come first, to be profiled.

        Raises PlanError when the plan does not bind, ContractError when it excludes the captured sizes."""
        captured = captured_sizes(self._task)
        reduced = reduced_sizes(self._task, direction, lambda sizes: prepared.holds(direction, sizes))
        given = Case(direction, tuple(sorted(captured.items())), "given", self._seed, "forward", is_captured=True)
        if depth == "screen":
            chosen = screen_cases(direction, reduced, captured, self._seed)
        else:
            configured = [sizes for sizes in configured_sizes(self._task) if prepared.holds(direction, sizes)]
            chosen = full_cases(direction, reduced, captured, self._seed, configured)
        cases = [given, *(case for case in chosen if case != given)]
        bound = {sizes: prepared.bind(direction, dict(sizes)) for sizes in dict.fromkeys(case.sizes for case in cases)}
        return [(case, bound[case.sizes]) for case in cases]

    async def _build(
        self, candidate: Candidate, operations: Sequence[BoundOperation]
    ) -> Built | BuildFailed | TimedOut:
        names: set[str] = set().union(*(kernel_names(operation) for operation in operations))
        request = BuildRequest(
            text=candidate.text,
            name_expressions=tuple(sorted(names)),
            architecture=self._gpu.architecture.name,
        )
        return await self._compiler.compile(request)

    async def _check(
        self,
        executor: PtxExecutor,
        built: Built,
        prepared: Prepared,
        direction: OperationKind,
        plan: Sequence[tuple[Case, BoundOperation]],
        depth: Depth,
        progress: _Progress,
    ) -> CheckOutcome | None:
        """Profile and check one direction; the outcome when it fails, None when every case passed."""
        limits = SCREEN_LIMITS if depth == "screen" else FULL_LIMITS
        captured_case, captured_bound = plan[0]
        profile = await self._device.profile(executor, built, captured_bound, captured_case, limits)
        if isinstance(profile, Crashed | TimedOut | Unsupported):
            return profile
        if isinstance(profile, Profile):
            self._estimate(built, prepared, direction, captured_bound, profile, progress)
        else:
            progress.notes.append(f"{direction}: not profiled: {profile.reason}")
        # A screen needs one case that says something: the small one, else the user's own inputs.
        cases = plan if depth == "full" else [*plan[1:], plan[0]]
        n_enough = len(cases) if depth == "full" else 1
        failure = await self._run_cases(executor, built, cases, n_enough, profile, limits, progress)
        if failure is not None or self._gpu_device is None:
            return failure
        return await self._measure(built, captured_case, captured_bound, progress)

    async def _measure(
        self, built: Built, case: Case, bound: BoundOperation, progress: _Progress
    ) -> Crashed | Mismatch | None:
        """Run and time on the GPU, one candidate at a time; None when it is right there too."""
        assert self._gpu_device is not None
        files = await self._store.get(case)
        if isinstance(files, NoCase):
            progress.notes.append(f"{bound.name}: not measured: {files.reason}")
            return None
        async with self._gpu_turn:
            found = await self._gpu_device.measure(progress.candidate_id, built, bound, case.operation, files)
        if not isinstance(found, Measured):
            return found
        assert isinstance(found.comparison.ours, Measurement)
        progress.measurements.append(found.comparison.ours)
        progress.times[bound.name] = found.comparison
        return None

    async def _run_cases(
        self,
        executor: PtxExecutor,
        built: Built,
        plan: Sequence[tuple[Case, BoundOperation]],
        n_enough: int,
        profile: Profile | Skipped,
        limits: Limits,
        progress: _Progress,
    ) -> CheckOutcome | None:
        """Run cases until `n_enough` have said something: None when all passed, else the first failure."""
        started, n_run = time.monotonic(), 0
        for position, (case, bound) in enumerate(plan):
            if n_run >= n_enough:
                break
            if n_run >= MIN_CASES and time.monotonic() - started > FULL_BUDGET_S:
                progress.notes.append(f"{bound.name}: {len(plan) - position} more input families were not run (time)")
                break
            sample = None if progress.has_atomics else _sample(bound, profile, limits, case.seed)
            outcome = await self._device.run_case(executor, built, bound, case, sample, limits)
            if isinstance(outcome, Skipped):
                continue
            if not isinstance(outcome, CaseRun):
                return outcome
            n_run += 1
            progress.cases.append(outcome.result)
            progress.findings += [finding for finding in outcome.findings if finding not in progress.findings]
        if n_run == 0:
            return Unsupported(message="PyTorch itself gives no finite reference for any case")
        return None

    def _estimate(
        self,
        built: Built,
        prepared: Prepared,
        direction: OperationKind,
        bound: BoundOperation,
        profile: Profile,
        progress: _Progress,
    ) -> None:
        ours = estimate_operation(bound, profile.counters, built.kernels, built.symbols, self._gpu)
        graph = self._task.forward if direction == "forward" else self._task.backward
        assert graph is not None
        eager = estimate_eager(graph, captured_sizes(self._task), self._gpu)
        progress.estimates.append(ours)
        progress.times[prepared.operation(direction).name] = Comparison(
            baseline_name="eager", baseline=eager, ours=ours
        )

    def _verdict(
        self,
        candidate: Candidate,
        depth: Depth,
        outcome: CheckOutcome,
        prepared: Prepared | BuildFailed,
        progress: _Progress,
        elapsed_s: float,
    ) -> Verdict:
        return Verdict(
            candidate_id=candidate.id,
            depth=depth,
            device=self.device_name,
            outcome=outcome,
            findings=tuple(progress.findings),
            kernels=progress.built.kernels if progress.built is not None else (),
            library_steps=prepared.library_steps if isinstance(prepared, Prepared) else (),
            times=progress.times,
            estimate=_total_estimate(progress.estimates),
            measurement=_total_measurement(progress.measurements, len(self._directions())),
            notes=tuple(progress.notes),
            evaluate_s=elapsed_s,
        )

    @asynccontextmanager
    async def _executor(self) -> AsyncIterator[PtxExecutor]:
        """A warm executor. One whose evaluation was cancelled or broke is not used again; one that died restarts."""
        async with self._slots:
            executor = self._idle.pop() if self._idle else await self._device.new_executor().__aenter__()
            try:
                yield executor
            except BaseException:
                await executor.close()
                raise
            self._idle.append(executor)


# --- below: small decisions


def _audit(text: str, built: Built, progress: _Progress) -> Rejected | None:
    findings = audit(text, built)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        return Rejected(message=errors[0].message, findings=findings)
    progress.findings += findings
    return None


def _sample(bound: BoundOperation, profile: Profile | Skipped, limits: Limits, seed: int) -> BlockSample | None:
    """None to run every block. Only an operation of one launch can be sampled: later launches need all blocks of
    earlier ones."""
    launches = [step for step in bound.steps if isinstance(step, BoundLaunch)]
    if isinstance(profile, Skipped) or len(bound.steps) != 1 or len(launches) != 1:
        return None
    n_affordable = int(limits.complete_instructions / max(profile.instructions_per_block, 1.0))
    if launches[0].n_blocks <= max(n_affordable, MIN_SAMPLED_BLOCKS):
        return None
    return BlockSample(n_blocks=max(n_affordable, MIN_SAMPLED_BLOCKS), seed=seed)


def _total_estimate(estimates: Sequence[Estimate]) -> Estimate | None:
    """Forward and backward together: what the search minimizes."""
    if not estimates:
        return None
    sums = ("time_us", "low_us", "high_us", "bytes_moved", "n_operations", "n_launches")
    return estimates[0].model_copy(update={name: sum(getattr(e, name) for e in estimates) for name in sums})


def _total_measurement(measurements: Sequence[Measurement], n_expected: int) -> Measurement | None:
    """Forward and backward together, when both were measured."""
    if len(measurements) < n_expected:
        return None
    sums = ("time_us", "low_us", "high_us")
    return measurements[0].model_copy(update={name: sum(getattr(m, name) for m in measurements) for name in sums})
