"""Use a kernel that is verified while its run goes on: the search ends with it, or the run's result is applied."""

from __future__ import annotations

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from kernel_lsp.core.event import CandidateVerified
from kernel_lsp.engine.messages import GetResult, RunResult, TakeVerified
from kernel_lsp.server.features.formatting import time_text
from kernel_lsp.server.jobs.job_results import present
from kernel_lsp.server.jobs.jobs import Job, new_id
from kernel_lsp.server.knowledge import VerifiedRun
from kernel_lsp.server.state import State

USE_NOW = "Use it now"
NONE_YET = "no run has a verified kernel yet"


async def verified_early(state: State, job: Job, verified: CandidateVerified) -> None:
    """Note a run's verified kernel, for lenses and code actions; ask an editor that shows choices beside the work."""
    time = f"{time_text(verified.score_us)}, {verified.score_kind}"
    time += f"; {verified.advice}" if verified.advice else ""
    symbol = job.symbol or job.title
    run = VerifiedRun(job.id, job.tracker.run_id, job.workspace, job.uri, symbol, time)
    state.knowledge.learn_verified(run)
    state.knowledge_changed(None)
    if not state.client.features.confirms_edits:
        return
    text = f"{symbol}: a kernel is verified ({time}). The search goes on for a faster one."
    if await state.client.choose(types.MessageType.Info, text, USE_NOW) == USE_NOW:
        await _use(state, run)


def use_now(state: State, job: str | None) -> str:
    """Use the verified kernel of a job, by default of the newest that has one; return the job's id. Raises
    JsonRpcInvalidParams without any."""
    run = state.knowledge.verified(job)
    if run is None:
        raise JsonRpcInvalidParams(message=NONE_YET)
    state.spawn(_use(state, run))
    return run.job


async def _use(state: State, run: VerifiedRun) -> None:
    """End the search of a running run, which then offers its result; offer the result of an ended run."""
    if state.jobs.get(run.job) is not None:
        await state.engines.of(run.workspace).ask(TakeVerified(id=new_id(), job=run.job))
        return
    request = GetResult(id=new_id(), directory=run.workspace, run_id=run.run_id)
    reply = await state.engines.of(run.workspace).ask(request)
    if reply.result is None:
        why = reply.error.message if reply.error is not None else "no reply"
        state.client.warn(f"{run.symbol}: the run has ended, and its result cannot be read: {why}")
        return
    result = RunResult.model_validate(reply.result)
    if result.summary.candidate_id is None:
        why = result.summary.reason or result.summary.status
        state.client.warn(f"{run.symbol}: the run has ended without a kernel: {why}")
    elif result.problem:
        state.client.warn(f"{run.symbol}: {result.problem}")
    else:
        await present(state, run.workspace, result)
