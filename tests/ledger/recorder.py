"""Record what the pipeline asks devices to run, and run none of it: the one file of the ledger that knows the pipeline.

Devices answer that every run is right, so the pipeline asks for everything it would ask of a right kernel. Facts that
only a run tells take the answer that leads to more runs: shared memory is read unwritten, threads may wait.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from kernel_lsp.verify.other_numbers import OtherNumbers

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.task import Task, TaskScalar
from kernel_lsp.core.verdict import BuildFailed, Built, CaseResult, CheckOutcome, Verdict
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.plan.parser import parse
from kernel_lsp.process.interpreter import site_packages
from kernel_lsp.ptx.executor import KernelFactsOfPtx, Loaded
from kernel_lsp.toolchain.integrity.ptx_identity import program_hash
from kernel_lsp.toolchain.nvrtc.cache import BuildCache
from kernel_lsp.toolchain.nvrtc.compile import Compiler
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain
from kernel_lsp.verify.cpu.device import CaseRun, CpuDevice, Limits, Skipped
from kernel_lsp.verify.cpu.shared_poison import UNWRITTEN
from kernel_lsp.verify.gpu.checks import GpuChecks, MeasuringGpu, Untimed
from kernel_lsp.verify.model.cases import SCREEN_FAMILIES, Case
from kernel_lsp.verify.model.environment import USUAL, Circumstances
from kernel_lsp.verify.model.progress import Plan
from kernel_lsp.verify.session.check import find_task
from kernel_lsp.verify.session.pipeline import Evaluator
from kernel_lsp.verify.session.start import SessionStart
from tests.corpora import COMPILE_DEADLINE_S, Kernel
from tests.ledger.entry import Entry, Run, digest, entry_of

N_TASKS_AT_ONCE = 3
"""The worker captures one task while cases of another are chosen."""
MAX_VALUES_SHOWN = 8
_FIXED_BITS = 0x1ED6E2
"""In place of random ones: sizes that no kernel can know are the same every time."""
SEED_OFFSETS = (0, 1)
_TIMED_OUT, _ON_GPU = "timed_out", "gpu"


@dataclass
class _Record:
    """What was asked about one kernel, in order."""

    runs: list[Run]
    numbers: str = ""


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

        groups = [list(group) for _, group in groupby(sorted(kernels, key=_task_of), key=_task_of)]
        for finished in asyncio.as_completed([asyncio.create_task(in_turn(group)) for group in groups]):
            yield await finished


# --- below: one task


@dataclass(frozen=True)
class _Bench:
    """What evaluators need. Stands in for a session where other numbers are tried."""

    worker: Any
    compiler: Compiler
    settings: Settings
    scratch: Path

    def evaluator(
        self,
        task: Task,
        families: Sequence[str] = SCREEN_FAMILIES,
        numbers: str = "",
        *,
        has_gpu: bool = False,
        seed_offset: int = 0,
    ) -> Evaluator:
        return _NumberedEvaluator(
            numbers,
            task,
            self.worker,
            self.compiler,
            find_gpu(self.settings.target_gpu),
            self.scratch,
            seed=self.settings.seed + seed_offset,
            measured_on=MeasuringGpu(_GPU, Untimed()) if has_gpu else None,  # type: ignore[arg-type]
            executors=_Pool(),  # type: ignore[arg-type]
            screen_families=families,
        )

    async def untimed_evaluator(self, task: Task, families: Sequence[str], beside: Evaluator) -> Evaluator:
        return self.evaluator(task, families, _numbers_of(task))


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
    return _Bench(start.worker, await stack.enter_async_context(compiler), settings, start.scratch)


async def _entries(bench: _Bench, kernels: Sequence[Kernel]) -> list[Entry]:
    first = kernels[0]
    if not first.task_line:
        return [_entry(kernel, BuildFailed(findings=parse(kernel.text).findings), [], []) for kernel in kernels]
    source = find_task(first.file, first.task_line, None, first.file.parent)
    task = await bench.worker.capture(source, with_backward=first.has_backward)
    on_cpu = OtherNumbers(bench.evaluator(task), bench, source, task)  # type: ignore[arg-type]
    on_gpu = [bench.evaluator(task, has_gpu=True, seed_offset=offset) for offset in SEED_OFFSETS]
    return [await _on_both(kernel, on_cpu, on_gpu) for kernel in kernels]


async def _on_both(kernel: Kernel, on_cpu: OtherNumbers, on_gpu: Sequence[Evaluator]) -> Entry:
    """What the executor and a GPU are asked. Sizes for a GPU that are others with another seed count as drawn."""
    verdict, runs = await _asked(kernel, on_cpu)
    if verdict.outcome.kind == _TIMED_OUT:  # a compile takes as long again on the GPU's behalf
        return _entry(kernel, verdict.outcome, runs, [])
    first, second = [(await _asked(kernel, evaluator))[1] for evaluator in on_gpu]
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


async def _asked(kernel: Kernel, evaluator: Evaluator | OtherNumbers) -> tuple[Verdict, list[Run]]:
    candidate = Candidate(text=kernel.text, origin=Origin(proposer="user", description=kernel.file.name))
    record = _Record([])
    token = _RECORD.set(record)
    try:
        return await evaluator.evaluate(candidate, "full"), record.runs
    finally:
        _RECORD.reset(token)


def _entry(kernel: Kernel, outcome: CheckOutcome, runs: Sequence[Run], on_gpu: Sequence[Run]) -> Entry:
    codes = dict.fromkeys(finding.code for finding in getattr(outcome, "findings", ()))
    said = " ".join([outcome.kind, *sorted(codes)])
    return entry_of(kernel.file.name, kernel.task_line, said, runs, on_gpu)


def _task_of(kernel: Kernel) -> tuple[str, str, bool]:
    return (str(kernel.file.parent), kernel.task_line, kernel.has_backward)


def _numbers_of(task: Task) -> str:
    scalars = [argument for argument in task.arguments if isinstance(argument, TaskScalar)]
    return " ".join(f"{scalar.name}={scalar.value:.6g}" for scalar in scalars)


# --- below: devices that run nothing


_GPU = SimpleNamespace(name="GPU", facts=SimpleNamespace(architecture="sm_90"))
_ALIVE = SimpleNamespace(is_alive=True)
_LOADED = Loaded((KernelFactsOfPtx("", 1, uses_global_atomics=False, may_wait=True, static_shared_bytes=0),))
_READ_UNWRITTEN = Finding(code=UNWRITTEN, severity=Severity.WARNING, message="", source="executor", line=1)


class _NumberedEvaluator(Evaluator):
    """Notes with which numbers its task was captured; empty for the task's own."""

    def __init__(self, numbers: str, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._numbers = numbers

    async def evaluate(self, candidate: Candidate, depth: Any, when_worker_is_free: Any = lambda: None) -> Verdict:
        _RECORD.get().numbers = self._numbers
        return await super().evaluate(candidate, depth, when_worker_is_free)


class _Pool:
    """Executors that load anything."""

    @asynccontextmanager
    async def executor(self, module: object = None) -> AsyncIterator[object]:
        yield _ALIVE

    async def load(self, executor: object, module: object) -> Loaded:
        return _LOADED

    @contextmanager
    def loading_ahead(self, module: object, n_executors: int) -> Iterator[None]:
        yield


@contextmanager
def _recording_devices() -> Iterator[None]:
    """Replace the methods by which a check reaches a device."""
    with (
        patch.object(secrets, "randbits", lambda _: _FIXED_BITS),
        patch.multiple(
            CpuDevice,
            run_case=_run_case,
            profile=_profile,
            written_bytes=_written_bytes,
            ends=_ends,
            make_aside=_made,
        ),
        patch.multiple(GpuChecks, prefetch=lambda *_: None, check=_checked_on_gpu),
    ):
        yield


async def _run_case(
    _: object,
    executor: object,
    built: Built,
    bound: BoundOperation,
    case: Case,
    sample: object,
    limits: Limits,
    circumstances: Circumstances = USUAL,
) -> CaseRun:
    """With findings that ask for runs over other shared memory."""
    far = " far" if limits.complete_instructions == 0 else ""
    _note(f"{case.operation}{far}", built, case.sizes, _inputs(case) + _environment(circumstances), case.is_captured)
    result = CaseResult(operation=bound.name, family=case.family, shapes={}, n_blocks=1, n_blocks_run=1, errors=())
    return CaseRun(result, (_READ_UNWRITTEN,), 1)


async def _profile(*_: object) -> Skipped:
    """None, which samples no case and finds none too large."""
    return Skipped("nothing runs")


async def _written_bytes(
    _: object, executor: object, built: Built, bound: BoundOperation, launches: object, *__: object
) -> Mapping[str, int]:
    """All of every output, as often as it is asked."""
    _note(f"{bound.name} written", built, tuple(bound.dims.items()), "zeros", is_once=True)
    return {tensor.name: tensor.n_bytes for tensor in bound.tensors if tensor.role == "output"}


async def _ends(*_: object) -> bool:
    return True


async def _made(*_: object) -> None:
    """Nobody needs the files of a case."""


async def _checked_on_gpu(
    _: object, built: Built, plans: Sequence[Plan], progress: object, *, beside: object
) -> CheckOutcome | None:
    for case, _bound in (entry for plan in plans for entry in plan):
        _note(f"{_ON_GPU} {case.operation}", built, case.sizes, _inputs(case), case.is_captured)
    return None


# --- below: words


def _note(
    part: str,
    built: Built,
    sizes: tuple[tuple[str, int], ...],
    inputs: str,
    is_captured: bool = False,
    *,
    is_once: bool = False,
) -> None:
    record = _RECORD.get()
    run = Run(
        part=part + (f" with {record.numbers}" if record.numbers else ""),
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
    found = {field.name: getattr(circumstances, field.name) for field in fields(circumstances)}
    other = [f"{name}={_setting(found[name])}" for name in found if found[name] != getattr(USUAL, name)]
    return "{" + ",".join(other) + "}" if other else ""


def _setting(value: object) -> str:
    """Of addresses only those that all tensors have alike: the others are drawn."""
    if not isinstance(value, Mapping):
        return str(value)
    if len(set(value.values())) == 1:
        return f"all:{next(iter(value.values()))}"
    return "drawn"
