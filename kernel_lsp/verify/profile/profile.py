"""The profile of one kernel file at its task's captured sizes: measured where there is a GPU, counted where not.

report = await profile_kernel(Path("rms_norm.cu"), None, Path.cwd(), settings)
print(report.summary())
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.finding import Finding
from kernel_lsp.core.measurement import Estimate
from kernel_lsp.core.plan import BoundLaunch, BoundOperation
from kernel_lsp.core.profile import (
    EagerKernel,
    KernelProfile,
    LaunchCounters,
    LineCounters,
    LineProfile,
    ProfileKind,
    ProfileReport,
    ToolRun,
)
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import BuildFailed, CheckOutcome, KernelFacts, Unsupported
from kernel_lsp.errors import EnvironmentProblem, KernelLspError, TargetError
from kernel_lsp.gpu.estimate import DEFAULT_REGISTERS, estimate_operation, time_floor
from kernel_lsp.gpu.floor import added_bases
from kernel_lsp.gpu.launch import SECTOR_BYTES, occupancy
from kernel_lsp.gpu.specs import GpuSpec, find_gpu
from kernel_lsp.plan.parser import parse
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.process.confinement import Confinement
from kernel_lsp.process.profiles import profiler_confinement
from kernel_lsp.toolchain.tools.binaries import Tool, find_tools
from kernel_lsp.verify.model.cases import graph_of
from kernel_lsp.verify.oracle.case_store import NoCase
from kernel_lsp.verify.profile.advice import advise
from kernel_lsp.verify.profile.tools import (
    N_PASSES,
    NcuPages,
    compulsory_bytes,
    launch_program,
    measured_kernels,
    run_ncu,
    run_sanitizers,
    run_tidy,
)
from kernel_lsp.verify.session.check_kernel import find_planned_task, read_kernel
from kernel_lsp.verify.session.pipeline import ReadyRun, RunBuilder
from kernel_lsp.verify.session.plain_build import planned_text
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.timing.operation import reference_request

NEEDED_TOOLS = ("ncu", "compute-sanitizer", "clang-tidy")
PROFILED_FOLDER = "profiled"
"""Subfolder of the cache with the text of each profiled kernel by its hash, where tools find it by the name in its
code."""
TRACE_DEADLINE_S = 120.0
NO_GPU = "needs a GPU"
ELSEWHERE = "runs on this machine alone: profile on the one with the GPU"

Tell = Callable[[str], None]


async def profile_kernel(
    kernel: Path, target: str | None, directory: Path, settings: Settings, tell: Tell = lambda _: None
) -> ProfileReport | CheckOutcome:
    """Return the profile, or the reason why the kernel cannot run at all. The report lists what single tools cannot do.
    `tell` receives progress messages, since tools take long.

    Raises UserError for a file that cannot be read or has no task, TargetError when the task cannot be captured.
    """
    text = planned_text(read_kernel(kernel))
    parsed = parse(text)
    if parsed.plan is None:
        return BuildFailed(findings=parsed.findings)
    source = find_planned_task(kernel, parsed.plan, target, directory)
    candidate = Candidate(text=text, origin=Origin(proposer="user", description=str(kernel)))
    async with Session(settings) as session:
        await session.gpu_index()
        tell("its task is captured")
        task = await session.capture(source, with_backward=parsed.plan.backward is not None)
        runs = (await session.verifier(source, task)).runs
        return await profile_candidate(session, runs, task, candidate, kernel.name, tell)


async def profile_candidate(
    session: Session, runs: RunBuilder, task: Task, candidate: Candidate, file_name: str, tell: Tell = lambda _: None
) -> ProfileReport | CheckOutcome:
    """Return the profile of a candidate of the session's task, which the report calls `file_name`; as
    `profile_kernel`."""
    index = None if session.is_remote else await session.gpu_index()
    copy = _copy(candidate, session.settings.cache_directory)
    tell("it is compiled")
    ready = await runs.ready_runs(candidate, str(copy))
    if not isinstance(ready, list):
        return ready
    profiled = _Profiled(session, runs, task, ready, file_name, copy, tell)
    return await (profiled.count() if index is None else profiled.measure(index))


def _copy(candidate: Candidate, cache: Path) -> Path:
    """Store the text under a stable name, so that its build is cached. Raises EnvironmentProblem."""
    path = cache / PROFILED_FOLDER / f"{candidate.id}.cu"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(candidate.text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(f"cannot write the kernel's copy ({error.strerror})", file=str(path)) from None
    return path


class _Profiled:
    """One kernel, built and bound."""

    def __init__(
        self,
        session: Session,
        runs: RunBuilder,
        task: Task,
        ready: list[ReadyRun],
        file: str,
        copy: Path,
        tell: Tell,
    ) -> None:
        self._session, self._runs, self._task = session, runs, task
        self._given = [run for run in ready if run.is_given]
        self._small = [run for run in ready if not run.is_given]
        self._file, self._copy, self._tell = file, copy, tell
        self._built = ready[0].built

    async def count(self) -> ProfileReport | CheckOutcome:
        """Profile with the executor, with ptxas's facts and estimated times."""
        self._tell("the PTX executor counts what each line does")
        profiles = await self._runs.count_runs(self._given)
        if not isinstance(profiles, tuple):
            return profiles
        gpu, symbols = self._session.gpu, self._built.symbols
        kernels: list[tuple[float, tuple[KernelProfile, ...]]] = []
        for run, profile in zip(self._given, profiles, strict=True):
            estimate = estimate_operation(run.bound, profile.counters, self._built.kernels, symbols, gpu)
            found = executor_kernels(run.bound, profile.counters, self._built.kernels, symbols, gpu)
            kernels.append((estimate.time_us, found))
        tools = await find_tools(NEEDED_TOOLS)
        tidied, lint = await self._tidy(tools[2])
        skipped = [
            ToolRun(tool=name, status="not asked", reason=ELSEWHERE if self._session.is_remote else NO_GPU)
            for name in ("ncu", "compute-sanitizer", "torch profiler")
        ]
        report = self._report("executor", gpu, kernels, [*skipped, tidied])
        return report.model_copy(update={"findings": tuple(self._on_file(finding) for finding in lint)})

    async def measure(self, index: int) -> ProfileReport | CheckOutcome:
        """Profile with the tools on the GPU. What they do not measure stays open."""
        ncu, sanitizer, tidy = await find_tools(NEEDED_TOOLS)
        files = [await self._runs.inputs_of(run) for run in self._given]
        for found in files:
            if isinstance(found, NoCase):
                return Unsupported(message=found.reason)
        inputs = [found for found in files if isinstance(found, CaseFiles)]
        pages = [await self._ncu(ncu, run, found, index) for run, found in zip(self._given, inputs, strict=True)]
        if any(not page.launches for page in pages):
            counted = await self.count()
            return _with_tool(counted, pages[0].run)
        sanitized, findings = await self._sanitize(sanitizer, index)
        traced, eager = await self._trace(index, inputs[0])
        tidied, lint = await self._tidy(tidy)
        gpu = _gpu_named(pages[0].launches[0].gpu, self._session.gpu)
        kernels = [
            (
                sum(launch.metric("gpu__time_duration.sum") for launch in page.launches[n_before:]),
                measured_kernels(
                    run.bound.timed,
                    page.launches[n_before:],
                    page.sources[n_before:],
                    self._built.kernels,
                    self._built.symbols,
                    self._copy.name,
                ),
            )
            for run, page in zip(self._given, pages, strict=True)
            for n_before in [run.bound.n_launches_before]
        ]
        report = self._report("measured", gpu, kernels, [pages[0].run, *sanitized, traced, tidied])
        seen = tuple(self._on_file(finding) for finding in (*findings, *lint))
        return report.model_copy(update={"findings": seen, "eager": eager})

    def _confinement(self, folder: Path, *, needs_counters: bool) -> Confinement:
        """Confine a tool: it writes to its folder, and reads the session's inputs."""
        session, readable = self._session, (self._session.scratch,)
        return profiler_confinement(
            session.sandbox, session.worker.python, readable=readable, scratch=folder, needs_counters=needs_counters
        )

    def _tell_of(self, tool: Tool, what: str) -> None:
        if tool.path is not None:
            self._tell(what)

    async def _tidy(self, tool: Tool) -> tuple[ToolRun, tuple[Finding, ...]]:
        self._tell_of(tool, "clang-tidy reads its text")
        return await run_tidy(tool, self._copy, self._session.include_directories, self._session.sandbox)

    async def _ncu(self, tool: Tool, run: ReadyRun, files: CaseFiles, index: int) -> NcuPages:
        folder = self._session.new_folder(f"ncu-{run.bound.name}")
        program = launch_program(self._session.worker.python, run, files, index, folder)
        self._tell_of(tool, f"Nsight Compute runs each kernel of {run.bound.name} some {N_PASSES} times")
        device = await self._session.gpu_device()
        turn = nullcontext if device is None else device.turn
        return await run_ncu(tool, program, folder, self._confinement(folder, needs_counters=True), turn)

    async def _sanitize(self, tool: Tool, index: int) -> tuple[list[ToolRun], list[Finding]]:
        """Run the sanitizers at small sizes, where edges are: the tools are ten to a hundred times slower."""
        runs: list[ToolRun] = []
        findings: list[Finding] = []
        for run in self._small or self._given:
            files = await self._runs.inputs_of(run)
            if isinstance(files, NoCase):
                runs.append(ToolRun(tool=tool.name, status="failed", reason=files.reason))
                continue
            folder = self._session.new_folder(f"sanitizer-{run.bound.name}")
            program = launch_program(self._session.worker.python, run, files, index, folder)
            confinement = self._confinement(folder, needs_counters=False)
            self._tell_of(tool, f"compute-sanitizer runs {run.bound.name} at small sizes")
            ran, found = await run_sanitizers(tool, program, folder, confinement)
            runs += ran
            findings += found
        return list({run.tool: run for run in runs}.values()), findings

    async def _trace(self, index: int, files: CaseFiles) -> tuple[ToolRun, tuple[EagerKernel, ...]]:
        """Trace PyTorch's own launches of the forward."""
        self._tell("the torch profiler looks at what PyTorch launches")
        request = {
            "device": index,
            "inputs": [tensor.entry for tensor in files.inputs],
            "reference": reference_request(self._task, "forward"),
        }
        try:
            reply = await self._session.worker.ask("profile_trace", request, deadline_s=TRACE_DEADLINE_S)
        except (TargetError, EnvironmentProblem) as error:
            return ToolRun(tool="torch profiler", status="failed", reason=error.message), ()
        kernels = tuple(EagerKernel(**kernel) for kernel in reply["kernels"])
        return ToolRun(tool="torch profiler", status="ran", version=self._task.torch_version), kernels

    def _report(
        self,
        kind: ProfileKind,
        gpu: GpuSpec,
        operations: Sequence[tuple[float, tuple[KernelProfile, ...]]],
        tools: Sequence[ToolRun],
    ) -> ProfileReport:
        """Combine forward and backward; a kernel's share becomes that of both."""
        total_us = sum(time_us for time_us, _ in operations)
        kernels = tuple(
            kernel.model_copy(update={"share": kernel.share * time_us / (total_us or 1.0)})
            for time_us, found in operations
            for kernel in found
        )
        floors = [time_floor(graph_of(self._task, run.case.operation), run.bound, gpu) for run in self._given]
        floor_us = sum(floor.time_us for floor in floors)
        shapes = {t.name: t.shape for run in self._given for t in run.bound.tensors if t.role != "scratch"}
        return ProfileReport(
            kind=kind,
            file=self._file,
            device=gpu.name,
            date=datetime.date.today().isoformat(),
            shapes=shapes,
            time_us=total_us,
            floor_us=floor_us,
            floor_basis=added_bases([floor.basis for floor in floors]),
            kernels=kernels,
            advice=advise(kernels, total_us, floor_us),
            tools=tuple(tools),
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        steps = [step for run in self._given for step in run.bound.steps if step.kind == "library"]
        return (f"{len(steps)} library steps are not part of the profile",) if steps else ()

    def _on_file(self, finding: Finding) -> Finding:
        """Restore the user's name of the file, of which the tools saw a copy."""
        return finding.model_copy(update={"file": self._file}) if finding.file == self._copy.name else finding


def _with_tool(report: ProfileReport | CheckOutcome, failed: ToolRun) -> ProfileReport | CheckOutcome:
    """Return a counted profile with ncu's reason for not measuring."""
    if not isinstance(report, ProfileReport):
        return report
    others = tuple(run for run in report.tools if run.tool != failed.tool)
    return report.model_copy(update={"tools": (failed, *others)})


def _gpu_named(name: str, otherwise: GpuSpec) -> GpuSpec:
    try:
        return find_gpu(name)
    except KernelLspError:
        return otherwise


def executor_kernels(
    bound: BoundOperation,
    counters: Sequence[LaunchCounters],
    facts: Sequence[KernelFacts],
    symbols: Mapping[str, str],
    gpu: GpuSpec,
) -> tuple[KernelProfile, ...]:
    """Return one profile per launch, in order; `share` is of the launches' estimated time. Launches that only make what
    a backward is given of its forward have none."""
    counters, bound = counters[bound.n_launches_before :], bound.timed
    steps = bound.launches
    alone = (bound.model_copy(update={"steps": (step,)}) for step in steps)
    estimates = [
        estimate_operation(one, [counted], facts, symbols, gpu) for one, counted in zip(alone, counters, strict=True)
    ]
    total_us = sum(estimate.time_us for estimate in estimates) or 1.0
    by_symbol = {fact.symbol: fact for fact in facts}
    return tuple(
        _kernel(bound, step, one, estimate, by_symbol.get(symbols.get(step.kernel, "")), gpu, total_us)
        for step, one, estimate in zip(steps, counters, estimates, strict=True)
    )


def _kernel(
    bound: BoundOperation,
    step: BoundLaunch,
    counters: LaunchCounters,
    estimate: Estimate,
    facts: KernelFacts | None,
    gpu: GpuSpec,
    total_us: float,
) -> KernelProfile:
    n_registers = facts.n_registers if facts is not None else DEFAULT_REGISTERS
    shared_bytes = step.shared_bytes + (facts.shared_bytes if facts is not None else 0)
    resident = occupancy(
        gpu.architecture,
        n_threads_per_block=step.n_threads_per_block,
        n_registers=n_registers,
        shared_bytes=shared_bytes,
    )
    at_once = resident.n_blocks * gpu.n_sms
    limit: Literal["threads", "blocks", "registers", "shared memory"] = resident.limited_by
    return KernelProfile(
        kernel=step.kernel,
        operation=bound.name,
        share=estimate.time_us / total_us,
        bound="compute" if estimate.bound == "library" else estimate.bound,
        launch_line=step.line,
        grid=step.grid,
        block=step.block,
        n_registers=n_registers,
        spill_bytes=facts.spill_store_bytes + facts.spill_load_bytes if facts is not None else 0,
        shared_bytes=shared_bytes,
        occupancy=resident.fraction,
        occupancy_limit=limit,
        n_waves=step.n_blocks / at_once if at_once else 0.0,
        compulsory_bytes=compulsory_bytes(bound, step),
        lines=_lines(step.kernel, counters.lines),
    )


def _lines(kernel: str, counted: Sequence[LineCounters]) -> tuple[LineProfile, ...]:
    total = sum(line.n_instructions for line in counted) or 1
    return tuple(
        LineProfile(
            line=line.line,
            kernel=kernel,
            share=line.n_instructions / total,
            n_instructions=line.n_instructions,
            n_sectors=line.n_global_sectors,
            n_sectors_needed=min(line.n_global_sectors, -(-line.n_global_bytes // SECTOR_BYTES)),
            threads_per_request=line.threads_per_request,
        )
        for line in counted
    )
