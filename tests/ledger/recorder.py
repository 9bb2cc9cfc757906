"""Record what the pipeline asks devices to run, and run none of it: the only ledger file that knows the pipeline.

Kernels go through `Verifier.verify`. The devices below report every run as correct, so that the pipeline asks for all
that it asks of a correct kernel. Facts that only a run finds take the value that leads to more runs: shared memory is
read before it is written, and threads may wait.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import TargetSource, Task, TaskScalar
from kernel_lsp.core.verdict import BuildFailed, Built, CaseResult, CheckOutcome, Verdict
from kernel_lsp.errors import KernelLspError, TargetError
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.plan.parser import parse
from kernel_lsp.process.interpreter import site_packages
from kernel_lsp.ptx.executor import KernelFactsOfPtx
from kernel_lsp.toolchain.integrity.ptx_text import program_hash
from kernel_lsp.toolchain.nvrtc.build_cache import BuildCache
from kernel_lsp.toolchain.nvrtc.compile import Compiler
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain
from kernel_lsp.verify.cpu.cpu_device import CpuDevice, CpuKernel, Limits, LoadedKernel
from kernel_lsp.verify.devices.device import CaseRun, KernelBuild, Skipped
from kernel_lsp.verify.gpu.checks import MeasuringGpu, Untimed
from kernel_lsp.verify.model.cases import Case, Plan
from kernel_lsp.verify.model.environment import UNWRITTEN, USUAL, Circumstances
from kernel_lsp.verify.session.check_kernel import find_task
from kernel_lsp.verify.session.pipeline import Platform
from kernel_lsp.verify.session.session import FIRST_CAPTURE_NUMBER
from kernel_lsp.verify.session.start import SessionStart
from kernel_lsp.verify.session.verifier import Verifier
from tests.corpora import COMPILE_DEADLINE_S, Kernel, task_of
from tests.ledger.entry import Entry, Run, digest, entry_of

PIPELINE = "kernel_lsp.verify.session.pipeline"
EVALUATION = "kernel_lsp.verify.session.evaluation"
N_TASKS_AT_ONCE = 3
"""The worker captures one task while cases of another are chosen."""
MAX_VALUES_SHOWN = 8
_FIXED_BITS = 0x1ED6E2
"""In place of random ones: sizes that no kernel can know are the same every time."""
SEED_OFFSETS = (0, 1)
_TIMED_OUT, _ON_GPU = "timed_out", "gpu"


@dataclass(frozen=True)
class _Record:
    """The runs that were asked for one kernel of `task`, in order."""

    task: Task
    runs: list[Run] = field(default_factory=list)


_RECORD: ContextVar[_Record] = ContextVar("record")


async def recorded(kernels: Sequence[Kernel], settings: Settings | None = None) -> AsyncIterator[list[Entry]]:
    """The entries of the kernels, one task's at a time and in no order."""
    settings = settings or Settings(device="cpu", compile_deadline_s=COMPILE_DEADLINE_S)
    turns = asyncio.Semaphore(N_TASKS_AT_ONCE)
    async with AsyncExitStack() as stack:
        stack.enter_context(_recording_devices())
        bench = await _bench(stack, settings)

        async def in_turn(group: list[Kernel]) -> list[Entry]:
            async with turns:
                return await _entries(bench, group)

        groups = [list(group) for _, group in groupby(sorted(kernels, key=task_of), key=task_of)]
        for finished in asyncio.as_completed([asyncio.create_task(in_turn(group)) for group in groups]):
            yield await finished


# --- below: one task


@dataclass(frozen=True)
class _Bench:
    """Hold the worker, compiler and executors that verifiers of a task share."""

    start: SessionStart
    compiler: Compiler
    captures: _Captures
    capture_numbers: Iterator[int]

    def verifier(self, source: TargetSource, task: Task, *, has_gpu: bool = False, seed_offset: int = 0) -> Verifier:
        settings = self.start.settings
        platform = Platform(
            worker=self.captures,  # type: ignore[arg-type]
            compiler=self.compiler,
            gpu=find_gpu(settings.target_gpu),
            directory=self.start.scratch,
            cpu=_Cpu(),
            seed=settings.seed + seed_offset,
            capture_numbers=self.capture_numbers,
        )
        gpus = [MeasuringGpu(_GPU, Untimed())] if has_gpu else []  # type: ignore[arg-type]
        return Verifier(source, task, platform, gpus)


class _Captures:
    """Captures each target once for the verifiers of all devices, one after the other. Stands in for a `Worker`.

    A target that kills the worker gets the error; the next target gets a new worker."""

    def __init__(self, start: SessionStart, stack: AsyncExitStack) -> None:
        self._start, self._stack, self._worker = start, stack, start.worker
        self._known: dict[str, Task | TargetError] = {}
        self._capturing = asyncio.Lock()

    async def capture(self, source: TargetSource, *, with_backward: bool, configuration: int = 0) -> Task:
        """Return the task. Raises TargetError."""
        index = configuration if configuration < FIRST_CAPTURE_NUMBER else 0  # Numbers from there on say nothing.
        key = f"{source.model_dump_json()} {with_backward} {index}"
        async with self._capturing:
            if key not in self._known:
                self._known[key] = await self._captured(source, with_backward, configuration)
        found = self._known[key]
        if isinstance(found, TargetError):
            raise found
        return found

    async def _captured(self, source: TargetSource, with_backward: bool, configuration: int) -> Task | TargetError:
        if not self._worker.is_alive:
            self._worker = await self._stack.enter_async_context(self._start.new_worker(self._worker.python))
        try:
            return await self._worker.capture(source, with_backward=with_backward, configuration=configuration)
        except TargetError as error:
            return error


async def _bench(stack: AsyncExitStack, settings: Settings) -> _Bench:
    start = await stack.enter_async_context(SessionStart(settings))
    start.check()
    toolchain = find_toolchain(settings.cuda_directory, user_site_packages=site_packages(start.worker.python))
    compiler = Compiler(
        toolchain,
        cache=BuildCache(settings.cache_directory),
        deadline_s=settings.compile_deadline_s,
        sandbox=start.sandbox,
    )
    await stack.enter_async_context(compiler)
    return _Bench(start, compiler, _Captures(start, stack), itertools.count(FIRST_CAPTURE_NUMBER))


async def _entries(bench: _Bench, kernels: Sequence[Kernel]) -> list[Entry]:
    if not kernels[0].task_line:
        return [_entry(kernel, BuildFailed(findings=parse(kernel.text).findings), [], []) for kernel in kernels]
    try:
        return await _entries_of_task(bench, kernels)
    except Exception as error:  # The other tasks are still to be recorded.
        return [_raised(kernel, error) for kernel in kernels]


async def _entries_of_task(bench: _Bench, kernels: Sequence[Kernel]) -> list[Entry]:
    first = kernels[0]
    source = find_task(first.file, first.task_line, None, first.file.parent)
    task = await bench.captures.capture(source, with_backward=first.has_backward)
    on_cpu = bench.verifier(source, task)
    on_gpu = [bench.verifier(source, task, has_gpu=True, seed_offset=offset) for offset in SEED_OFFSETS]
    async with AsyncExitStack() as stack:
        for verifier in (on_cpu, *on_gpu):
            await stack.enter_async_context(verifier)
        return [await _on_both(kernel, task, on_cpu, on_gpu) for kernel in kernels]


async def _on_both(kernel: Kernel, task: Task, on_cpu: Verifier, on_gpu: Sequence[Verifier]) -> Entry:
    try:
        return await _asked_on_both(kernel, task, on_cpu, on_gpu)
    except Exception as error:  # The other kernels are still to be recorded.
        return _raised(kernel, error)


async def _asked_on_both(kernel: Kernel, task: Task, on_cpu: Verifier, on_gpu: Sequence[Verifier]) -> Entry:
    """Record the executor and a GPU. Sizes for a GPU that are others with another seed count as drawn."""
    verdict, runs = await _asked(kernel, task, on_cpu)
    if verdict.outcome.kind == _TIMED_OUT:  # a compile takes as long again on the GPU's behalf
        return _entry(kernel, verdict.outcome, runs, [])
    first, second = [(await _asked(kernel, task, verifier))[1] for verifier in on_gpu]
    on_device = [run for run in first if run.part.startswith(_ON_GPU)]
    known = {(f"{_ON_GPU} {run.part}", run.sizes, run.inputs) for run in runs}
    others = {(run.part, run.inputs) for run in {*first} - {*second}}
    drawn = [
        replace(run, sizes="drawn")
        if (run.part, run.inputs) in others and (run.part, run.sizes, run.inputs) not in known
        else run
        for run in on_device
    ]
    return _entry(kernel, verdict.outcome, runs, drawn)


async def _asked(kernel: Kernel, task: Task, verifier: Verifier) -> tuple[Verdict, list[Run]]:
    candidate = Candidate(text=kernel.text, origin=Origin(proposer="user", description=kernel.file.name))
    record = _Record(task)
    token = _RECORD.set(record)
    try:
        return await verifier.verify(candidate, "full"), record.runs
    finally:
        _RECORD.reset(token)


def _entry(kernel: Kernel, outcome: CheckOutcome, runs: Sequence[Run], on_gpu: Sequence[Run]) -> Entry:
    codes = dict.fromkeys(finding.code for finding in getattr(outcome, "findings", ()))
    said = " ".join([outcome.kind, *sorted(codes)])
    return entry_of(kernel.file.name, kernel.task_line, said, runs, on_gpu)


def _raised(kernel: Kernel, error: Exception) -> Entry:
    """Return the entry of a kernel without a verdict."""
    message = error.message if isinstance(error, KernelLspError) else str(error)
    said = f"raised {type(error).__name__}: {message.partition(chr(10))[0]}"
    return entry_of(kernel.file.name, kernel.task_line, said, [], [])


def _scalars_of(task: Task) -> str:
    scalars = [argument for argument in task.arguments if isinstance(argument, TaskScalar)]
    return " ".join(f"{scalar.name}={scalar.value:.6g}" for scalar in scalars)


# --- below: devices that run nothing


_GPU = SimpleNamespace(name="GPU", facts=SimpleNamespace(name="GPU", architecture="sm_90"), is_local=True)
_FACTS = (KernelFactsOfPtx("", 1, uses_global_atomics=False, may_wait=True, static_shared_bytes=0),)
_READ_UNWRITTEN = Finding(code=UNWRITTEN, severity=Severity.WARNING, message="", source="executor", line=1)


@dataclass(frozen=True)
class _Store:
    """A store of cases that makes none. Takes the arguments of a `CaseStore`."""

    task: Task
    worker: object
    directory: Path
    gpu: object
    may_sample: bool = False

    async def make_without_turn(self, _: Case) -> None:
        """Do nothing: nobody needs the files of a case."""

    async def idle(self) -> None:
        """Wait for ever: mutations are captured where they are needed, and for correct kernels alone."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Do nothing."""


class _Pool:
    """Executors that load anything."""

    def start(self) -> None:
        """Do nothing: the executors are there."""

    async def close(self) -> None:
        """Do nothing."""

    @contextmanager
    def loading_ahead(self, module: object, n_executors: int) -> Iterator[None]:
        yield


class _Cpu(CpuDevice):
    """A PTX executor that loads anything."""

    def __init__(self) -> None:
        self.executors = _Pool()  # type: ignore[assignment]  # it starts nothing

    @asynccontextmanager
    async def prepare(self, build: KernelBuild) -> AsyncIterator[CpuKernel]:
        """Yield a kernel that runs nothing."""
        yield _Code(build.built)


class _Code(CpuKernel):
    """A kernel on an executor that runs nothing."""

    is_alive = True
    no_answer = None
    used_s = 0.0
    task: Task

    def __init__(self, built: Built) -> None:
        self.built, self.facts = built, _FACTS

    async def written_bytes(self, bound: BoundOperation, *_: object) -> Mapping[str, int]:
        """Report all of every output, as often as it is asked."""
        sizes = tuple(bound.dims.items())
        _note(f"{bound.name} written", self.task, self.built, sizes, "zeros", is_once=True)
        return {tensor.name: tensor.n_bytes for tensor in bound.outputs}

    async def ends(self, *_: object) -> bool:
        """Report that all launches end."""
        return True


class _Kernel(LoadedKernel):
    """A kernel whose runs are all correct."""

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        assert isinstance(self.code, _Code)
        self.code.task = self._task

    @property
    def _task(self) -> Task:
        assert isinstance(self.store, _Store)
        return self.store.task

    async def run(
        self,
        case: Case,
        bound: BoundOperation,
        limits: Limits,
        sample: object = None,
        circumstances: Circumstances = USUAL,
    ) -> CaseRun:
        """Report findings that ask for runs over other shared memory."""
        far = " far" if limits.complete_instructions == 0 else ""
        inputs = _inputs(case) + _environment(circumstances)
        _note(f"{case.operation}{far}", self._task, self.built, case.sizes, inputs, case.is_captured)
        result = CaseResult(operation=bound.name, family=case.family, shapes={}, n_blocks=1, n_blocks_run=1, errors=())
        return CaseRun(result, (_READ_UNWRITTEN,), 1)

    async def profile(self, *_: object) -> Skipped:
        """Report none, which samples no case and finds none too large."""
        return Skipped("nothing runs")


@dataclass(frozen=True)
class _Gpu:
    """A GPU whose runs are all correct. Takes the arguments of a `GpuChecks`."""

    store: _Store
    measured_on: Sequence[MeasuringGpu]
    seed: int

    def prefetch(self, plans: Sequence[Plan]) -> None:
        """Do nothing: nobody needs the files of a case."""

    async def check(
        self, built: Built, plans: Sequence[Plan], progress: object, *, beside: object, is_ranking: bool
    ) -> CheckOutcome | None:
        """Report no failure."""
        for case, _bound in (entry for plan in plans for entry in plan):
            part = f"{_ON_GPU} {case.operation}"
            _note(part, self.store.task, built, case.sizes, _inputs(case), case.is_captured)
        return None

    async def close(self) -> None:
        """Do nothing: no baseline is prepared."""


@contextmanager
def _recording_devices() -> Iterator[None]:
    """Replace the classes by which the pipeline reaches files of cases and devices."""
    with (
        patch.object(secrets, "randbits", lambda _: _FIXED_BITS),
        patch.multiple(PIPELINE, CaseStore=_Store, GpuChecks=_Gpu),
        patch.multiple(EVALUATION, LoadedKernel=_Kernel),
    ):
        yield


# --- below: words


def _note(
    part: str,
    task: Task,
    built: Built,
    sizes: tuple[tuple[str, int], ...],
    inputs: str,
    is_captured: bool = False,
    *,
    is_once: bool = False,
) -> None:
    """Note a run of `task`: the kernel's own, or that with mutated scalars, which the part names then."""
    record = _RECORD.get()
    run = Run(
        part=part if task is record.task else f"{part} with {_scalars_of(task)}",
        program=program_hash(built.ptx),
        architecture=built.architecture,
        sizes=" ".join(f"{name}={size}" for name, size in sizes) + (" captured" if is_captured else ""),
        inputs=inputs,
    )
    if not (is_once and run in record.runs):
        record.runs.append(run)


def _inputs(case: Case) -> str:
    """Family, thread order, offset, values, and what accepts or watches it otherwise."""
    words = [f"{case.family}/{case.thread_order}"]
    words += [f"+{case.offset_bytes}"] if case.offset_bytes else []
    words += [f"({_values(case.values)})"] if case.values else []
    words += ["?"] if case.may_not_end else []
    words += ["!"] if case.of_several_blocks else []
    return "".join(words)


def _values(values: Sequence[float]) -> str:
    shown = ",".join(f"{value:.9g}" for value in values)
    return shown if len(values) <= MAX_VALUES_SHOWN else f"{len(values)} values {digest([shown])}"


def _environment(circumstances: Circumstances) -> str:
    """The fields that are not as usual."""
    other = [f"{name}={_setting(value)}" for name, value in circumstances.items()]
    return "{" + ",".join(other) + "}" if other else ""


def _setting(value: object) -> str:
    """Record of addresses only those that all tensors have alike: the others are drawn."""
    if not isinstance(value, Mapping):
        return str(value)
    if len(set(value.values())) == 1:
        return f"all:{next(iter(value.values()))}"
    return "drawn"
