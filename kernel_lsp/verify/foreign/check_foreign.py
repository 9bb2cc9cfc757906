"""Check a kernel with host code against its task, and time it. It runs in a process of its own, and is judged from
copies."""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.task import TargetSource, Task, TaskTensor
from kernel_lsp.core.verdict import (
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
from kernel_lsp.core.words import counted
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.source.extension import ForeignSource, python_findings
from kernel_lsp.toolchain.extension.facts import ExtensionBuilt
from kernel_lsp.verify.foreign.foreign_cases import (
    OVERRUN,
    ForeignCase,
    Judge,
    chosen_cases,
    describe_tolerance,
    make_case,
    run_case,
    shuffled,
)
from kernel_lsp.verify.foreign.process import (
    BuildFailure,
    ForeignAsker,
    ForeignBuilds,
    ForeignProcess,
    accepted_build,
    refused,
)
from kernel_lsp.verify.gpu.gpu_device import GpuDevice
from kernel_lsp.verify.gpu.slot import Lost
from kernel_lsp.verify.model.cases import OperationKind, Progress, graph_of
from kernel_lsp.verify.oracle.case_store import CaseStore
from kernel_lsp.verify.oracle.judgement import lost_nans
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.session.start import SessionStart
from kernel_lsp.verify.timing.operation import OperationTimer
from kernel_lsp.verify.timing.result import NotTimed, Timed, TimingFailure, verdict_of

CPU_NAME = "CPU (PyTorch)"
OPEN_DEADLINE_S = WRITE_DEADLINE_S = 120.0
MAX_INLINE_BUILDS = 8
"""Maximum extensions that one Python file may build."""
NO_GPU = (
    "its host code launches CUDA kernels, and there is no GPU here to run them on: the PTX executor runs kernels with "
    "a launch plan alone"
)
RAISED = re.compile(r"\w+Error: ")
"""Pattern of an error that the kernel's host code or a launch raises."""
CUDA_ERROR = re.compile(r"\w+Error: CUDA error")
"""Pattern of an error of its launches, such as a misaligned address, after which the process has no GPU any more."""
UNSEEN_CALLS = re.compile(r"\btriton\b|\btorch\.ops\b")
NO_KERNEL = "no kernel of its own: PyTorch computed everything that it returned"
HIDING_NOTHING = (SandboxLevel.NONE, SandboxLevel.LIMITS)
NOT_HIDDEN = (
    "nothing hid the expected values and this process's memory from it: the verdict holds for an honest kernel only "
    "(`kernel-lsp doctor` says what the sandbox lacks)"
)


async def check_foreign(
    file: Path,
    text: str,
    source: ForeignSource,
    target: TargetSource,
    settings: Settings,
    start: SessionStart | None,
) -> Verdict:
    """Reach the full verdict. Raises TargetError without a task, EnvironmentProblem without a compiler."""
    candidate = Candidate(text=text, origin=Origin(proposer="user", description=str(file)))
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(Session(settings, start))
        check = _Check(session, stack, file, text, source, target, Progress(candidate.id))
        return await check.verdict()


@dataclass
class _Check:
    """The check of one file. Everything that it starts ends with the stack."""

    session: Session
    stack: AsyncExitStack
    file: Path
    text: str
    source: ForeignSource
    target: TargetSource
    progress: Progress
    device: GpuDevice | None = None
    builds: dict[str, str] = field(default_factory=dict)
    cases: Sequence[ForeignCase] = ()
    defined: str = ""
    """Next step for an extension that has functions, but none of the task's."""
    judge: Judge = field(init=False)
    timer: OperationTimer | None = None
    """Times the kernel where there is a GPU."""
    _n_own_calls: int = 0
    """Calls of kernels of its own, as of the last stage after which the process had a GPU."""
    _has_lost_gpu: bool = False
    """True after a launch failed with an error of CUDA at sizes that the task does not name."""

    def __post_init__(self) -> None:
        self.judge = Judge(CPU_NAME, self.session.settings.tolerance)

    async def verdict(self) -> Verdict:
        outcome = await self._outcome()
        level = self.session.sandbox
        said = f"foreign ({self.source.kind}): its host code runs, in a process of its own (sandbox: {level.value})"
        exposed = (NOT_HIDDEN,) if level in HIDING_NOTHING else ()
        return Verdict(
            candidate_id=self.progress.candidate_id,
            device=self.judge.device_name,
            outcome=outcome,
            findings=(*self.progress.findings, *lost_nans(self.progress.cases)),
            foreign=self.source.kind,
            tolerance=self.judge.names[0],
            by_tolerance=self.judge.described(outcome),
            times=self.progress.times,
            notes=(f"tolerance: {describe_tolerance(self.judge.names[0])}", said, *exposed, *self.progress.notes),
            evaluate_s=sum(self.progress.stages_s.values()),
            stages_s=self.progress.stages_s,
        )

    async def _outcome(self) -> CheckOutcome:
        if self.source.kind == "ModelNew" and (failure := refused(python_findings(self.text))) is not None:
            return failure
        if self.session.is_remote:
            return Unsupported(message="its host code runs on this machine alone: use --device cpu or cuda")
        index = await self.session.gpu_index()
        if index is None and self.source.needs_cuda:
            return Unsupported(message=NO_GPU)
        process = await self.stack.enter_async_context(self._process())
        builds = ForeignBuilds(self.session, self.stack)
        # Most often the GPU has the target's architecture. It opens later than a compiler can begin.
        building = self._begin(builds, "" if index is None else self.session.gpu.architecture.name)
        capturing = asyncio.create_task(self.session.capture(self.target, with_backward=self.source.has_backward))
        warming = asyncio.create_task(process.start_pools("cpu" if index is None else index))
        under_way: list[asyncio.Future[Any]] = [capturing, warming]
        try:
            with self.progress.stage("gpu worker"):
                self.device = await self.session.gpu_device()
            if self.device is None and self.source.needs_cuda:
                return Unsupported(message=NO_GPU)
            if self.device is not None:
                self.judge.device_name = self.device.facts.name
            elif index is not None:
                warming = asyncio.create_task(process.start_pools("cpu"))
                under_way.append(warming)
            if index is not None and self._architecture != self.session.gpu.architecture.name:
                building = self._begin(builds, self._architecture)
            with self.progress.stage("capture"):
                task = await capturing
            self.timer = await self.session.timer(task, self.device) if self.device is not None else None
            cases = asyncio.create_task(self._cases(task, under_way))
            under_way.append(cases)
            with self.progress.stage("build"):
                built = None if building is None else accepted_build(await building, self.progress)
            if built is not None and not isinstance(built, ExtensionBuilt):
                return built
            with self.progress.stage("references"):
                made = await cases
            with self.progress.stage("process"):
                await warming
            return await self._run(process, builds, task, built, made)
        finally:
            await end_tasks(*under_way)
            await builds.close()

    @property
    def _architecture(self) -> str:
        """Return the architecture of the GPU that the kernel runs on; empty without one."""
        return "" if self.device is None else self.device.facts.architecture

    def _begin(self, builds: ForeignBuilds, architecture: str) -> asyncio.Task[ExtensionBuilt | BuildFailure] | None:
        """Begin the build. None for a Python file, which requests its own builds."""
        return None if self.file.suffix == ".py" else builds.begin(self.text, self.file.suffix, architecture)

    def _process(self) -> ForeignProcess:
        cache = self.session.settings.cache_directory / "extensions"
        cache.mkdir(parents=True, exist_ok=True)
        return ForeignProcess(
            self.session.worker.python,
            level=self.session.sandbox,
            scratch=self._folder,
            readable=(cache, self.file.absolute().parent, Path(self.target.file).absolute().parent),
            may_start_programs="triton" in self.text,
        )

    @property
    def _folder(self) -> Path:
        return self.session.scratch / "foreign"

    def _new_folder(self, name: str) -> Path:
        """Return a folder that the process may write outputs to."""
        folder = self._folder / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    async def _cases(self, task: Task, under_way: list[asyncio.Future[Any]]) -> list[ForeignCase]:
        """Make the cases of the kernel. PyTorch's baselines are prepared meanwhile."""
        store = CaseStore(task, self.session.worker, self.session.new_folder("references"), self.device)
        directions: tuple[OperationKind, ...] = ("forward", "backward") if task.backward is not None else ("forward",)
        chosen = [pair for direction in directions for pair in chosen_cases(task, direction)]
        made = []
        try:
            for case, _ in chosen:
                store.begin(case)
            for number, (case, is_hidden) in enumerate(chosen):
                found = await make_case(store, task, case, self._folder / f"case-{number}", is_hidden=is_hidden)
                if not isinstance(found, ForeignCase):
                    continue
                made.append(found)
                if self.timer is not None and found.is_timed:
                    under_way.append(asyncio.create_task(self.timer.offer(found.timed(self.progress.candidate_id))))
        finally:
            await store.close()
        return made

    async def _run(
        self,
        process: ForeignProcess,
        builds: ForeignBuilds,
        task: Task,
        built: ExtensionBuilt | None,
        cases: Sequence[ForeignCase],
    ) -> CheckOutcome:
        with self.progress.stage("load"):
            functions = await self._open(process, builds, task, built)
        if not isinstance(functions, tuple):
            return functions
        runnable = [case for case in cases if case.case.operation in functions]
        if not runnable:
            return Unsupported(message=f"no function for the task: {self.defined or 'it has nothing'}")
        for missing in sorted({case.case.operation for case in cases} - set(functions)):
            self.progress.notes.append(f"{missing}: it has no function of this name, so that PyTorch does it")
        self.cases = shuffled(runnable, self.session.settings.seed)
        async with self.device.turn() if self.device is not None else nullcontext():
            return await self._checked(process)

    async def _open(
        self, process: ForeignProcess, builds: ForeignBuilds, task: Task, built: ExtensionBuilt | None
    ) -> tuple[str, ...] | CheckOutcome:
        request = self._open_request(task, built)
        for _ in range(MAX_INLINE_BUILDS):
            opened = await process.ask("open_foreign", {**request, "builds": self.builds}, deadline_s=OPEN_DEADLINE_S)
            if isinstance(opened, Lost):
                return Crashed(message=f"while it was loaded: {opened.message}")
            if opened["status"] == "opened":
                if defined := ", ".join(opened["defined"]):
                    self.defined = f"bind one of {defined} as `forward`"
                return tuple(opened["functions"])
            if opened["status"] == "refused":
                return Crashed(message=str(opened["message"]))
            building = builds.begin(str(opened["text"]), str(opened["suffix"]), self._architecture)
            inner = accepted_build(await building, self.progress)
            if not isinstance(inner, ExtensionBuilt):
                return inner
            self.builds[str(opened["key"])] = str(inner.path)
        return Unsupported(message=f"it builds more than {MAX_INLINE_BUILDS} extensions")

    def _open_request(self, task: Task, built: ExtensionBuilt | None) -> dict[str, Any]:
        arguments: list[dict[str, Any]] = []
        for a in task.arguments:
            if isinstance(a, TaskTensor):
                arguments.append({"name": a.name, "role": a.role, "qualified_name": a.qualified_name})
            else:
                arguments.append({"name": a.name, "value": a.value})
        backward = graph_of(task, "backward") if task.backward is not None else None
        names = {argument["name"] for argument in arguments}
        gradients = [name for name in backward.inputs if name not in names] if backward else []
        outputs = [o.name.removeprefix("grad_") for o in backward.outputs if o.node] if backward else []
        return {
            "kind": "extension" if built is not None else "model_new",
            "device": "cpu" if self.device is None else self.device.index,
            "arguments": arguments,
            "gradients": gradients,
            "wanted": outputs,
            "source": self.target.model_dump(mode="json"),
            "library": str(built.path) if built is not None else "",
            "module_name": built.module_name if built is not None else "",
            "file": str(self.file.absolute()),
        }

    async def _checked(self, process: ForeignProcess) -> CheckOutcome:
        """Check the named sizes, then time, then check sizes that the task does not name: those may end the process."""
        steps = {
            "cases": lambda: self._run_cases(process, [case for case in self.cases if not case.is_hidden]),
            "time": lambda: self._time(process),
            "hidden sizes": lambda: self._run_cases(process, [case for case in self.cases if case.is_hidden]),
        }
        for stage, step in steps.items():
            with self.progress.stage(stage):
                failure: CheckOutcome | None = await step()
            with self.progress.stage("threads"):
                failure = failure or await _kept_threads(process, stage)
            failure = failure or (None if self._has_lost_gpu else await self._changed_later(process, stage))
            if failure is not None:
                return failure
            if self._has_lost_gpu:
                break
        if self.source.kind == "ModelNew" and not self._n_own_calls:
            self._say_if_without_kernel()
        if self.timer is None:
            self.progress.notes.append("not timed: there is no GPU here")
        return Correct(cases=tuple(self.progress.cases))

    async def _changed_later(self, process: ForeignProcess, stage: str) -> Crashed | None:
        """Compare the outputs that the process holds with their copies. A process that cannot answer has crashed."""
        looked = await process.ask("look_again", {}, deadline_s=OPEN_DEADLINE_S)
        if isinstance(looked, Lost):
            return Crashed(message=f"after its {stage}: {looked.message}")
        if looked.get("changed"):
            return Crashed(message=f"outputs that it had returned changed later: {', '.join(looked['changed'])}")
        self._n_own_calls = int(looked.get("n_own_calls", 0))
        return None

    def _say_if_without_kernel(self) -> None:
        """Note that no kernel was seen, unless the text may call one unseen: Triton's kernels, and operators registered
        with PyTorch."""
        if not UNSEEN_CALLS.search(self.text):
            self.progress.notes.append(NO_KERNEL)
            finding = Finding(code="no-own-kernel", severity=Severity.WARNING, message=NO_KERNEL, source="integrity")
            self.progress.add_findings([finding])

    async def _time(self, process: ForeignProcess) -> CheckOutcome | None:
        """Time the kernel on the task's own inputs, in each direction; None when nothing failed."""
        if self.timer is None:
            return None
        for case in (case for case in self.cases if case.is_timed):
            asker = ForeignAsker(process, case.case.operation, case.inputs)
            operation = case.timed(self.progress.candidate_id)
            with self.progress.stage("eager, made ready"):
                await self.timer.offer(operation)
            match await self.timer.time_operation(asker, operation):
                case Timed(comparison):
                    wrong = await self._wrong_while_timed(process, asker, case)
                    if wrong is not None:
                        return wrong
                    self.progress.times[case.bound.name] = comparison
                case NotTimed(reason):
                    self.progress.notes.append(f"{case.bound.name}: not timed: {reason}")
                case TimingFailure() as failure:
                    return verdict_of(failure, case.bound.name, self.judge.device_name)
        return None

    async def _wrong_while_timed(
        self, process: ForeignProcess, asker: ForeignAsker, case: ForeignCase
    ) -> Mismatch | Crashed | None:
        """Judge the outputs of a random timed call, which is drawn here after it was made."""
        paths = case.output_paths(self._new_folder("timed"))
        request = {
            "subject": asker.subjects[0],
            "outputs": {name: str(path) for name, path in paths.items()},
            "place": secrets.randbelow(1 << 16),
        }
        written = await process.ask("write_timed", request, deadline_s=WRITE_DEADLINE_S)
        if isinstance(written, Lost):
            return Crashed(message=f"after it was timed: {written.message}")
        judged = self.judge.judge(case, paths)
        return judged if isinstance(judged, Mismatch) else None

    async def _run_cases(
        self, process: ForeignProcess, cases: Sequence[ForeignCase]
    ) -> Mismatch | Crashed | TimedOut | None:
        failures: list[tuple[ForeignCase, str]] = []
        for case in cases:
            folder = self._new_folder("outputs")
            found = await run_case(process, case, folder, self.judge)
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(found, CaseResult):
                self.progress.cases.append(found)
            elif not case.is_hidden:
                if not isinstance(found, Mismatch) or self.judge.is_decided:
                    return found
            elif _is_not_general(found):
                failures.append((case, found.message))
                self._has_lost_gpu = CUDA_ERROR.match(found.message) is not None
                if self._has_lost_gpu:
                    break
            else:
                return found.model_copy(update={"message": f"at sizes that the task does not name: {found.message}"})
        if failures:
            self._warn_not_general(failures)
        return self.judge.failure

    def _warn_not_general(self, failures: Sequence[tuple[ForeignCase, str]]) -> None:
        """Add the warning with the contract to state: the task needs its own sizes only."""
        first, message = failures[0]
        of_direction = [case for case in self.cases if case.case.operation == first.case.operation]
        named = [dict(case.case.sizes) for case in of_direction if not case.is_hidden]
        self.progress.add_findings([not_general(named, [dict(case.case.sizes) for case, _ in failures], message)])


def _is_not_general(failure: Mismatch | Crashed | TimedOut) -> bool:
    """Check whether a kernel may fail like this at sizes that its task does not name: wrong values or shapes, an access
    out of bounds, or an error that its host code or a launch raises. Changed inputs, late writes, hangs and a process
    that ended stay failures."""
    if not isinstance(failure, Crashed):
        return isinstance(failure, Mismatch)
    return failure.message.startswith(OVERRUN) or RAISED.match(failure.message) is not None


async def _kept_threads(process: ForeignProcess, stage: str) -> Rejected | None:
    """Reject a kernel whose threads stay after a call: they could go on working after it returned."""
    n_kept = await process.n_kept_threads()
    if not n_kept:
        return None
    message = f"after its {stage} it keeps {counted(n_kept, 'thread')} of its own running"
    finding = Finding(code="threads-kept", severity=Severity.ERROR, message=message, source="integrity")
    return Rejected(message=message, findings=(finding,))


NOT_GENERAL = "not-general"
"""Code of the finding that a kernel is correct at the task's sizes and fails at others."""
MODULI = (4, 8, 16, 32, 2)
"""In the order in which they are tried: most kernels that need a multiple read vectors of four."""
Sizes = Mapping[str, int]


def contract_of(named: Sequence[Sizes], failed: Sequence[Sizes]) -> str:
    """Return a condition that all sizes of the task satisfy and none of the failed ones: ``D % 4 == 0``."""
    dims = [dim for dim in named[0] if any(sizes.get(dim) != named[0][dim] for sizes in failed)] if named else []
    for dim in reversed(dims):  # rows of a matrix seldom matter, its width does
        for modulus in MODULI:
            is_kept = all(sizes[dim] % modulus == 0 for sizes in named)
            if is_kept and all(sizes.get(dim, 0) % modulus for sizes in failed):
                return f"{dim} % {modulus} == 0"
    fixed = (f"{dim} == {named[0][dim]}" for dim in dims if len({sizes[dim] for sizes in named}) == 1)
    return " && ".join(fixed)


def not_general(named: Sequence[Sizes], failed: Sequence[Sizes], message: str) -> Finding:
    """Return the warning for a kernel that is correct at every size of its task and fails at another."""
    sizes = ", ".join(f"{dim}={size}" for dim, size in failed[0].items())
    contract = contract_of(named, failed)
    stated = f"; its contract should state `where: {contract}`" if contract else ""
    return Finding(
        code=NOT_GENERAL,
        severity=Severity.WARNING,
        source="verdict",
        message=f"correct for the task, not general: fails at {sizes}{stated} ({message})",
    )
