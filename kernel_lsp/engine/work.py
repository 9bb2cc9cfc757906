"""Execute each kind of job, in the job's own process: `kernel_lsp.engine.runner`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

from kernel_lsp.config import Settings, find_workspace, load_settings
from kernel_lsp.core import candidate as core_candidate
from kernel_lsp.core.event import StageStarted
from kernel_lsp.core.model import Noun
from kernel_lsp.core.plan import LaunchPlan
from kernel_lsp.core.profile import ProfileReport
from kernel_lsp.core.task import GraphNode, Task, TaskTensor, TensorType
from kernel_lsp.core.verdict import Built, Unsupported, Verdict
from kernel_lsp.engine.archived import run_result
from kernel_lsp.engine.captures import CAPTURED_NAME, Captured, estimate_captured
from kernel_lsp.engine.generated import file_of_lines, origin_of, write_cells, write_generated
from kernel_lsp.engine.messages import (
    Check,
    CheckResult,
    EstimateTarget,
    ExtractedLines,
    JobNews,
    Optimize,
    OptimizeLines,
    Origin,
    ProfileKernel,
    ProfileResult,
    PromptOver,
    PromptWaits,
    Resume,
    RunResult,
    SettingValues,
)
from kernel_lsp.evolve.run.optimize import OUT_FOLDER_NAME, RunHandle, resume_request, start_request
from kernel_lsp.evolve.run.request import SeedKernel, read_seed_kernel
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.llm.manual import Ask, ManualPrompt
from kernel_lsp.plan.parser import parse
from kernel_lsp.process.confinement import sandbox_level
from kernel_lsp.process.interpreter import find_python, site_packages
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.source.extension import foreign_source
from kernel_lsp.source.extraction import OWN, SIZES, extract
from kernel_lsp.source.python_file import import_line, import_style, read_python_file
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.source.selection import select
from kernel_lsp.toolchain.nvrtc.build_cache import BuildCache
from kernel_lsp.toolchain.nvrtc.compile import Compiler
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain
from kernel_lsp.verify.devices.building import names_without_sizes, request_of
from kernel_lsp.verify.profile.profile import profile_kernel
from kernel_lsp.verify.session.check_kernel import check_kernel
from kernel_lsp.verify.session.plain_build import check_plain, check_without_task, is_plain, without_static
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.session.start import SessionStart

Tell = Callable[[JobNews], None]
Computation = Optimize | OptimizeLines | Resume | Check | ProfileKernel | EstimateTarget
EDITOR = "editor"
"""Name in `models` for the editor's own model."""


async def do(
    request: Computation,
    tell: Tell,
    scratch: Path,
    ask: Ask,
    start: SessionStart | None,
    taken: asyncio.Event | None,
) -> Noun:
    """Return the job's result. Raises KernelLspError when it cannot run. `scratch` is a folder of the job; `ask` calls
    the editor's model if the request has one; `start` is that of `StartAhead`; `taken` is as in `RunHandle`."""
    match request:
        case Optimize():
            handle = handle_of(request)
            handle.start, handle.taken = start, taken
            return await _run(request, handle, tell, ask)
        case OptimizeLines():
            return await _run(request, await _of_lines(request, tell), tell, ask)
        case Resume():
            return await _run(request, resume_request(request.directory, request.run_id), tell, ask)
        case Check():
            return await _check(request, tell, scratch)
        case ProfileKernel():
            return await _profile(request, tell, scratch)
        case EstimateTarget():
            return await _estimate(request, tell, scratch, start)


ESTIMATED_S = 45.0
"""Seconds from a run's start for candidates whose times are estimates: on two free cores a search is over before, and
on busy ones a person would wait minutes for the last per cent of an estimate. The command line has no such limit."""


def handle_of(request: Optimize) -> RunHandle:
    """Return the run of a target, in a file or in a notebook's cells."""
    if not request.cells:
        return _of_target(request)
    path, symbol = write_cells(request)
    settings = load_settings(request.directory, request.settings)
    return _of_generated(path, symbol, settings, request.settings, backward=request.backward)


async def _run(request: Optimize | OptimizeLines | Resume, handle: RunHandle, tell: Tell, ask: Ask) -> RunResult:
    handle.write = _keep_in_archive
    handle.callbacks = {EDITOR: ask} if request.has_editor_model else {}
    handle.on_prompt = lambda prompt: tell(_news_of(prompt))
    if not isinstance(request, Resume):
        handle.estimated_s = ESTIMATED_S
    async with aclosing(handle.events()) as events:  # type: ignore[type-var]  # a generator
        async for event in events:
            tell(event)
    assert handle.run_id is not None, "a run that ended has begun"
    return run_result(handle.workspace, handle.run_id)


def _news_of(prompt: ManualPrompt) -> PromptWaits | PromptOver:
    if prompt.is_waiting:
        return PromptWaits(prompt=prompt.prompt, reply=prompt.reply)
    return PromptOver(prompt=prompt.prompt)


def _of_target(request: Optimize) -> RunHandle:
    """Run a target. A kernel to start from determines the operations: its backward is included if it has one."""
    given = () if request.kernel is None else (_given_kernel(request.kernel, request.kernel_text),)
    plan = parse(given[0].text).plan if given else None
    backward = request.backward or (plan is not None and plan.backward is not None)
    return start_request(request.directory, request.target, backward, request.settings, seed_kernels=given)


def _given_kernel(kernel: Path, text: str | None) -> SeedKernel:
    return read_seed_kernel(kernel) if text is None else SeedKernel(name=kernel.name, text=text)


async def _of_lines(request: OptimizeLines, tell: Tell) -> RunHandle:
    """Run the function extracted from the lines, with the shapes of the surrounding function's capture."""
    source = read_target(request.target, request.directory)
    settings = load_settings(request.directory, request.settings)
    tell(StageStarted(message=f"capturing {request.target}"))
    async with Session(_capturing(settings)) as session:
        task = await session.capture(source, with_backward=False)
    file = Path(source.file)
    lines = extract_lines(task, file, source.symbol, request.first_line, request.last_line)
    text, origin = file_of_lines(file, lines), Origin(file=file, lines=lines)
    path = write_generated(find_workspace(request.directory), lines.name, text, origin)
    return _of_generated(path, lines.name, settings, request.settings, backward=False)


def _of_generated(path: Path, symbol: str, settings: Settings, given: SettingValues, *, backward: bool) -> RunHandle:
    """Run a generated file, with results placed next to its origin."""
    out = settings.out_directory or origin_of(path).file.parent / OUT_FOLDER_NAME
    return start_request(path.parent, f"{path.name}::{symbol}", backward, {**given, "out_directory": str(out)})


def _keep_in_archive(*_: Any, **__: Any) -> tuple[Path, ...]:
    """Keep the result in the archive only: an editor's user reviews the files before they are written."""
    return ()


async def _check(request: Check, tell: Tell, scratch: Path) -> CheckResult:
    tell(StageStarted(message=f"checking {request.kernel.name}"))
    settings = load_settings(request.directory, request.settings)
    plan = parse(request.text).plan if request.text is not None and request.target is None else None
    if request.text is not None and plan is not None and plan.task is None:
        return CheckResult(kernel=request.kernel, verdict=await build_only(request.text, plan, settings))
    alone = request.text if request.target is None else None
    foreign = foreign_source(request.kernel.name, alone) if alone is not None else None
    if alone is not None and foreign is not None:
        verdict = await check_without_task(request.kernel, alone, foreign.kind, settings)
    elif alone is not None and is_plain(request.kernel.name, alone):
        verdict = await check_plain(request.kernel, alone, settings)
    else:
        verdict = await check_kernel(*_as_given(request, request.target, scratch), settings)
    return CheckResult(kernel=request.kernel, verdict=without_static(verdict))


async def _profile(request: ProfileKernel, tell: Tell, scratch: Path) -> ProfileResult:
    name = request.kernel.name
    tell(StageStarted(message=f"profiling {name}"))
    settings = load_settings(request.directory, request.settings)

    def say(stage: str) -> None:
        tell(StageStarted(message=f"profiling {name}: {stage}"))

    found = await profile_kernel(*_as_given(request, None, scratch), settings, say)
    if isinstance(found, ProfileReport):
        return ProfileResult(kernel=request.kernel, report=found)
    return ProfileResult(kernel=request.kernel, outcome=found)


def _as_given(request: Check | ProfileKernel, target: str | None, scratch: Path) -> tuple[Path, str | None, Path]:
    """Return the kernel's file, its target, and the folder to which the target is relative. Unsaved text is written to
    a file of the same name; paths in it stay relative to the original."""
    if request.text is None:
        return request.kernel, target, request.directory
    kernel = scratch / request.kernel.name
    kernel.write_text(request.text, encoding="utf-8")
    plan = parse(request.text).plan
    if target is None and plan is not None and plan.task is not None:
        return kernel, plan.task, Path(os.path.abspath(request.kernel)).parent
    return kernel, target, request.directory


async def _estimate(request: EstimateTarget, tell: Tell, scratch: Path, start: SessionStart | None) -> Noun:
    settings = load_settings(request.directory, request.settings)
    target, directory = request.target, request.directory
    if request.cells:
        path, symbol = write_cells(request)
        target, directory = f"{path.name}::{symbol}", path.parent
    source = read_target(target, directory)
    tell(StageStarted(message=f"capturing {request.target}"))
    async with Session(_capturing(settings), start) as session:
        task = await session.capture(source, with_backward=False)
        captured = Captured(task=task, generated=Path(source.file) if request.cells else None)
        (scratch / CAPTURED_NAME).write_text(captured.model_dump_json(), encoding="utf-8")
        return estimate_captured(captured, request.target, session.gpu)


def _capturing(settings: Settings) -> Settings:
    """Capture on the CPU; no GPU is opened."""
    return settings.model_copy(update={"device": "cpu"})


COMPILER = "NVRTC"
"""Device named in the verdict of a kernel that was only compiled."""
NO_TASK = "no task declared: to check and time this kernel, add `// task: model.py::symbol` to the plan"


async def build_only(text: str, plan: LaunchPlan, settings: Settings) -> Verdict:
    """Compile the launched kernels whose names depend on no size. Raises EnvironmentProblem or SettingError for a
    missing tool."""
    gpu = find_gpu(settings.target_gpu)
    toolchain = find_toolchain(
        settings.cuda_directory, user_site_packages=site_packages(await find_python(settings.python))
    )
    async with Compiler(
        toolchain,
        cache=BuildCache(settings.cache_directory),
        n_processes=1,
        deadline_s=settings.compile_deadline_s,
        sandbox=sandbox_level(settings.sandbox),
    ) as compiler:
        names = names_without_sizes(plan, kernel_signatures(text))
        built = await compiler.compile(request_of(text, names, gpu, None))
    origin = core_candidate.Origin(proposer="user", description="an editor's text")
    candidate = core_candidate.Candidate(text=text, origin=origin)
    if not isinstance(built, Built):
        return Verdict(candidate_id=candidate.id, device=COMPILER, outcome=built)
    return Verdict(
        candidate_id=candidate.id,
        device=COMPILER,
        outcome=Unsupported(message=NO_TASK),
        findings=built.warnings,
        kernels=built.kernels,
    )


def extract_lines(task: Task, file: Path, symbol: str, first_line: int, last_line: int) -> ExtractedLines:
    """Extract the lines of `symbol` as a function; `task` is the captured `symbol`. Raises TargetError when that is
    impossible."""
    source = read_python_file(file, str(file))
    selection = select(source, symbol, first_line, last_line)
    name = f"{task.name}_lines_{selection.first_line}_{selection.last_line}"
    found = extract(source, selection, name, known_values(task, file, selection.first_line))
    return ExtractedLines(
        name=found.name,
        function=found.function,
        function_line=found.function_line,
        call=found.call,
        first_line=found.first_line,
        last_line=found.last_line,
        replaced="\n".join(source.lines[found.first_line - 1 : found.last_line]),
        global_names=found.global_names,
        import_line=import_line(source.tree),
        import_style=import_style(file, source.tree),
    )


def known_values(task: Task, file: Path, before_line: int) -> dict[str, str]:
    """Return the known values that lines from `before_line` on may use, as pragma items."""
    known = {SIZES: ", ".join(f"{symbol.name}={symbol.captured}" for symbol in task.symbols)}
    for path, value in task.module_settings.items():
        if isinstance(value, bool | int | float):
            known[f"{OWN}{path}"] = repr(int(value) if isinstance(value, bool) else value)
    for argument in task.arguments:
        if not isinstance(argument, TaskTensor):
            known[argument.name] = repr(argument.value)
        elif argument.role == "input":
            known[argument.name] = _item(argument.type, argument.integer_range)
        else:
            known[f"{OWN}{argument.qualified_name or argument.name}"] = _item(argument.type, argument.integer_range)
    known |= {str(node.user_name): _item(node.types[0]) for node in _assigned(task, file, before_line) if node.types[0]}
    return known


def _assigned(task: Task, file: Path, before_line: int) -> list[GraphNode]:
    """Return the nodes whose values are assigned to names above a line, in order; the last assignment of a name
    wins."""
    return [
        node
        for node in task.forward.nodes
        if node.user_name is not None
        and len(node.types) == 1
        and node.source is not None
        and Path(node.source.file) == file
        and node.source.line < before_line
    ]


def _item(type_: TensorType, integer_range: tuple[int, int] | None = None) -> str:
    """``i64[B, T] in [0, 50257)``"""
    text = f"{type_.dtype.value}[{', '.join(type_.shape)}]"
    return text if integer_range is None else f"{text} in [{integer_range[0]}, {integer_range[1]})"
