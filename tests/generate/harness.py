"""Small PyTorch texts through the whole way: capture, plan, render, compile, execute every launch, compare with fp64.

check("def f(x): return x.relu()", inputs=[tensor("x", 8, 16)])
"""

from __future__ import annotations

import asyncio
import atexit
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundLibraryStep, BoundOperation, LaunchPlan, Operation, TensorArgument
from kernel_lsp.core.task import Graph, Task, TaskScalar
from kernel_lsp.core.verdict import BuildFailed, Built
from kernel_lsp.generate.program import Program, plan_program
from kernel_lsp.plan.binding import bind
from kernel_lsp.plan.checking import check as check_plan
from kernel_lsp.plan.contract import contract_holds
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.plan.renaming import chained_backward
from kernel_lsp.process.case_files import CaseTensor
from kernel_lsp.ptx.executor import BufferFile, ExecutionReport, Loaded, PtxExecutor, RunOptions
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain
from kernel_lsp.verify.model.cases import shapes_for
from kernel_lsp.verify.oracle.arrays import decode, map_array, write_poison
from kernel_lsp.verify.oracle.case_store import read_expectations
from kernel_lsp.verify.oracle.compare import BACKWARD_FACTOR, FORWARD_FACTOR, compare, is_within_budget
from tests.worker.capturing import capture_text_once, make_case, scalar, tensor, with_worker

__all__ = ["Checked", "built", "check", "plan_text", "run", "scalar", "tensor"]

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Checked:
    """Return the rendered text, for tests that read it."""

    task: Task
    program: Program
    text: str
    plan: LaunchPlan

    @property
    def n_kernels(self) -> int:
        """Launches of the forward operation."""
        return sum(hasattr(step, "kernel") for step in self.plan.forward.steps)


def plan_text(
    text: str,
    *,
    inputs: Sequence[Any] | None,
    symbol: str = "f",
    backward: bool = False,
    variants: bool = False,
    **source: Any,
) -> Program:
    """Return the program of a text's symbol; by default without `variants` for the captured sizes, so that kernels for
    any sizes run at small ones."""
    given = None if inputs is None else list(inputs)
    program = plan_program(capture_text_once(text, symbol, inputs=given, backward=backward, **source), gpu=None)
    return program if variants else replace(program, _captured=None)


def check(
    text: str,
    *,
    inputs: Sequence[Any] | None = None,
    symbol: str = "f",
    backward: bool = False,
    schedule: Mapping[str, int | str] | None = None,
    families: Sequence[str] = ("normal",),
    sizes: Sequence[Sizes] = ({},),
    **source: Any,
) -> Checked:
    """Assert that every operation of the task gives what PyTorch gives, at the captured sizes and at others."""
    program = plan_text(text, inputs=inputs, symbol=symbol, backward=backward, **source)
    return check_program(program, schedule=schedule or {}, families=families, sizes=sizes)


def built(text: str) -> Built:
    """Compile a kernel file."""
    return _LOOP.run_until_complete(_build(text, parse_or_raise(text, "kernel.cu")))


def check_program(
    program: Program,
    *,
    schedule: Mapping[str, int | str],
    families: Sequence[str] = ("normal",),
    sizes: Sequence[Sizes] = ({},),
) -> Checked:
    """Assert that one schedule of a program of the task captured last is right."""
    task, cuda = program.task, program.render(schedule)
    plan = parse_or_raise(cuda, "kernel.cu")
    signatures = kernel_signatures(cuda)
    problems = [finding.message for finding in check_plan(plan, signatures) if finding.severity == "error"]
    assert not problems, f"{problems}\n{cuda}"
    compiled = _LOOP.run_until_complete(_build(cuda, plan))
    captured = {symbol.name: symbol.captured for symbol in task.symbols}
    operations = [("forward", plan.forward, task.forward)]
    if task.backward is not None:
        chained = chained_backward(plan)
        assert chained is not None
        operations.append(("backward", chained, task.backward))
    n_checked = 0
    for changed in sizes:
        for kind, operation, graph in operations:
            for family in families:
                shapes = shapes_for(graph, {**captured, **changed})
                if not changed:
                    scalars = {each.name: each.value for each in task.arguments if isinstance(each, TaskScalar)}
                    assert contract_holds(operation, shapes, scalars), f"{kind} excludes the captured sizes\n{cuda}"
                n_checked += _check_case(task, cuda, compiled, kind, operation, shapes, family)
    assert n_checked, f"no case is inside the contract\n{cuda}"
    return Checked(task, program, cuda, plan)


def run(checked: Checked, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run the forward operation on these arrays; its results by name."""
    operation = checked.plan.forward
    signatures = kernel_signatures(checked.text)
    bound = bind(operation, {name: array.shape for name, array in inputs.items()}, {}, signatures)
    directory = Path(tempfile.mkdtemp(dir=_FOLDER.name))
    given = []
    for name, array in inputs.items():
        array.tofile(directory / f"{name}.bin")
        given.append(CaseTensor(name, directory / f"{name}.bin", bound.tensor(name).dtype, array.shape))
    files = _write_files(bound, given, directory)
    _run_steps(bound, files, _LOOP.run_until_complete(_build(checked.text, checked.plan)), checked.text)
    results = [bound.tensor(result.name) for result in operation.results]
    return {entry.name: _read(files[entry.name].path, entry.dtype, entry.shape) for entry in results}


# --- below: one case

_LOOP = asyncio.new_event_loop()
_FOLDER = tempfile.TemporaryDirectory(prefix="kernel-lsp-generate-")
_EXECUTORS: list[PtxExecutor] = []
_COMPILERS: list[Compiler] = []
_BUILT: dict[str, Built] = {}
"""Outcomes by text: tests of one kernel differ in their inputs."""
CPU_S = 120.0


def _check_case(
    task: Task,
    cuda: str,
    built: Built,
    kind: str,
    operation: Operation,
    shapes: dict[str, tuple[int, ...]],
    family: str,
) -> bool:
    scalars = {argument.name: argument.value for argument in task.arguments if isinstance(argument, TaskScalar)}
    if not contract_holds(operation, shapes, scalars):
        return False
    directory = Path(tempfile.mkdtemp(dir=_FOLDER.name))
    case = make_case(kind, shapes, family, directory)
    if case.is_degenerate:
        return False
    bound = bind(operation, shapes, scalars, kernel_signatures(cuda))
    files = _write_files(bound, case.inputs, directory)
    _run_steps(bound, files, built, cuda)
    factor = FORWARD_FACTOR if kind == "forward" else BACKWARD_FACTOR
    for expectation, (result, holder) in zip(read_expectations(case), bound.results, strict=True):
        found = _read(files[holder.name].path, result.dtype, result.shape)
        error = compare(found, expectation, factor=factor)
        assert is_within_budget(error), f"{kind} {shapes} {family}: {error}\n{cuda}"
    return True


def _read(path: Path, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    return decode(map_array(path, dtype, shape), dtype)


def _write_files(bound: BoundOperation, inputs: Sequence[CaseTensor], directory: Path) -> dict[str, BufferFile]:
    given = {entry.name: entry for entry in inputs}
    files = {}
    for position, entry in enumerate(bound.tensors):
        path = directory / f"tensor_{position}.bin"
        if entry.role == "input":
            path = given[entry.name].path
        else:
            write_poison(path, entry.n_bytes)
        description = f"{entry.dtype}{list(entry.shape)}"
        files[entry.name] = BufferFile(entry.name, path, entry.n_bytes, entry.role, description)
    return files


def _run_steps(bound: BoundOperation, files: dict[str, BufferFile], built: Built, cuda: str) -> None:
    pending: list[Any] = []
    for step in bound.steps:
        if isinstance(step, BoundLibraryStep):
            _run_on_executor(pending, files, built, cuda)
            pending = []
            _run_library(step, bound, files)
            # The executor did not see the library write, nor what its own earlier run wrote.
            files.update({name: replace(file, is_initialised=True) for name, file in files.items()})
        else:
            pending.append(step)
    _run_on_executor(pending, files, built, cuda)


def _run_library(step: BoundLibraryStep, bound: BoundOperation, files: Mapping[str, BufferFile]) -> None:
    def case_tensor(name: str) -> CaseTensor:
        entry = bound.tensor(name)
        return CaseTensor(name, files[name].path, entry.dtype, entry.shape)

    names = list(dict.fromkeys(_tensor_names(step.arguments)))
    tensors, results = [case_tensor(name) for name in names], [case_tensor(name) for name in step.results]
    with_worker(lambda worker: worker.run_library(step.function, step.arguments, tensors=tensors, results=results))


def _tensor_names(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [value["tensor"]] if "tensor" in value else []
    return [name for entry in value for name in _tensor_names(entry)] if isinstance(value, list | tuple) else []


def _run_on_executor(steps: list[Any], files: Mapping[str, BufferFile], built: Built, cuda: str) -> None:
    if not steps:
        return

    async def run() -> Any:
        executor = await _executor()
        loaded = await executor.load(built.ptx, "kernel.cu", cpu_s=CPU_S, is_quick=True)
        assert isinstance(loaded, Loaded), f"{loaded}\n{cuda}"
        # Texts with `wgmma` need proxy fences, which the race check looks for.
        options = RunOptions(cpu_s=CPU_S, watches_races="wgmma" in cuda)
        return await executor.run(list(files.values()), steps, built.symbols, options)

    report = _LOOP.run_until_complete(run())
    assert isinstance(report, ExecutionReport), f"{report}\n{cuda}"
    errors = [finding for finding in report.findings if finding.severity == "error"]
    assert not errors, f"{errors[0]}\n{cuda}"


async def _build(cuda: str, plan: LaunchPlan) -> Built:
    if cuda not in _BUILT:
        steps = (step for operation in plan.operations for step in operation.steps)
        names = tuple(dict.fromkeys(step.kernel for step in steps if hasattr(step, "kernel")))
        outcome = await _compiler().compile(BuildRequest(text=cuda, name_expressions=names))
        if isinstance(outcome, BuildFailed):
            raise AssertionError("\n".join(f"{f.line}: {f.message}" for f in outcome.findings) + f"\n{cuda}")
        assert isinstance(outcome, Built)
        _BUILT[cuda] = outcome
    return _BUILT[cuda]


def _compiler() -> Compiler:
    if not _COMPILERS:
        _COMPILERS.append(Compiler(find_toolchain(), n_processes=1))
    return _COMPILERS[0]


async def _executor() -> PtxExecutor:
    if not _EXECUTORS:
        executor = PtxExecutor()
        await executor.__aenter__()
        _EXECUTORS.append(executor)
    return _EXECUTORS[0]


def _close() -> None:
    for executor in _EXECUTORS:
        _LOOP.run_until_complete(executor.close())
    for compiler in _COMPILERS:
        _LOOP.run_until_complete(compiler.__aexit__(None, None, None))
    _LOOP.close()


atexit.register(_close)
_ = (np, Graph, TensorArgument)
