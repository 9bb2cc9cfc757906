"""The main job, from a target to its files, as one stream of events."""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_lsp.config import Settings, find_workspace, load_settings
from kernel_lsp.core.event import (
    CandidateEvaluated,
    Event,
    FilesWritten,
    RunFinished,
    RunStarted,
    StageStarted,
    TaskCaptured,
)
from kernel_lsp.core.recommendation import recommend
from kernel_lsp.core.task import TargetSource, Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.core.words import counted
from kernel_lsp.errors import EnvironmentProblem, TargetError
from kernel_lsp.evolve.archive.archive import Archive, check_workspace_is_free, existing_archive, workspace_lock
from kernel_lsp.evolve.propose.model_run import ModelRun, ModelTools, open_tools, with_keys
from kernel_lsp.evolve.propose.model_search import ModelSearch
from kernel_lsp.evolve.propose.population import Innovation, keep_innovation, operators_of
from kernel_lsp.evolve.run.evaluations import Evaluations, score_kind, score_us
from kernel_lsp.evolve.run.final_verification import SearchResult, TimeLimit
from kernel_lsp.evolve.run.generations import Search, SearchSettings
from kernel_lsp.evolve.run.request import ModelChoices, OptimizeRequest, SeedKernel
from kernel_lsp.evolve.run.reuse import TunedKey, TunedSchedule, TunedSchedules, tuned_key
from kernel_lsp.export.python.operator import check_operator_can_be_written, write_operator
from kernel_lsp.generate.program import Program, plan_program
from kernel_lsp.llm.manual import Ask, OnPrompt, ignore_prompt
from kernel_lsp.llm.patience import Spending
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.training.ranker import trained_order
from kernel_lsp.verify.devices.device_names import parse_device
from kernel_lsp.verify.model.cases import StageTimes
from kernel_lsp.verify.profile.profile import profile_candidate
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.session.start import SessionStart
from kernel_lsp.verify.session.verifier import Verifier

NO_RULE = "the generator has no rule for this target: the models begin without a seed"
OUT_FOLDER_NAME = "kernels"
"""Folder next to the user's file, which keeps a result `rms_norm.py` from overwriting the target's `rms_norm.py`."""
FINAL_BASELINE_WAIT_S = 240.0
"""Wait for torch.compile's modes in the final comparison, in seconds. They start compiling with the first candidate:
those of three tasks were compiled and timed in 22 s with an H200 (`benchmarks/gpu_baselines.py`, 2026-11-21). Large
models take minutes; without these modes no kernel can be called faster."""
BASELINE_SHARE = 0.5
"""Maximum wait for these modes after the time for candidates, as a share of it. The wait ends at that point of the run
however late it began: a full check whose references were slow still needs time to end."""


@dataclass
class RunHandle:
    """A run that can be started or resumed once: iterate `events()`. `write` takes the arguments of `write_operator`,
    and returns the files written. `callbacks` reach models outside this process by name: ``editor``; `on_prompt`
    receives prompts that wait for a person's reply. `applies_anyway` also writes a winner that is not
    recommended. `estimated_s` limits the time for candidates whose times are estimates, where somebody waits. There
    `taken` has the first generation's best verified at once; setting it ends the search with that one."""

    request: OptimizeRequest
    settings: Settings
    workspace: Path
    run_id: str | None = None
    write: Callable[..., Sequence[Path]] = write_operator
    callbacks: Mapping[str, Ask] = field(default_factory=dict)
    on_prompt: OnPrompt = ignore_prompt
    applies_anyway: bool = False
    estimated_s: float = math.inf
    taken: asyncio.Event | None = None
    start: SessionStart | None = None
    """The start of its session, which its owner entered already and exits; None for one of its own."""
    task_summary: str = ""
    verified_on: str = ""
    is_resumable: bool = field(default=False, init=False)
    _verifier: Verifier | None = field(default=None, init=False, repr=False)

    @property
    def full_check(self) -> StageTimes | None:
        """Return the stages of the full check that began last; None before the first."""
        return self._verifier.full_check if self._verifier is not None else None

    @property
    def target(self) -> str:
        return self.request.target

    async def events(self) -> AsyncIterator[Event]:
        """Yield all events of the run. Raises KernelLspError when it cannot run; candidates' failures never raise.

        Nothing is written, not even the archive, before the target has been captured and its kernels planned.
        """
        started = time.monotonic()
        check_workspace_is_free(self.workspace)
        tools = self._tools()
        missing: tuple[str, ...] = ()
        if tools is not None and self.run_id is None:  # a resumed run has archived replies, which need no key
            tools, missing = with_keys(tools)
        source = read_target(self.request.target, self.request.directory)
        peers = self.request.peers
        wait_s = min(FINAL_BASELINE_WAIT_S, self.settings.run_deadline_s * BASELINE_SHARE)
        wait_end = started + self.settings.run_deadline_s * (1.0 + BASELINE_SHARE)
        async with Session(self.settings, self.start, full_wait_s=wait_s, wait_end=wait_end, peers=peers) as session:
            for message in missing:
                yield StageStarted(message=message)
            yield StageStarted(message=f"capturing {self.request.target} with {session.worker.python}")
            await session.gpu_index()
            task = await session.capture(source, with_backward=self.request.backward, for_device=True)
            out = self.request.out or Path(source.file).parent / OUT_FOLDER_NAME
            seen = _as_seen_from(out, task, source)
            verifier = asyncio.create_task(session.verifier(source, task))  # PyTorch's side starts beside the plan
            try:
                program = await asyncio.to_thread(_plan, seen, session, tools)
                if program is None:
                    yield StageStarted(message=NO_RULE)
                check_operator_can_be_written(task.name, out, seen.target)
                self.task_summary = summarize(task)
                key = await _tuned_key(session, task)
                if program is not None and self.run_id is None:
                    self.request = self.request.model_copy(update={"tuned": self._recalled(key, program)})
                with workspace_lock(self.workspace), Archive(self.workspace) as archive:
                    prepared = _Prepared(
                        session, verifier, source, task, seen.target, program, out, started, tools, key
                    )
                    async for event in self._archived(archive, prepared):
                        yield event
            finally:
                await end_tasks(verifier)

    async def _archived(self, archive: Archive, prepared: _Prepared) -> AsyncIterator[Event]:
        """Archive the run's start, its events and its end."""
        run_id, resumed = self._begin(archive)
        self.is_resumable = True
        _check_unchanged(archive, run_id, prepared.task, prepared.source)
        try:
            async for event in self._run(archive, run_id, resumed, prepared):
                if not isinstance(event, CandidateEvaluated | StageStarted):  # the first is saved with its verdict
                    archive.save_event(run_id, event)
                yield event
        except BaseException:
            with suppress(EnvironmentProblem):  # the archive itself may have failed; the run is resumable nevertheless
                archive.finish_run(run_id, "interrupted")
            raise
        archive.finish_run(run_id, "finished")

    def _recalled(self, key: TunedKey, program: Program) -> TunedSchedule | None:
        """Return the winner of an earlier search for this task, if the generator still prints it."""
        found = TunedSchedules(self.settings.cache_directory).find(key)
        return found if found is not None and found.holds(program) else None

    def _tools(self) -> ModelTools | None:
        if not self.request.choices.models:
            return None
        return open_tools(self.request, self.workspace, self.callbacks, self.on_prompt, self.settings.manual_wait_s)

    def _begin(self, archive: Archive) -> tuple[str, bool]:
        if self.run_id is not None:
            archive.go_on(self.run_id)
            return self.run_id, True
        self.run_id = archive.start_run(self.request.target, self.request.model_dump(mode="json"))
        return self.run_id, False

    async def _run(self, archive: Archive, run_id: str, resumed: bool, prepared: _Prepared) -> AsyncIterator[Event]:
        session, task = prepared.session, prepared.task
        self._verifier = verifier = await prepared.verifier
        yield RunStarted(
            run_id=run_id,
            target=self.request.target,
            device=verifier.device_name,
            target_gpu=session.gpu.name,
            resumed=resumed,
            digest=prepared.source.digest,
        )
        yield _captured(task, self.task_summary)
        search = await self._search(archive, run_id, verifier, prepared)
        async for event in search.run():
            yield event
        assert search.result is not None, "a search that ends has a result"
        files = self._write(task, search.result, prepared.out)
        if files:
            yield FilesWritten(files=files)
        _keep(archive, task, search.result)
        if isinstance(search, Search) and search.result.winner is not None and search.result.verdict is not None:
            is_cut, n_proposed = search.result.is_cut_short, search.result.n_proposed
            n_tried = n_proposed if is_cut else self.request.generations * self.request.proposals
            tuned = TunedSchedules(self.settings.cache_directory)
            tuned.remember(prepared.key, search.result.winner, search.result.verdict, n_tried)
        spending = search.spending if isinstance(search, ModelSearch) else Spending()
        yield _finished(run_id, search.result, spending, files, time.monotonic() - prepared.started)

    async def _search(
        self, archive: Archive, run_id: str, verifier: Verifier, prepared: _Prepared
    ) -> Search | ModelSearch:
        """Search the generator's schedules, or with models if the request names some."""
        request = self.request
        if prepared.tools is None:
            assert prepared.program is not None, "without models there is a program, or the run has not begun"
            given = request.given(prepared.task_line)
            is_timed = await prepared.session.gpu_index() is not None
            limit_s = self.settings.run_deadline_s if is_timed else min(self.settings.run_deadline_s, self.estimated_s)
            limits = SearchSettings(
                request.generations,
                request.proposals,
                request.seed,
                given,
                early_stop=request.choices.early_stop == "on",
                tuned=request.tuned,
                limit=TimeLimit(limit_s, prepared.started),
                taken=None if is_timed else self.taken,
            )
            order = trained_order(prepared.task, prepared.program.realize({}))
            return Search(run_id, prepared.program, verifier, archive, limits, order)
        session, task, has_gpu = prepared.session, prepared.task, await prepared.session.gpu_index() is not None
        executor = await session.verifier(prepared.source, task, uses_gpu=False) if has_gpu else None
        run = ModelRun(
            run_id=run_id,
            archive=archive,
            request=request,
            tools=prepared.tools,
            workspace=self.workspace,
            task=task,
            target=prepared.task_line,
            gpu=session.gpu,
            evaluations=Evaluations(run_id, archive, verifier, executor),
            program=prepared.program,
            deadline_s=self.settings.run_deadline_s,
            profile=lambda candidate: profile_candidate(session, verifier.runs, task, candidate, f"{task.name}.cu"),
        )
        return run.search()

    def _write(self, task: Task, result: SearchResult, out: Path) -> tuple[str, ...]:
        if result.winner is None or result.verdict is None:
            return ()
        self.verified_on = describe_verification(result.verdict)
        advice = recommend(result.verdict.times)
        if advice is not None and advice.action == "keep" and not self.applies_anyway:
            return ()
        plan = parse_or_raise(result.winner.text, f"{task.name}.cu")
        paths = self.write(task, result.winner.text, plan, out, verification=self.verified_on)
        return tuple(str(path) for path in paths)


@dataclass(frozen=True)
class _Prepared:
    """Prerequisites of a run. `task_line` is the target as spelled in the `.cu` file; `program` is None where the
    generator has no rule, `tools` without models."""

    session: Session
    verifier: asyncio.Task[Verifier]
    source: TargetSource
    task: Task
    task_line: str
    program: Program | None
    out: Path
    started: float
    tools: ModelTools | None
    key: TunedKey


def start_request(
    directory: Path,
    target: str,
    backward: bool,
    overrides: Mapping[str, Any],
    *,
    replay: Path | None = None,
    seed_kernels: Sequence[SeedKernel] = (),
    peers: Sequence[str] = (),
) -> RunHandle:
    """Make a request for a new run of `target` from the settings of `directory` and the overrides; `replay` is a
    recording that replies in place of the models, `seed_kernels` are kernels to start from, and `peers` are functions
    to time beside PyTorch. Raises SettingError."""
    settings = load_settings(directory, overrides)
    request = OptimizeRequest(
        target=target,
        directory=directory,
        backward=backward,
        device=settings.device,
        target_gpu=settings.target_gpu,
        generations=settings.generations,
        proposals=settings.proposals,
        seed=settings.seed,
        out=settings.out_directory.absolute() if settings.out_directory else None,
        python=settings.python,
        choices=ModelChoices.of(settings),
        replay=replay.absolute() if replay is not None else None,
        seed_kernels=tuple(seed_kernels),
        peers=tuple(peers),
    )
    return RunHandle(request, settings, find_workspace(directory))


def resume_request(directory: Path, run_id: str) -> RunHandle:
    """Return the original request of a run to resume. Raises UserError when there is no such run."""
    with existing_archive(directory) as archive:
        record = archive.run(run_id)
    request = OptimizeRequest.model_validate(record.request)
    has_own_target = parse_device(request.device).is_remote and request.target_gpu == Settings().target_gpu
    stored = {
        "device": request.device,
        "target_gpu": None if has_own_target else request.target_gpu,
        "generations": request.generations,
        "proposals": request.proposals,
        "seed": request.seed,
        "python": request.python,
        **request.choices.overrides(),
    }
    settings = load_settings(request.directory, stored)
    return RunHandle(request, settings, find_workspace(directory), run_id=record.run_id)


def summarize(task: Task) -> str:
    """Summarise the task in one line: its tensors, its graph, its direction."""
    sizes = {symbol.name: symbol.captured for symbol in task.symbols}
    tensors = ", ".join(f"{t.name} {t.type.dtype}[{', '.join(t.type.shape)}]" for t in task.tensors)
    symbols = ", ".join(f"{name}={size}" for name, size in sizes.items())
    text = f"{tensors}{f' with {symbols}' if symbols else ''}; {len(task.forward.nodes)} ATen ops"
    return text if task.backward is None else f"{text}, {len(task.backward.nodes)} backward"


def describe_verification(verdict: Verdict) -> str:
    """Describe the device and the test cases of a verdict."""
    cases = verdict.outcome.cases if verdict.outcome.kind == "correct" else ()
    sampled = sum(case.n_blocks_run < case.n_blocks for case in cases)
    shapes = {json.dumps(case.shapes, sort_keys=True) for case in cases}
    over = f"{counted(len(cases), 'case')} over {counted(len(shapes), 'set')} of shapes"
    text = f"{over} on the {verdict.device}, against an fp64 reference"
    return f"{text}; {sampled} of them by sampled blocks" if sampled else text


async def _tuned_key(session: Session, task: Task) -> TunedKey:
    """Return the key of the task's schedules on the GPU that measures, or on the target of estimates."""
    device = await session.gpu_device() if await session.gpu_index() is not None else None
    if device is None:
        return tuned_key(task, session.gpu.name, "estimated")
    return tuned_key(task, device.facts.name, "measured")


def _as_seen_from(out: Path, task: Task, source: TargetSource) -> Task:
    """Return the task with its target relative to the folder of the `.cu`, as in a plan's `task:` line."""
    path, symbol = os.path.relpath(source.file, out), source.symbol
    if source.kind == "robust_kbench":
        path = os.path.relpath(Path(source.file).parent, out)
        symbol = str(source.configuration + 1) if source.configuration else ""
    return task.model_copy(update={"target": f"{path}::{symbol}" if symbol else path})


def _check_unchanged(archive: Archive, run_id: str, task: Task, source: TargetSource) -> None:
    """Require that a resumed run has the same task, to which its verdicts apply."""
    task_json = task.model_dump_json()
    stored = archive.run(run_id).task_json
    if stored is None:
        archive.save_task(run_id, task_json)
    elif stored != task_json:
        raise TargetError(
            "the code has changed since the run began, so its verdicts no longer hold",
            file=source.file,
            line=source.line,
            next_step=f"start a new run: kernel-lsp optimize {source.target}",
        )


def _captured(task: Task, summary: str) -> TaskCaptured:
    return TaskCaptured(
        name=task.name,
        summary=summary,
        n_nodes=len(task.forward.nodes),
        n_nodes_backward=len(task.backward.nodes) if task.backward is not None else 0,
        configurations=tuple(configuration.name for configuration in task.configurations),
        n_uncovered=len(task.uncovered),
        notes=task.notes,
    )


def _plan(task: Task, session: Session, tools: ModelTools | None) -> Program | None:
    """Return the generator's program. Without a rule for the target, None if models can be used instead."""
    try:
        return plan_program(task, gpu=session.gpu)
    except TargetError:
        if tools is None:
            raise
        return None


def _keep(archive: Archive, task: Task, result: SearchResult) -> None:
    """Store a verified kernel for use with other tasks."""
    winner, verdict = result.winner, result.verdict
    if winner is None or verdict is None:
        return
    score = score_us(verdict)
    keep_innovation(
        archive,
        Innovation(
            identity=verdict.program_hash or winner.id,
            task=task.name,
            operators=operators_of(task),
            name=winner.origin.description,
            thought=winner.origin.thought,
            time=f"{score:.4g} us ({score_kind(verdict)})" if score is not None else "no time",
            text=winner.text,
        ),
    )


def _finished(
    run_id: str, result: SearchResult, spending: Spending, files: tuple[str, ...], elapsed_s: float
) -> RunFinished:
    times = result.verdict.times if result.verdict is not None else {}
    return RunFinished(
        run_id=run_id,
        candidate_id=result.winner.id if result.winner is not None else None,
        reason=result.reason,
        n_proposed=result.n_proposed,
        n_built=result.n_built,
        n_correct=result.n_correct,
        comparisons=times,
        recommendation=recommend(times, asked_models=spending.n_calls > 0),
        library_steps=result.verdict.library_steps if result.verdict is not None else (),
        configurations=result.verdict.configurations if result.verdict is not None else (),
        files=files,
        elapsed_s=elapsed_s,
        stopped=result.stopped,
        is_cut_short=result.is_cut_short,
        stages_s=result.verdict.stages_s if result.verdict is not None else {},
        n_model_calls=spending.n_calls,
        n_prompt_tokens=spending.n_prompt_tokens,
        n_reply_tokens=spending.n_reply_tokens,
        cost_usd=spending.cost_usd,
    )
