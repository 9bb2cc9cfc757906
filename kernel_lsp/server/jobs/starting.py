"""Start jobs of the engine for a document: checks, estimates, resumed runs and others."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from lsprotocol import types

from kernel_lsp.config import Settings, find_workspace
from kernel_lsp.engine.messages import Check, EstimateTarget, JobRequest, Optimize, Problem, Resume, RunSummary
from kernel_lsp.server.analysis.analysis_client import Analyses
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.server.documents.places import cells_of, file_at, file_of, is_saved
from kernel_lsp.server.jobs.jobs import Following, Job, new_id
from kernel_lsp.server.jobs.progress import Tracker, WorkDoneProgress
from kernel_lsp.server.protocol.messages import TargetArguments
from kernel_lsp.server.state import State

RESUME = "Resume"
RECENT = timedelta(days=7)
"""Maximum age of a run that is offered on opening. The lens of its target offers older ones."""


def start_job(
    state: State,
    request: JobRequest,
    title: str,
    uri: str,
    path: Path,
    *,
    is_quiet: bool = False,
    symbol: str = "",
    digest: str = "",
    serial: int = 0,
    settings: Settings | None = None,
    following: Following = "",
    run_id: str = "",
) -> str:
    """Start a job and return its id. `run_id` is that of a resumed run, so that it is listed once."""
    job = Job(
        request=request,
        title=title,
        uri=uri,
        workspace=find_workspace(path.parent),
        engine=state.engines.of(path.parent),
        progress=WorkDoneProgress(state.client.protocol, title, is_shown=state.client.features.shows_progress),
        is_quiet=is_quiet,
        symbol=symbol,
        digest=digest,
        serial=serial,
        settings=settings,
        following=following,
        tracker=Tracker(run_id=run_id),
    )
    state.jobs.start(job)
    return job.id


def start_optimize(state: State, about: TargetArguments, *, backward: bool) -> str:
    """Optimize a target as its file has it, or its notebook's cells as edited."""
    document = state.documents.named(about.uri)
    path = file_of(document) if document is not None else file_at(about.uri)
    given = state.documents.named(about.kernel) if about.kernel else None
    request = Optimize(
        id=new_id(),
        directory=path.parent,
        target=f"{path.name}::{about.symbol}",
        backward=backward,
        cells=cells_of(state.notebooks, document) if document is not None else (),
        kernel=file_at(about.kernel) if about.kernel else None,
        kernel_text=given.text if given is not None else None,
        settings=state.settings.overrides(path.parent),
        has_editor_model=state.client.has_editor_model,
    )
    known = text_of_job(state.analyses, document, about.symbol) if document is not None else {"symbol": about.symbol}
    uri = document.uri if document is not None else about.uri
    return start_job(state, request, f"Optimize {about.symbol}", uri, path, **known)


def start_check(state: State, document: Document, *, is_quiet: bool, is_measured: bool = False) -> str:
    """Check a kernel as it is in the editor, on the GPU too where `is_measured`; cancels an earlier running check."""
    path = file_at(document.uri)
    for job in state.jobs:
        if isinstance(job.request, Check) and job.uri == document.uri:
            state.spawn(state.jobs.cancel(job))
    overrides = state.settings.overrides(path.parent)
    device = state.settings_for(path).device
    overrides |= {"device": _measuring(device) if is_measured else _checking(device)}
    request = Check(id=new_id(), directory=path.parent, kernel=path, text=document.text, settings=overrides)
    title = f"{'Measure' if is_measured else 'Check'} {path.name}"
    return start_job(state, request, title, document.uri, path, serial=document.serial, is_quiet=is_quiet)


def start_estimate(state: State, document: Document, symbol: str, *, is_quiet: bool) -> str:
    """Estimate a target in the saved file, or in a notebook's cells as edited. A quiet job does not capture unchanged
    text again."""
    path = file_of(document)
    for job in state.jobs:
        if isinstance(job.request, EstimateTarget) and job.uri == document.uri and job.symbol == symbol:
            return job.id
    about = {**text_of_job(state.analyses, document, symbol), "settings": state.settings_for(path)}
    if document.path is not None and not is_saved(document, path):
        about["digest"] = ""  # the estimate is not of the text in the editor
    captured = state.knowledge.capture(document.uri, symbol)
    is_captured = is_quiet and captured is not None and captured.digest == about["digest"]
    if captured is not None and is_captured:
        about["serial"] = captured.serial
    request = EstimateTarget(
        id=new_id(),
        directory=path.parent,
        target=f"{path.name}::{symbol}",
        cells=cells_of(state.notebooks, document),
        as_captured=is_captured,
        settings=state.settings.overrides(path.parent),
    )
    return start_job(state, request, f"Estimate {symbol}", document.uri, path, **about, is_quiet=is_quiet)


def start_resume(state: State, uri: str, workspace: Path, run_id: str) -> str:
    """Resume a run. A run that goes on already keeps its job, so that it is listed once."""
    newest = next(iter(state.knowledge.runs(workspace)), None)
    run_id = newest.run_id if run_id == "last" and newest is not None else run_id
    running = next((job for job in state.jobs if job.tracker.run_id == run_id), None)
    if running is not None:
        return running.id
    request = Resume(id=new_id(), directory=workspace, run_id=run_id, has_editor_model=state.client.has_editor_model)
    run = state.knowledge.run(run_id)
    title = f"Optimize {run.target} (resumed)" if run is not None else f"Resume {run_id}"
    return start_job(state, request, title, uri, workspace / "file", run_id=run_id if run is not None else "")


def text_of_job(analyses: Analyses, document: Document, symbol: str) -> dict[str, Any]:
    """Return the text that a job refers to: symbol, digest and serial."""
    target = analyses.latest(document).analysis.target(symbol)
    digest = target.digest if target is not None else ""
    return {"symbol": symbol, "digest": digest, "serial": document.serial}


def _checking(device: str) -> str:
    """Select the device of a check. Correctness needs no GPU; one is used only if the user asked for it."""
    return "cpu" if device == "auto" else device


def _measuring(device: str) -> str:
    return device if device.startswith(("cuda", "ssh:", "ray")) else "cuda"


async def wants_to_resume(state: State, message: str) -> bool:
    """Ask the user; False from a client that shows no choices."""
    return await state.client.choose(types.MessageType.Warning, message, RESUME) == RESUME


async def offer_interrupted(state: State, workspace: Path) -> None:
    """Offer the newest run of the workspace, if it was interrupted, or queued when its window closed."""
    runs = state.knowledge.runs(workspace)
    newest = runs[0] if runs else None
    if newest is None or newest.status not in ("interrupted", "queued") or not _is_recent(newest):
        return
    began = "was interrupted" if newest.status == "interrupted" else "had not begun"
    message = f"The run of {newest.target} {began} when its window closed. Finished work is kept."
    if await wants_to_resume(state, message):
        start_resume(state, Path(newest.file).as_uri(), workspace, newest.run_id)


def _is_recent(run: RunSummary) -> bool:
    return datetime.now(UTC) - datetime.fromisoformat(run.started) < RECENT


MAX_RESTARTS = 5
"""Maximum restarts of one job; a person has to examine one that keeps killing its engine."""
PAUSE_S = 0.5
"""Pause before a restart, in seconds, until the dead engine's processes release the workspace."""
RESUMED = " (goes on)"


def goes_on(job: Job, problem: Problem) -> bool:
    """Return True when the job may resume: its engine died, or processes of the dead engine still held the
    workspace."""
    is_passing = problem.kind == "engine_died" or (problem.kind == "busy" and job.n_restarts > 0)
    return is_passing and job.n_restarts < MAX_RESTARTS


async def go_on(state: State, job: Job) -> None:
    """Resume the job's run, or restart it if it had not yet begun, with a new id and progress."""
    title = job.title if job.title.endswith(RESUMED) else job.title + RESUMED
    if not job.is_quiet:
        state.client.inform(f"{job.title}: the engine restarts; finished work is kept.")
    await asyncio.sleep(PAUSE_S)
    run_id = job.tracker.run_id
    request = job.request.model_copy(update={"id": new_id()})
    if run_id:
        has_model = state.client.has_editor_model
        request = Resume(id=new_id(), directory=job.workspace, run_id=run_id, has_editor_model=has_model)
    following = replace(
        job,
        request=request,
        title=title,
        engine=state.engines.of(job.workspace),
        progress=WorkDoneProgress(state.client.protocol, title, is_shown=state.client.features.shows_progress),
        tracker=Tracker(run_id=run_id),
        state="queued",
        n_restarts=job.n_restarts + 1,
    )
    state.jobs.start(following)
