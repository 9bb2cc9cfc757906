"""The profile of one kernel file at its task's captured sizes: measured where there is a GPU, counted where not.

report = await profile_kernel(Path("rms_norm.cu"), None, Path.cwd(), settings)
print(report.summary())
"""

from __future__ import annotations

import datetime
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.finding import Finding
from kernel_lsp.core.profile import EagerKernel, KernelProfile, ProfileKind, ProfileReport, ToolRun
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import BuildFailed, CheckOutcome, Unsupported
from kernel_lsp.errors import EnvironmentProblem, TargetError
from kernel_lsp.gpu.estimate import estimate_operation, time_floor
from kernel_lsp.gpu.floor import added_bases
from kernel_lsp.gpu.specs import GpuSpec, known_gpu
from kernel_lsp.plan.parser import parse
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.process.confinement import Confinement
from kernel_lsp.process.profiles import profiler_confinement
from kernel_lsp.toolchain.tools.binaries import Tool, find_tools
from kernel_lsp.verify.devices.device import DeviceCase, KernelBuild
from kernel_lsp.verify.gpu.gpu_device import GpuDevice
from kernel_lsp.verify.gpu.gpu_kernel import GpuKernel
from kernel_lsp.verify.model.cases import graph_of
from kernel_lsp.verify.oracle.case_store import NoCase
from kernel_lsp.verify.profile.advice import advise
from kernel_lsp.verify.profile.executor_kernels import executor_kernels, with_times
from kernel_lsp.verify.profile.ncu_kernels import measured_kernels
from kernel_lsp.verify.profile.tool_machine import Asked, LocalTools, RemoteTools, ToolMachine
from kernel_lsp.verify.profile.tools import N_PASSES, NcuPages, launch_program, run_ncu, run_sanitizers, run_tidy
from kernel_lsp.verify.session.check_kernel import find_planned_task, read_kernel
from kernel_lsp.verify.session.pipeline import ReadyRun, RunBuilder
from kernel_lsp.verify.session.plain_build import planned_text
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.timing.operation import reference_request

GPU_TOOLS, LINTER = ("ncu", "compute-sanitizer"), "clang-tidy"
TRACER, EVENTS = "torch profiler", "CUDA events"
NCU_FOLDER = "ncu"
"""First part of the name of a folder whose tool needs the GPU's performance counters."""
PROFILED_FOLDER = "profiled"
"""Subfolder of the cache with the text of each profiled kernel by its hash, where tools find it by the name in its
code."""
TRACE_DEADLINE_S = 120.0
NO_GPU = "needs a GPU"

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
    copy = _copy(candidate, session.settings.cache_directory)
    tell("it is compiled")
    ready = await runs.ready_runs(candidate, str(copy))
    if not isinstance(ready, list):
        return ready
    async with _profiled_gpu(session) as gpu:
        return await _Profiled(session, runs, task, ready, candidate.id, gpu, file_name, copy, tell).report()


@dataclass(frozen=True)
class _ProfiledGpu:
    """The GPU of a profile and the tools of its machine. `worker` traces PyTorch there; `device` is None where torch
    cannot use the GPU."""

    index: int
    device: GpuDevice | None
    tools: ToolMachine
    worker: Asked
    place: str = ""
    """Words for messages, such as ``on me@gpuhost``; empty for this machine."""


@asynccontextmanager
async def _profiled_gpu(session: Session) -> AsyncIterator[_ProfiledGpu | None]:
    """Yield the session's GPU with its tools, None without a GPU. On another machine they run beside a worker of their
    own: profilers take as long as they take, and candidates wait for no turn of it."""
    if (index := await session.gpu_index()) is None:
        yield None
        return
    device, remote = await session.gpu_device(), session.new_remote_worker()
    if remote is None:

        def confine(folder: Path) -> Confinement:
            return profiler_confinement(
                session.sandbox, session.worker.python, readable=(session.scratch,), scratch=folder,
                needs_counters=folder.name.startswith(NCU_FOLDER),
            )  # fmt: skip

        yield _ProfiledGpu(index, device, LocalTools(session.worker.python, confine), session.worker)
        return
    assert device is not None, "a remote GPU opens, or raises"
    async with remote:
        yield _ProfiledGpu(index, device, RemoteTools(remote, device.slot.place), remote, device.slot.place)


def _copy(candidate: Candidate, cache: Path) -> Path:
    """Store the text under a stable name, so that its build is cached. Raises EnvironmentProblem."""
    path = cache / PROFILED_FOLDER / f"{candidate.id}.cu"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(candidate.text, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(f"cannot write the kernel's copy ({error.strerror})", file=str(path)) from None
    return path


@dataclass(frozen=True)
class _Timed:
    """Time of each direction in microseconds with its kernels, and how it is known."""

    kind: ProfileKind
    device: str
    gpu: GpuSpec
    operations: list[tuple[float, tuple[KernelProfile, ...]]]


class _Profiled:
    """One kernel, built and bound."""

    def __init__(
        self,
        session: Session,
        runs: RunBuilder,
        task: Task,
        ready: list[ReadyRun],
        candidate_id: str,
        gpu: _ProfiledGpu | None,
        file: str,
        copy: Path,
        tell: Tell,
    ) -> None:
        self._session, self._runs, self._task, self._gpu = session, runs, task, gpu
        self._given = [run for run in ready if run.is_given]
        self._small = [run for run in ready if not run.is_given]
        self._build = KernelBuild(candidate_id, ready[0].built)
        self._file, self._copy, self._tell = file, copy, tell
        self._built = ready[0].built

    async def report(self) -> ProfileReport | CheckOutcome:
        """Profile with every tool that there is, each for its part."""
        if self._gpu is None:
            counted = await self._count()
            if not isinstance(counted, _Timed):
                return counted
            skipped = [ToolRun(tool=name, status="not asked", reason=NO_GPU) for name in (*GPU_TOOLS, TRACER)]
            return await self._report(counted, skipped, (), ())
        inputs: list[CaseFiles] = []
        for run in self._given:
            found = await self._runs.inputs_of(run)
            if isinstance(found, NoCase):
                return Unsupported(message=found.reason)
            inputs.append(found)
        ncu, sanitizer = await self._gpu.tools.find(GPU_TOOLS)
        pages = [await self._ncu(self._gpu, ncu, run, each) for run, each in zip(self._given, inputs, strict=True)]
        tools = [pages[0].run]
        timed = self._of_pages(pages) if all(page.launches for page in pages) else await self._count()
        if not isinstance(timed, _Timed):
            return timed
        if timed.kind == "executor" and self._gpu.device is not None:
            ran, timed = await self._with_events(self._gpu, self._gpu.device, timed, inputs)
            tools.append(ran)
        sanitized, findings = await self._sanitize(self._gpu, sanitizer)
        traced, eager = await self._trace(self._gpu, inputs[0])
        return await self._report(timed, [*tools, *sanitized, traced], findings, eager)

    async def _count(self) -> _Timed | CheckOutcome:
        """Count with the executor, with ptxas's facts and estimated times."""
        self._tell("the PTX executor counts what each line does")
        profiles = await self._runs.count_runs(self._given)
        if not isinstance(profiles, tuple):
            return profiles
        gpu, symbols = self._session.gpu, self._built.symbols
        operations: list[tuple[float, tuple[KernelProfile, ...]]] = []
        for run, profile in zip(self._given, profiles, strict=True):
            estimate = estimate_operation(run.bound, profile.counters, self._built.kernels, symbols, gpu)
            found = executor_kernels(run.bound, profile.counters, self._built.kernels, symbols, gpu)
            operations.append((estimate.time_us, found))
        return _Timed("executor", gpu.name, gpu, operations)

    def _of_pages(self, pages: Sequence[NcuPages]) -> _Timed:
        """Return the launches that Nsight Compute measured, without those that only prepare a backward."""
        assert self._gpu is not None
        name = pages[0].launches[0].gpu
        gpu = known_gpu(name) or self._session.gpu
        operations = [
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
        return _Timed("measured", f"{_label(name)} {self._gpu.place}".rstrip(), gpu, operations)

    async def _with_events(
        self, on: _ProfiledGpu, device: GpuDevice, counted: _Timed, inputs: Sequence[CaseFiles]
    ) -> tuple[ToolRun, _Timed]:
        """Replace the estimated times by those of events on the GPU, where these can be taken."""
        self._tell(f"events time each launch {on.place}".rstrip())
        started, operations = time.monotonic(), list[tuple[float, tuple[KernelProfile, ...]]]()
        async with device.prepare(self._build) as kernel:
            if not isinstance(kernel, GpuKernel):
                return ToolRun(tool=EVENTS, status="failed", reason=kernel.message), counted
            for run, files, (_, kernels) in zip(self._given, inputs, counted.operations, strict=True):
                launches_us = await kernel.time_launches(DeviceCase(run.case, run.bound, files, ()))
                if not isinstance(launches_us, list):
                    return ToolRun(tool=EVENTS, status="failed", reason=launches_us.message), counted
                timed = with_times(kernels, launches_us[run.bound.n_launches_before :])
                operations.append((sum(launches_us[run.bound.n_launches_before :]), timed))
        name = device.facts.name
        ran = ToolRun(tool=EVENTS, status="ran", version=device.facts.driver, elapsed_s=time.monotonic() - started)
        return ran, _Timed("events", f"{_label(name)} {on.place}".rstrip(), counted.gpu, operations)

    def _tell_of(self, tool: Tool, what: str) -> None:
        if tool.path is not None:
            self._tell(what)

    async def _tidy(self, tool: Tool) -> tuple[ToolRun, tuple[Finding, ...]]:
        self._tell_of(tool, "clang-tidy reads its text")
        return await run_tidy(tool, self._copy, self._session.include_directories, self._session.sandbox)

    async def _ncu(self, gpu: _ProfiledGpu, tool: Tool, run: ReadyRun, files: CaseFiles) -> NcuPages:
        folder = self._session.new_folder(f"{NCU_FOLDER}-{run.bound.name}")
        program = launch_program(run, files, gpu.index, folder)
        self._tell_of(tool, f"Nsight Compute runs each kernel of {run.bound.name} some {N_PASSES} times")
        turn = nullcontext if gpu.device is None else gpu.device.turn
        return await run_ncu(tool, program, folder, gpu.tools, turn)

    async def _sanitize(self, gpu: _ProfiledGpu, tool: Tool) -> tuple[list[ToolRun], list[Finding]]:
        """Run the sanitizers at small sizes, where edges are: the tools are ten to a hundred times slower."""
        runs: list[ToolRun] = []
        findings: list[Finding] = []
        for run in self._small or self._given:
            files = await self._runs.inputs_of(run)
            if isinstance(files, NoCase):
                runs.append(ToolRun(tool=tool.name, status="failed", reason=files.reason))
                continue
            folder = self._session.new_folder(f"sanitizer-{run.bound.name}")
            program = launch_program(run, files, gpu.index, folder)
            self._tell_of(tool, f"compute-sanitizer runs {run.bound.name} at small sizes")
            ran, found = await run_sanitizers(tool, program, folder, gpu.tools)
            runs += ran
            findings += found
        return list({run.tool: run for run in runs}.values()), findings

    async def _trace(self, gpu: _ProfiledGpu, files: CaseFiles) -> tuple[ToolRun, tuple[EagerKernel, ...]]:
        """Trace PyTorch's own launches of the forward."""
        self._tell("the torch profiler looks at what PyTorch launches")
        request = {
            "device": gpu.index,
            "inputs": [tensor.entry for tensor in files.inputs],
            "reference": reference_request(self._task, "forward"),
        }
        try:
            reply = await gpu.worker.ask("profile_trace", request, deadline_s=TRACE_DEADLINE_S)
        except (TargetError, EnvironmentProblem) as error:
            return ToolRun(tool=TRACER, status="failed", reason=error.message), ()
        kernels = tuple(EagerKernel(**kernel) for kernel in reply["kernels"])
        return ToolRun(tool=TRACER, status="ran", version=self._task.torch_version), kernels

    async def _report(
        self, timed: _Timed, tools: Sequence[ToolRun], findings: Sequence[Finding], eager: tuple[EagerKernel, ...]
    ) -> ProfileReport:
        """Combine forward and backward; a kernel's share becomes that of both. The linter runs here."""
        (linter,) = await find_tools((LINTER,))
        tidied, lint = await self._tidy(linter)
        operations, gpu = timed.operations, timed.gpu
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
            kind=timed.kind,
            file=self._file,
            device=timed.device,
            date=datetime.date.today().isoformat(),
            shapes=shapes,
            time_us=total_us,
            floor_us=floor_us,
            floor_basis=added_bases([floor.basis for floor in floors]),
            kernels=kernels,
            advice=advise(kernels, total_us, floor_us),
            findings=tuple(self._on_file(finding) for finding in (*findings, *lint)),
            eager=eager,
            tools=(*tools, tidied),
            notes=self._notes(),
        )

    def _notes(self) -> tuple[str, ...]:
        steps = [step for run in self._given for step in run.bound.steps if step.kind == "library"]
        return (f"{len(steps)} library steps are not part of the profile",) if steps else ()

    def _on_file(self, finding: Finding) -> Finding:
        """Restore the user's name of the file, of which the tools saw a copy."""
        return finding.model_copy(update={"file": self._file}) if finding.file == self._copy.name else finding


def _label(name: str) -> str:
    """Return the short name of a GPU that we know, else the one that its driver gives."""
    gpu = known_gpu(name)
    return name if gpu is None else gpu.name
