"""Offer to go on with runs that did not finish."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lsprotocol import types

from kernel_lsp.engine.messages import Problem, Resume, RunSummary
from kernel_lsp.server.jobs.jobs import Job, new_id
from kernel_lsp.server.jobs.progress import Tracker, WorkDoneProgress
from kernel_lsp.server.jobs.starting import start_resume
from kernel_lsp.server.language_server import KernelLanguageServer
from kernel_lsp.server.protocol.rpc import ClientRefused

RESUME = "Resume"
RECENT = timedelta(days=7)
"""Maximum age of a run that is offered on opening. The lens of its target offers older ones."""


async def wants_to_resume(server: KernelLanguageServer, message: str) -> bool:
    """Ask the user; return False if the client refuses to."""
    actions = [types.MessageActionItem(title=RESUME)]
    params = types.ShowMessageRequestParams(type=types.MessageType.Warning, message=message, actions=actions)
    try:
        chosen = await server.window_show_message_request_async(params)
    except ClientRefused:
        return False
    return chosen is not None and chosen.title == RESUME


async def offer_interrupted(server: KernelLanguageServer, workspace: Path) -> None:
    """Offer the newest run of the workspace, if it was interrupted, or queued when its window closed."""
    runs = server.knowledge.runs(workspace)
    newest = runs[0] if runs else None
    if newest is None or newest.status not in ("interrupted", "queued") or not _is_recent(newest):
        return
    began = "was interrupted" if newest.status == "interrupted" else "had not begun"
    message = f"The run of {newest.target} {began} when its window closed. Finished work is kept."
    if await wants_to_resume(server, message):
        start_resume(server, Path(newest.file).as_uri(), workspace, newest.run_id)


# --- below


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


async def go_on(server: KernelLanguageServer, job: Job) -> None:
    """Resume the job's run, or restart it if it had not yet begun, with a new id and progress."""
    title = job.title if job.title.endswith(RESUMED) else job.title + RESUMED
    if not job.is_quiet:
        server.say(types.MessageType.Info, f"{job.title}: the engine restarts; finished work is kept.")
    await asyncio.sleep(PAUSE_S)
    run_id = job.tracker.run_id
    request = job.request.model_copy(update={"id": new_id()})
    if run_id:
        has_model = server.has_editor_model
        request = Resume(id=new_id(), directory=job.workspace, run_id=run_id, has_editor_model=has_model)
    following = replace(
        job,
        request=request,
        title=title,
        engine=server.engines.of(job.workspace),
        progress=WorkDoneProgress(server.protocol, title, is_shown=server.client.shows_progress),
        tracker=Tracker(run_id=run_id),
        state="queued",
        n_restarts=job.n_restarts + 1,
    )
    server.jobs.start(following)
