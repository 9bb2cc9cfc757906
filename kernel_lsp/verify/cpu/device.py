"""Run the cases of a built candidate on the PTX executor and judge them.

The executor's process reads inputs and writes outputs. Only this process reads the expected values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from kernel_lsp.core.counters import LaunchCounters
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.plan import (
    BoundLaunch,
    BoundLibraryStep,
    BoundOperation,
    BoundStep,
)
from kernel_lsp.core.verdict import Built, CaseResult, Crashed, Mismatch, TimedOut, Unsupported
from kernel_lsp.errors import TargetError
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.worker_client import CaseFiles, Worker
from kernel_lsp.ptx.executor import (
    DEFAULT_MAX_INSTRUCTIONS,
    BlockSample,
    ExecutionReport,
    PtxExecutor,
    RunOptions,
)
from kernel_lsp.verify.cpu.run_files import RunFiles
from kernel_lsp.verify.model.cases import Case
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.environment import USUAL, Circumstances, offset_of, shared_start_of
from kernel_lsp.verify.oracle.case_store import CaseStore, NoCase, read_expectations
from kernel_lsp.verify.oracle.judgement import judge_outputs

N_TRACED_BLOCKS = 2
MIN_COVERAGE = 0.7
"""Minimum written share of what sampled blocks should write of an output. Blocks at the edges write less than
others."""
N_PROFILED_BLOCKS = 6
"""Blocks per launch that are run to count instructions: first, last and random ones."""
MIN_SAMPLED_BLOCKS = 8
WATCHED_ORDER = "reverse"
"""Thread order that marks a case to be watched for races when it is small: the first sizes, and long rows."""
REVERSED_ORDER = "reverse"
"""Thread order whose cases also reverse the tensors' address order, which an allocator does not define."""
GIVEN, RUNS = "given", "runs"
"""Folder names of inputs and of outputs."""


@dataclass(frozen=True)
class CaseRun:
    """A case that ran to its end, correct or incorrect."""

    result: CaseResult
    findings: tuple[Finding, ...]
    n_instructions: int


@dataclass(frozen=True)
class Skipped:
    """An inconclusive case."""

    reason: str


CaseOutcome = CaseRun | Skipped | Mismatch | Crashed | TimedOut | Unsupported


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
    """Budget of one case. Up to `complete_instructions` all blocks run; beyond, blocks are sampled."""

    complete_instructions: int
    max_instructions: int
    deadline_s: float
    max_thread_instructions: int = DEFAULT_MAX_INSTRUCTIONS


def new_executor(directory: Path, sandbox: SandboxLevel | None) -> PtxExecutor:
    """Return an executor that may access only the files of this folder's runs. `sandbox` is its confinement; None takes
    the strongest level that this machine offers."""
    (directory / GIVEN).mkdir(parents=True, exist_ok=True)
    return PtxExecutor(directory / RUNS, directory / GIVEN, sandbox=sandbox)


class CpuDevice:
    """Runs one task's cases on the executor. It holds no state of a candidate, so several evaluations may share it.

    Executors see the inputs of the current case in one folder, and their outputs in another. Expected values lie in
    neither.
    """

    def __init__(self, store: CaseStore, worker: Worker, directory: Path, name: str = "") -> None:
        """`name` separates its folders from those of others that share the executors and their directory."""
        self._store, self._worker = store, worker
        self._given, self._runs = directory / GIVEN / name, directory / RUNS / name
        self._n_runs = 0

    async def profile(
        self, executor: PtxExecutor, built: Built, bound: BoundOperation, case: Case, limits: Limits
    ) -> Profile | Crashed | TimedOut | Unsupported | Skipped:
        """Count the instructions of a few blocks of each launch. Values are not judged: later launches read scratch
        that earlier ones wrote only in part. So all memory counts as initialised, with zeros."""
        files = await self._store.get(case)
        if isinstance(files, NoCase):
            return Skipped(files.reason)
        run = self._new_run(bound, files)
        try:
            run.write_zeros()
            launches = [step for step in bound.steps if isinstance(step, BoundLaunch)]
            sample = BlockSample(n_blocks=N_PROFILED_BLOCKS, seed=case.seed)
            most = DEFAULT_MAX_INSTRUCTIONS
            options = replace(
                _options(limits), sample=sample, n_traced_blocks=N_TRACED_BLOCKS, max_thread_instructions=most
            )
            buffers = run.buffers(initialised={tensor.name for tensor in bound.tensors})
            report = await executor.run(buffers, launches, built.symbols, options)
        finally:
            run.remove()
        if not isinstance(report, ExecutionReport):
            return report
        return _crash(report) or Profile(report.counters)

    async def written_bytes(
        self,
        executor: PtxExecutor,
        built: Built,
        bound: BoundOperation,
        launches: Sequence[BoundLaunch],
        sample: BlockSample | None,
        limits: Limits,
    ) -> Mapping[str, int] | None:
        """Return the bytes of each output that some of the operation's launches write, with zeros in all tensors.
        `sample` limits each launch to a few blocks. None where they time out or fail."""
        run = self._new_run(bound, None)
        try:
            run.write_zeros()
            options = replace(_options(limits), sample=sample, keeps_written=True)
            buffers = run.buffers(initialised={tensor.name for tensor in bound.tensors})
            report = await executor.run(buffers, launches, built.symbols, options)
            if not isinstance(report, ExecutionReport) or _crash(report):
                return None
            return {each.name: run.n_written_bytes(each) for each in bound.tensors if each.role == "output"}
        finally:
            run.remove()

    async def ends(self, executor: PtxExecutor, built: Built, bound: BoundOperation, limits: Limits) -> bool:
        """Check that all launches of an operation terminate within the limits, with zeros in all tensors."""
        run = self._new_run(bound, None)
        try:
            run.write_zeros()
            buffers = run.buffers(initialised={tensor.name for tensor in bound.tensors})
            launches = [step for step in bound.steps if isinstance(step, BoundLaunch)]
            return not isinstance(await executor.run(buffers, launches, built.symbols, _options(limits)), TimedOut)
        finally:
            run.remove()

    async def make_aside(self, case: Case) -> None:
        """Make a case without a turn on the GPU."""
        await self._store.make_without_turn(case)

    async def run_case(
        self,
        executor: PtxExecutor,
        built: Built,
        bound: BoundOperation,
        case: Case,
        sample: BlockSample | None,
        limits: Limits,
        circumstances: Circumstances = USUAL,
    ) -> CaseOutcome:
        """Run one case, completely or by sampled blocks, and judge its outputs."""
        files = await self._store.get(case)
        if isinstance(files, NoCase):
            return Skipped(files.reason)
        run = self._new_run(bound, files)
        try:
            run.write_poison(case.seed)
            options = replace(
                _options(limits),
                sample=sample,
                thread_order=case.thread_order if is_on("orders") else "forward",
                seed=case.seed,
                watches_races=(
                    sample is None
                    and case.thread_order == WATCHED_ORDER
                    and run.is_small
                    and circumstances.interruptions == "none"
                ),
                shared_poison=circumstances.shared_poison,
                shared_start=shared_start_of(case),
                resident_blocks=circumstances.resident_blocks,
                keeps_lanes_apart=circumstances.keeps_lanes_apart,
                interruptions=circumstances.interruptions,
                keeps_written=run.is_small,
            )
            places = {tensor.name: offset_of(case, tensor) for tensor in bound.tensors}
            reports = await self._run_segments(executor, built, run, places, options)
            if not isinstance(reports, list):
                return reports
            if sample is None and run.is_small:
                run.tell_numbers_from_poison()
            return _judge(run, case, reports, sampled=sample is not None)
        finally:
            run.remove()

    async def _run_segments(
        self,
        executor: PtxExecutor,
        built: Built,
        run: RunFiles,
        places: Mapping[str, int],
        options: RunOptions,
    ) -> list[ExecutionReport] | Crashed | TimedOut | Unsupported:
        """Run our launches in the executor and library steps in the worker, in the plan's order."""
        reports: list[ExecutionReport] = []
        for steps in _segments(run.bound.steps):
            if isinstance(steps[0], BoundLibraryStep):
                try:
                    await self._run_library(run, steps[0])
                except TargetError as error:
                    return Crashed(message=f"library step {steps[0].function}: {error.message}")
                continue
            buffers = run.buffers(initialised=run.written, places=places)
            if options.thread_order == REVERSED_ORDER:
                buffers.reverse()
            report = await executor.run(buffers, steps, built.symbols, options)
            if not isinstance(report, ExecutionReport):
                return report
            if crash := _crash(report):
                return crash
            reports.append(report)
            run.note_written(steps)
        return reports

    async def _run_library(self, run: RunFiles, step: BoundLibraryStep) -> None:
        tensors = [run.case_tensor(name) for name in _tensor_names(step.arguments)]
        results = [run.case_tensor(name) for name in step.results]
        await self._worker.run_library(step.function, step.arguments, tensors=tensors, results=results)
        run.note_written([step])

    def _new_run(self, bound: BoundOperation, files: CaseFiles | None) -> RunFiles:
        self._n_runs += 1
        directory, given = (parent / f"run-{self._n_runs}" for parent in (self._runs, self._given))
        directory.mkdir(parents=True)
        given.mkdir(parents=True)
        return RunFiles(directory, given, bound, files)


# --- below: steps


def _options(limits: Limits) -> RunOptions:
    return RunOptions(
        n_traced_blocks=0,
        max_instructions=limits.max_instructions,
        max_thread_instructions=limits.max_thread_instructions,
        deadline_s=limits.deadline_s,
        may_write_variables=not is_on("state"),
    )


def _segments(steps: Sequence[BoundStep]) -> Iterator[list[BoundStep]]:
    """Yield maximal runs of our own steps, and library steps one by one."""
    for is_library, group in groupby(steps, key=lambda step: isinstance(step, BoundLibraryStep)):
        if is_library:
            yield from ([step] for step in group)
        else:
            yield list(group)


def _tensor_names(arguments: object) -> Iterator[str]:
    if isinstance(arguments, dict):
        yield arguments["tensor"]
    elif isinstance(arguments, list | tuple):
        for argument in arguments:
            yield from _tensor_names(argument)


# --- below: judging


def _crash(report: ExecutionReport) -> Crashed | None:
    """Describe the first error that a kernel made."""
    errors = [finding for finding in report.findings if finding.severity is Severity.ERROR]
    if not errors:
        return None
    first = errors[0]
    place = f" at line {first.line}" if first.line is not None else ""
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Crashed(message=f"{first.message}{place}{more}", findings=report.findings)


def _judge(run: RunFiles, case: Case, reports: Sequence[ExecutionReport], *, sampled: bool) -> CaseRun | Mismatch:
    outputs = [tensor for tensor in run.bound.tensors if tensor.role == "output"]
    judged = judge_outputs(
        case.operation,
        CaseResult(
            operation=run.bound.name,
            family=case.kind,
            shapes={tensor.name: tensor.shape for tensor in run.bound.tensors if tensor.role == "input"},
            n_blocks=sum(counters.n_blocks for report in reports for counters in report.counters),
            n_blocks_run=sum(counters.n_blocks_run for report in reports for counters in report.counters),
            errors=(),
        ),
        [(tensor, run.path(tensor)) for tensor in outputs],
        read_expectations(run.files),
        [run.written_elements(tensor) for tensor in outputs] if sampled else (),
    )
    if sampled and isinstance(judged, CaseResult) and is_on("coverage"):
        judged = _with_coverage(run, judged)
    if isinstance(judged, Mismatch):
        return judged
    findings = tuple(finding for report in reports for finding in report.findings)
    n_instructions = sum(counters.n_instructions for report in reports for counters in report.counters)
    return CaseRun(judged, findings, n_instructions)


def _with_coverage(run: RunFiles, result: CaseResult) -> CaseResult | Mismatch:
    """Return a mismatch when blocks like those that ran cannot write every element. Catches grids that are too small,
    and blocks that do nothing or duplicate work."""
    for tensor in (tensor for tensor in run.bound.tensors if tensor.role == "output"):
        share_run = result.n_blocks_run / max(result.n_blocks, 1)
        share_written = float(run.written_elements(tensor).mean()) if tensor.n_elements else 1.0
        if share_written < MIN_COVERAGE * share_run:
            message = (
                f"{result.n_blocks_run} of {result.n_blocks} blocks ran and wrote {share_written:.2%} of "
                f"'{tensor.name}': all of them cannot write all of it (inputs '{result.family}')"
            )
            return Mismatch(message=message, failed=result)
    return result
