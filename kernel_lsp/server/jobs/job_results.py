"""Process the end of a job: store its result, offer an edit, or show a message."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lsprotocol import types

from kernel_lsp.config import FOLDER_NAME, Settings
from kernel_lsp.core.verdict import Unsupported, Verdict
from kernel_lsp.engine.messages import (
    Check,
    CheckResult,
    EstimateTarget,
    InferInputs,
    InferredInputs,
    Optimize,
    OptimizeLines,
    Problem,
    ProfileKernel,
    ProfileResult,
    Reply,
    Resume,
    RunResult,
    TargetEstimate,
)
from kernel_lsp.server.documents.documents import Document, Documents
from kernel_lsp.server.documents.edits import RESULTS_FOLDER, DocumentEdits, edits_of_lines, propose, write_aside
from kernel_lsp.server.documents.places import n_lines_above
from kernel_lsp.server.features.formatting import check_text, failure_text, result_text
from kernel_lsp.server.jobs.call_sites import offer_call_sites
from kernel_lsp.server.jobs.inferred_inputs import inference_failed, inputs_inferred
from kernel_lsp.server.jobs.jobs import Job
from kernel_lsp.server.jobs.starting import go_on, goes_on, start_estimate, start_resume, wants_to_resume
from kernel_lsp.server.knowledge import Knowledge, KnownCapture, KnownCheck, KnownEstimate, KnownProfile, NoEstimate
from kernel_lsp.server.language_server import KernelLanguageServer, Say, Show
from kernel_lsp.server.settings import are_alike

KEEP_MARK = "; keep PyTorch"
"""Mark in the description of an edit that should not be applied by default."""

logger = logging.getLogger(__name__)


async def job_ended(server: KernelLanguageServer, job: Job, reply: Reply) -> None:
    """Process the engine's reply to a job."""
    if isinstance(job.request, EstimateTarget) and reply.error is None:
        server.knowledge.learn_capture(job.uri, job.symbol, KnownCapture(job.digest, job.serial))
    if _is_outdated(server.documents, server.settings_for, job) and (
        reply.error is None or reply.error.kind != "cancelled"
    ):
        _estimate_again(server, job)
        return
    if reply.error is not None:
        await _failed(server, job, reply.error)
        return
    assert reply.result is not None
    match job.request:
        case Check():
            _checked(server, job, CheckResult.model_validate(reply.result))
        case ProfileKernel():
            _profiled(server, job, ProfileResult.model_validate(reply.result))
        case EstimateTarget():
            _estimated(server, job, TargetEstimate.model_validate(reply.result))
        case InferInputs():
            await inputs_inferred(server, job, InferredInputs.model_validate(reply.result))
        case Optimize() | OptimizeLines() | Resume():
            await _ran(server, job, RunResult.model_validate(reply.result))


async def present(
    server: KernelLanguageServer, workspace: Path, result: RunResult, since_serial: int | None = None
) -> None:
    """Offer a run's files in the best form that the client supports; for optimized lines, also the call that replaces
    them. `since_serial` is the document's at the start of the run; without it the lines must be unchanged."""
    summary = result.summary
    label = f"kernel-lsp: {summary.name}, {result_text(summary)}"
    folder = workspace.joinpath(FOLDER_NAME, *RESULTS_FOLDER, summary.run_id)
    changed = _changed_lines(server.documents, server.say, result, since_serial)
    keeps = summary.recommendation is not None and summary.recommendation.action == "keep"
    named = f"run {summary.run_id}" + (KEEP_MARK if keeps else "")
    proposal = propose(result.files, label, server.documents, server.client, changed, named)
    if changed is not None and not server.client.confirms_edits:
        await _show_diff(server.say, server.show, changed, folder)
    reason = proposal.reason
    if keeps and not server.client.confirms_edits:
        reason = "PyTorch is recommended"
    elif proposal.edit is not None:
        is_applied = await _offer(server, proposal.edit, label, result)
        if is_applied and result.lines is None and not keeps:
            server.spawn(offer_call_sites(server, result))
        if is_applied or server.client.confirms_edits:
            return
        reason = "the editor did not create the files"
    if proposal.is_nothing_new:
        server.say(types.MessageType.Info, f"{label}. {proposal.reason}: {summary.out}")
        return
    paths = write_aside(result.files, folder)
    text = f"{label}. {reason}, so the result is in {folder}; its place is {summary.out}."
    server.say(types.MessageType.Info, text)
    await server.show(paths[0])


def _changed_lines(documents: Documents, say: Say, result: RunResult, since_serial: int | None) -> DocumentEdits | None:
    """Return None if no lines were optimized or they have changed since."""
    document = documents.at(Path(result.summary.file))
    if result.lines is None or document is None:
        return None
    serial = document.serial if since_serial is None else since_serial
    edits = edits_of_lines(document, result.lines, result.summary, serial)
    if not edits:
        text = f"{result.lines.name}: the lines have changed since, so they are not replaced by a call."
        say(types.MessageType.Info, text)
        return None
    return DocumentEdits(document, edits)


async def _show_diff(say: Say, show: Show, changed: DocumentEdits, folder: Path) -> None:
    """Show the diff in an editor that cannot preview an edit."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{Path(changed.document.uri).name}.diff"
    path.write_text(changed.diff(), encoding="utf-8")
    if not await show(path):
        say(types.MessageType.Info, f"The call that replaces the lines is in {path}")


# --- below: ends


def _is_outdated(documents: Documents, settings_for: Callable[[Path | None], Settings], job: Job) -> bool:
    """Return True when the settings that the result depends on, such as the GPU, have changed."""
    document = documents.get(job.uri)
    if job.settings is None or document is None:
        return False
    return not are_alike(job.settings, settings_for(document.file))


def _estimate_again(server: KernelLanguageServer, job: Job) -> None:
    """Estimate again with the current settings, where that is allowed."""
    document = server.documents.get(job.uri)
    if document is not None and server.trust.allows_commands:
        start_estimate(server, document, job.symbol, is_quiet=job.is_quiet)


def _checked(server: KernelLanguageServer, job: Job, result: CheckResult) -> None:
    document = server.documents.get(job.uri)
    if document is not None:
        server.knowledge.learn_check(job.uri, KnownCheck(result.verdict, job.serial))
        server.knowledge_changed(document)
    if not job.is_quiet:
        kind = types.MessageType.Info if result.verdict.is_correct else types.MessageType.Warning
        server.say(kind, f"{result.kernel.name}: {check_text(result.verdict)}")


def _not_checked(
    documents: Documents,
    knowledge: Knowledge,
    knowledge_changed: Callable[[Document | None], None],
    job: Job,
    problem: Problem,
) -> None:
    """Record why a saved kernel could not be checked, at the location of its findings."""
    verdict = Verdict(candidate_id="", device="", outcome=Unsupported(message=_with_next_step(problem)))
    knowledge.learn_check(job.uri, KnownCheck(verdict, job.serial))
    knowledge_changed(documents.get(job.uri))


def _with_next_step(problem: Problem) -> str:
    return ". Next: ".join(filter(None, (problem.message, problem.next_step)))


def _profiled(server: KernelLanguageServer, job: Job, result: ProfileResult) -> None:
    document = server.documents.get(job.uri)
    if result.report is None:
        reason = failure_text(result.outcome) if result.outcome is not None else "no reason was given"
        server.say(types.MessageType.Warning, f"{result.kernel.name}: no profile: {reason}")
        return
    if document is not None:
        server.knowledge.learn_profile(job.uri, KnownProfile(result.report, job.serial))
        server.knowledge_changed(document)
    server.say(types.MessageType.Info, f"{result.kernel.name}: {result.report.summary()}")


def _estimated(server: KernelLanguageServer, job: Job, estimate: TargetEstimate) -> None:
    document = server.documents.get(job.uri)
    if document is not None:
        estimate = _in_document(estimate, document, n_lines_above(server.notebooks.above(document)))
        known = KnownEstimate(estimate, job.digest, job.serial, job.settings or Settings())
        server.knowledge.learn_estimate(job.uri, job.symbol, known)
        server.knowledge_changed(document)


def _in_document(estimate: TargetEstimate, document: Document, n_above: int) -> TargetEstimate:
    """Keep the lines of this notebook cell, renumbered from its first line."""
    if document.path is not None:
        return estimate
    lines = [
        line.model_copy(update={"file": document.name, "line": line.line - n_above})
        for line in estimate.lines
        if line.line > n_above
    ]
    return estimate.model_copy(update={"lines": tuple(lines)})


async def _ran(server: KernelLanguageServer, job: Job, result: RunResult) -> None:
    summary = result.summary
    if not summary.digest:
        summary = summary.model_copy(update={"digest": job.digest})
    server.knowledge.learn_run(job.workspace, summary)
    server.knowledge_changed(None)
    if summary.candidate_id is None:
        server.say(types.MessageType.Warning, f"{summary.target}: no verified kernel: {summary.reason}")
    elif result.problem:
        server.say(types.MessageType.Warning, f"{summary.target}: {result.problem}")
    else:
        if not Path(summary.file).exists():
            server.say(types.MessageType.Warning, f"{summary.file}, the source of {summary.name}, no longer exists.")
        await present(server, job.workspace, result, None if isinstance(job.request, Resume) else job.serial)


async def _failed(server: KernelLanguageServer, job: Job, problem: Problem) -> None:
    if problem.kind == "cancelled":
        return
    if goes_on(job, problem):
        server.spawn(go_on(server, job))
        return
    if isinstance(job.request, EstimateTarget):
        why = NoEstimate(_with_next_step(problem), job.digest, job.settings or Settings())
        server.knowledge.learn_no_estimate(job.uri, job.symbol, why)
    if isinstance(job.request, Check) and problem.kind == "user":
        _not_checked(server.documents, server.knowledge, server.knowledge_changed, job, problem)
    if job.is_quiet:
        if problem.kind == "environment":
            server.say_once(types.MessageType.Warning, f"{_with_next_step(problem)}.")
        logger.info("%s: %s", job.title, problem.message)
        return
    if isinstance(job.request, InferInputs):
        await inference_failed(server, job, problem)
        return
    run_id = job.tracker.run_id
    if problem.kind in ("died", "engine_died") and run_id:
        await _offer_resume(server, job, problem, run_id)
        return
    place = f"{problem.file}:{problem.line}: " if problem.file and problem.line else ""
    next_step = f" Next: {problem.next_step}" if problem.next_step else ""
    server.say(types.MessageType.Error, f"{job.title}: {place}{problem.message}.{next_step}")


async def _offer_resume(server: KernelLanguageServer, job: Job, problem: Problem, run_id: str) -> None:
    message = f"{job.title}: {problem.message}. Finished work is kept: run {run_id} can be resumed."
    if await wants_to_resume(server, message):
        start_resume(server, job.uri, job.workspace, run_id)


async def _offer(server: KernelLanguageServer, edit: types.WorkspaceEdit, label: str, result: RunResult) -> bool:
    """Apply the edit. Without confirmation the folders are created first: Neovim 0.7 creates files but no folders."""
    if server.client.confirms_edits:
        return await server.apply(edit, label)
    for file in result.files:
        with suppress(OSError):
            file.path.parent.mkdir(parents=True, exist_ok=True)
    if not await server.apply(edit, label):
        return False
    await server.show(result.files[0].path)
    return True
