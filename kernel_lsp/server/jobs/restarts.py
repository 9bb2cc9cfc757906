"""Resume jobs after their engine died."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from lsprotocol import types

from kernel_lsp.engine.messages import Problem, Resume
from kernel_lsp.server.documents.tracking import Tracker
from kernel_lsp.server.jobs.jobs import Job, new_id
from kernel_lsp.server.jobs.progress import WorkDoneProgress
from kernel_lsp.server.language_server import KernelLanguageServer

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
