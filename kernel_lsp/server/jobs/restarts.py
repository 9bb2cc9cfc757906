"""What was under way in an engine that ended by itself goes on in the next one."""

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
"""Of one job. What ends the engine again and again is for a person to look at."""
PAUSE_S = 0.5
"""Until the dead engine's processes are gone, which hold the workspace."""
RESUMED = " (goes on)"


def goes_on(job: Job, problem: Problem) -> bool:
    """Whether the job may go on by itself: its engine died, or the dead one's processes were still there."""
    is_passing = problem.kind == "engine_died" or (problem.kind == "busy" and job.n_restarts > 0)
    return is_passing and job.n_restarts < MAX_RESTARTS


async def go_on(server: KernelLanguageServer, job: Job) -> None:
    """Resume the job's run, or begin it again where it had not got that far, under an id and a progress of its own."""
    title = job.title if job.title.endswith(RESUMED) else job.title + RESUMED
    if not job.is_quiet:
        server.say(types.MessageType.Info, f"{job.title}: the engine is started again, and what had finished is kept.")
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
