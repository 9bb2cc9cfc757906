"""The PTX executor as a device: a kernel that an executor has loaded runs its cases there; they are judged here, and
counted.

Executors see the inputs of the current case in one folder, and their outputs in another. Only this process reads the
expected values, which lie in neither.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from pathlib import Path

from kernel_lsp.core.finding import Severity
from kernel_lsp.core.plan import BoundLaunch, BoundLibraryStep, BoundOperation, BoundStep, tensors_in
from kernel_lsp.core.profile import LaunchCounters
from kernel_lsp.core.verdict import Built, CaseResult, Crashed, Mismatch, Stalled, TimedOut, Unsupported
from kernel_lsp.errors import TargetError
from kernel_lsp.gpu.specs import GpuSpec
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.ptx.executor import (
    DEFAULT_MAX_INSTRUCTIONS,
    BlockSample,
    ExecutionReport,
    KernelFactsOfPtx,
    Loaded,
    LoadFailure,
    NoAnswer,
    PtxExecutor,
    RunOptions,
    RunOutcome,
)
from kernel_lsp.verify.cpu.executor_pool import ExecutorPool
from kernel_lsp.verify.cpu.run_files import RunFiles
from kernel_lsp.verify.devices.device import CaseOutcome, CaseRun, DeviceCase, KernelBuild, Skipped, Timer
from kernel_lsp.verify.model.cases import Case, OperationKind, Plan, Progress, Sizes, ThreadOrder, unjudged
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.environment import USUAL, Circumstances, offset_of, reads_unwritten, shared_start_of
from kernel_lsp.verify.model.resolved_kernel import Prepared, kernel_names
from kernel_lsp.verify.oracle.case_store import CaseStore, NoCase, read_expectations
from kernel_lsp.verify.oracle.judgement import judge_outputs
from kernel_lsp.verify.probes.finder import PlanFinder, finder_of
from kernel_lsp.verify.timing.result import NotTimed, TimedOperation

N_TRACED_BLOCKS = 2
MIN_COVERAGE = 0.7
"""Minimum written share of what sampled blocks should write of an output. Blocks at the edges write less than
others."""
MAX_CONFIRMED = 4_000_000_000
"""Maximum instructions of a run of all blocks after too small a share: in a grid of as many blocks as the GPU holds
most may have no work, and a sample has too few of those that do by chance."""
N_PROFILED_BLOCKS = 6
"""Blocks per launch that are run to count instructions: first, last and random ones."""
MAX_WATCHED_RING_BYTES = 1 << 28
"""Maximum bytes of outputs and scratch of a profiled run that is watched for races: their records take up to 16 times
the addresses, of which the blocks that run touch few."""
MAX_WHOLE_GRID = 400_000_000
"""Maximum instructions of a whole grid that is run to count them, where blocks wait for all others: a few of them would
stop at the barrier. Beyond it, what they do before is counted."""
WATCHED_ORDER: ThreadOrder = "reverse"
"""Thread order that marks a case to be watched for races when it is small: the first sizes, and long rows."""
REVERSED_ORDER = "reverse"
"""Thread order whose cases also reverse the tensors' address order, which an allocator does not define."""
GIVEN, RUNS = "given", "runs"
"""Folder names of inputs and of outputs."""


class TooLittleWritten(Mismatch):
    """Sampled blocks wrote less than their share of the grid."""


@dataclass(frozen=True)
class Profile:
    """Counters of each launch of an operation at the captured sizes."""

    counters: tuple[LaunchCounters, ...]

    @property
    def instructions_per_block(self) -> float:
        """Return the instructions per block of the heaviest launch."""
        return max((c.n_instructions / max(c.n_blocks_run, 1) for c in self.counters), default=1.0)


@dataclass(frozen=True)
class Limits:
    """Budget of one case. Up to `complete_instructions` all blocks run; beyond, blocks are sampled. `cpu_s` is the
    executor's CPU time in seconds: elapsed time would depend on what else the machine does."""

    complete_instructions: int
    max_instructions: int
    cpu_s: float
    max_thread_instructions: int = DEFAULT_MAX_INSTRUCTIONS


CASE_LIMITS = Limits(complete_instructions=400_000_000, max_instructions=20_000_000_000, cpu_s=90.0)


class CpuDevice:
    """Runs cases on a pool of executors. It holds no state of a candidate, so all evaluations of a task share it."""

    name = "PTX executor (CPU)"

    def __init__(
        self,
        worker: Worker,
        directory: Path,
        n_slots: int,
        *,
        sandbox: SandboxLevel | None = None,
        limits: Limits = CASE_LIMITS,
        is_beside_gpu: bool = False,
    ) -> None:
        """`worker` runs library steps; `directory` is all that executors may access. `sandbox` is their confinement, by
        default the strongest here. `limits` hold for cases without any; `is_beside_gpu` is as `ExecutorPool`'s."""
        self.worker, self.directory, self.limits, self._sandbox = worker, directory, limits, sandbox
        self._given, self._runs = directory / GIVEN, directory / RUNS
        self._numbers = itertools.count(1)
        self.executors = ExecutorPool(self._new_executor, n_slots, is_beside_gpu=is_beside_gpu)

    @asynccontextmanager
    async def prepare(self, build: KernelBuild) -> AsyncIterator[CpuKernel | LoadFailure]:
        """Yield the kernel on an executor that has loaded it, or the reason why none does."""
        ptx = build.built.ptx
        async with self.executors.executor(ptx) as executor:
            loaded = await self.executors.load(executor, ptx)
            yield CpuKernel(self, executor, build.built, loaded.kernels) if isinstance(loaded, Loaded) else loaded

    async def close(self) -> None:
        """End the idle executors; those in use end with their use."""
        await self.executors.close()

    @contextmanager
    def new_run(self, bound: BoundOperation, files: CaseFiles | None) -> Iterator[RunFiles]:
        """Yield new files of a run, with zeros as inputs where there are no `files`."""
        folder = f"run-{next(self._numbers)}"
        directory, given = self._runs / folder, self._given / folder
        directory.mkdir(parents=True)
        given.mkdir(parents=True)
        try:
            yield RunFiles(directory, given, bound, files)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            shutil.rmtree(given, ignore_errors=True)

    def _new_executor(self) -> PtxExecutor:
        self._given.mkdir(parents=True, exist_ok=True)
        return PtxExecutor(self._runs, self._given, sandbox=self._sandbox)


class CpuKernel:
    """A build that an executor has loaded. `facts` are of its kernels."""

    def __init__(
        self, device: CpuDevice, executor: PtxExecutor, built: Built, facts: Collection[KernelFactsOfPtx]
    ) -> None:
        self._device, self._executor, self.built, self.facts = device, executor, built, facts

    @property
    def is_alive(self) -> bool:
        """Check whether its executor still runs: a case that times out ends it."""
        return self._executor.is_alive

    @property
    def no_answer(self) -> NoAnswer | None:
        """Return the reason why its executor ended; None while it runs."""
        return self._executor.no_answer

    @property
    def used_s(self) -> float:
        """Return the CPU time of its executor's requests so far, in seconds."""
        return self._executor.used_s

    async def run(
        self,
        given: DeviceCase,
        limits: Limits | None = None,
        sample: BlockSample | None = None,
        circumstances: Circumstances = USUAL,
    ) -> CaseOutcome:
        """Run one case, completely or by sampled blocks, and judge its outputs."""
        with self._device.new_run(given.bound, given.files) as run:
            run.write_poison(given.case.seed)
            options = _options_of(given.case, run, sample, limits or self._device.limits, circumstances)
            places = {tensor.name: offset_of(given.case, tensor) for tensor in given.bound.tensors}
            reports: list[ExecutionReport] = []
            for steps in _segments(run.bound.steps):
                if isinstance(steps[0], BoundLibraryStep):
                    if failed := await self._run_library(run, steps[0]):
                        return failed
                    continue
                buffers = run.buffers(initialised=run.written, places=places)
                if options.thread_order == REVERSED_ORDER:
                    buffers.reverse()
                report = await self._executor.run(buffers, steps, self.built.symbols, options)
                if not isinstance(report, ExecutionReport):
                    return report
                if crash := _crash(report):
                    return crash
                reports.append(report)
                run.note_written(steps)
            if sample is None and run.is_small:
                run.tell_numbers_from_poison()
            return _judge(run, given, reports, sampled=sample is not None)

    async def time(self, timer: Timer, operation: TimedOperation) -> NotTimed:
        """Return why there is no time: the executor counts, and estimates come from its counters."""
        return NotTimed("the PTX executor measures no time")

    async def profile(
        self, bound: BoundOperation, case: Case, files: CaseFiles | None, limits: Limits
    ) -> Profile | Crashed | TimedOut | Unsupported:
        """Count the instructions of a few blocks of each launch, of all where they wait for each other. Values are not
        judged: later launches read scratch that earlier ones wrote only in part. So all memory counts as initialised,
        with zeros. A ring of bulk copies is watched for races here: it may be refilled at no smaller size."""
        watched_bytes = sum(tensor.n_bytes for tensor in bound.tensors if tensor.role != "input")
        options = replace(
            _options(limits),
            sample=BlockSample(n_blocks=N_PROFILED_BLOCKS, seed=case.seed),
            n_traced_blocks=N_TRACED_BLOCKS,
            max_thread_instructions=DEFAULT_MAX_INSTRUCTIONS,
            watches_races=is_on("races")
            and any(kernel.copies_in_bulk for kernel in self.facts)
            and watched_bytes <= MAX_WATCHED_RING_BYTES,
        )
        with self._device.new_run(bound, files) as run:
            report: RunOutcome | None = None
            if any(launch.attributes.get("cooperative") for launch in bound.launches):
                whole = replace(options, sample=None, max_instructions=min(MAX_WHOLE_GRID, limits.max_instructions))
                report = await self._executor.run(run.zeros(), bound.launches, self.built.symbols, whole)
            if report is None or isinstance(report, TimedOut):
                report = await self._executor.run(run.zeros(), bound.launches, self.built.symbols, options)
        if not isinstance(report, ExecutionReport):
            return report
        return _crash(report) or Profile(report.counters)

    async def written_bytes(
        self,
        bound: BoundOperation,
        launches: Sequence[BoundLaunch],
        sample: BlockSample | None,
        limits: Limits,
    ) -> Mapping[str, int] | None:
        """Return the bytes of each output that some of the operation's launches write, with zeros in all tensors.
        `sample` limits each launch to a few blocks. None where they time out or fail."""
        options = replace(_options(limits), sample=sample, keeps_written=True)
        with self._device.new_run(bound, None) as run:
            report = await self._executor.run(run.zeros(), launches, self.built.symbols, options)
            if not isinstance(report, ExecutionReport) or _crash(report):
                return None
            return {each.name: run.n_written_bytes(each) for each in bound.outputs}

    async def ends(self, bound: BoundOperation, limits: Limits) -> bool:
        """Check that all launches of an operation terminate within the limits, with zeros in all tensors."""
        with self._device.new_run(bound, None) as run:
            report = await self._executor.run(run.zeros(), bound.launches, self.built.symbols, _options(limits))
            return not isinstance(report, TimedOut | Unsupported)

    async def _run_library(self, run: RunFiles, step: BoundLibraryStep) -> Crashed | None:
        """Run a library step in the worker."""
        tensors = [run.case_tensor(name) for name in tensors_in(step.arguments)]
        results = [run.case_tensor(name) for name in step.results]
        try:
            await self._device.worker.run_library(step.function, step.arguments, tensors=tensors, results=results)
        except TargetError as error:
            return Crashed(message=f"library step {step.function}: {error.message}")
        run.note_written([step])
        return None


def _options(limits: Limits) -> RunOptions:
    return RunOptions(
        n_traced_blocks=0,
        max_instructions=limits.max_instructions,
        max_thread_instructions=limits.max_thread_instructions,
        cpu_s=limits.cpu_s,
        may_write_variables=not is_on("state"),
    )


def _options_of(
    case: Case, run: RunFiles, sample: BlockSample | None, limits: Limits, circumstances: Circumstances
) -> RunOptions:
    """Return the options of a case's run. A small one in the watched order is watched for races."""
    is_watched = sample is None and case.thread_order == WATCHED_ORDER and run.is_small
    return replace(
        _options(limits),
        sample=sample,
        thread_order=case.thread_order if is_on("orders") else "forward",
        seed=case.seed,
        watches_races=is_watched and "interruptions" not in circumstances,
        shared_start=shared_start_of(case),
        keeps_written=run.is_small,
        **circumstances,
    )


def _segments(steps: Sequence[BoundStep]) -> Iterator[list[BoundStep]]:
    """Yield maximal runs of our own steps, and library steps one by one."""
    for is_library, group in groupby(steps, key=lambda step: isinstance(step, BoundLibraryStep)):
        if is_library:
            yield from ([step] for step in group)
        else:
            yield list(group)


def _crash(report: ExecutionReport) -> Crashed | None:
    """Describe the first error that a kernel made."""
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    if not errors:
        return None
    first = errors[0]
    place = f" at line {first.line}" if first.line is not None else ""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Crashed(message=f"{first.message}{place}{more}", findings=report.findings)


def _judge(
    run: RunFiles, given: DeviceCase, reports: Sequence[ExecutionReport], *, sampled: bool
) -> CaseRun | Mismatch:
    results, counted = run.bound.results, [counters for report in reports for counters in report.counters]
    judged = judge_outputs(
        given.case.operation,
        unjudged(
            run.bound,
            given.case.kind,
            sum(counters.n_blocks for counters in counted),
            sum(counters.n_blocks_run for counters in counted),
        ),
        [(result, run.path(holder)) for result, holder in results],
        given.expectations,
        [run.written_elements(holder) if holder.role == "output" else None for _, holder in results] if sampled else (),
    )
    if sampled and isinstance(judged, CaseResult) and is_on("coverage"):
        judged = _with_coverage(run, judged)
    if isinstance(judged, Mismatch):
        return judged
    findings = tuple(finding for report in reports for finding in report.findings)
    return CaseRun(judged, findings, sum(counters.n_instructions for counters in counted))


def _with_coverage(run: RunFiles, result: CaseResult) -> CaseResult | Mismatch:
    """Return a mismatch when blocks like those that ran cannot write every element. Catches grids that are too small,
    and blocks that do nothing or duplicate work."""
    for tensor in run.bound.outputs:
        share_run = result.n_blocks_run / max(result.n_blocks, 1)
        share_written = float(run.written_elements(tensor).mean()) if tensor.n_elements else 1.0
        if share_written < MIN_COVERAGE * share_run:
            message = (
                f"{result.n_blocks_run} of {result.n_blocks} blocks ran and wrote {share_written:.2%} of "
                f"'{tensor.name}': all of them cannot write all of it (inputs '{result.family}')"
            )
            return TooLittleWritten(message=message, failed=result)
    return result


@dataclass(frozen=True)
class Doubtful:
    """A correct case in which the kernel read uninitialised memory."""

    case: Case
    bound: BoundOperation
    sample: BlockSample | None
    run: CaseRun


@dataclass
class LoadedKernel:
    """A loaded candidate with the cases of one direction, whose files come from the `store`. `progress` collects the
    evidence, and `gpu` is the target of estimates."""

    code: CpuKernel
    store: CaseStore
    prepared: Prepared
    plan: Plan
    progress: Progress
    gpu: GpuSpec
    doubtful: list[Doubtful] = field(default_factory=list)

    @property
    def built(self) -> Built:
        return self.code.built

    @property
    def direction(self) -> OperationKind:
        return self.plan[0][0].operation

    @cached_property
    def finder(self) -> PlanFinder:
        return finder_of(self.prepared, self.direction)

    @property
    def known(self) -> list[Sizes]:
        """Return the distinct sizes of the cases."""
        return [dict(sizes) for sizes in dict.fromkeys(case.sizes for case, _ in self.plan)]

    @property
    def name(self) -> str:
        """Return the name of the operation."""
        return self.prepared.operation(self.direction).name

    def has_kernels_of(self, bound: BoundOperation) -> bool:
        """Check whether the build has all kernels of an operation. Template arguments may depend on sizes, and the
        build has those of the planned cases."""
        return kernel_names(bound) <= self.built.symbols.keys()

    async def run(
        self,
        case: Case,
        bound: BoundOperation,
        limits: Limits,
        sample: BlockSample | None = None,
        circumstances: Circumstances = USUAL,
    ) -> CaseOutcome:
        """Run and judge one case. Where a sample of blocks wrote too little, all blocks decide if they end in time."""
        files = await self.store.get(case)
        if isinstance(files, NoCase):
            return Skipped(files.reason)
        given = DeviceCase(case, bound, files, read_expectations(files))
        found = await self.code.run(given, limits, sample, circumstances)
        if not isinstance(found, TooLittleWritten):
            return found
        limits = replace(limits, max_instructions=min(limits.max_instructions, MAX_CONFIRMED))
        whole = await self.code.run(given, limits, None, circumstances)
        if isinstance(whole, Stalled):
            return whole
        inconclusive = isinstance(whole, TimedOut | Unsupported)
        return Mismatch(message=found.message, failed=found.failed) if inconclusive else whole

    def note(self, case: Case, bound: BoundOperation, sample: BlockSample | None, run: CaseRun) -> None:
        """Record a correct case."""
        self.progress.cases.append(run.result)
        self.progress.add_findings(run.findings)
        if reads_unwritten(run):
            self.doubtful.append(Doubtful(case, bound, sample, run))

    async def profile(self, limits: Limits) -> Profile | Crashed | TimedOut | Unsupported | Skipped:
        """Count what the launches at the captured sizes do: with zeros where files describe the inputs for workers."""
        case, bound = self.plan[0]
        files = None if self.store.describes(case) else await self.store.get(case)
        return (
            Skipped(files.reason) if isinstance(files, NoCase) else await self.code.profile(bound, case, files, limits)
        )
