"""Process the end of a job: store its result, offer an edit, or show a message."""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from lsprotocol import types

from kernel_lsp.config import FOLDER_NAME, Settings
from kernel_lsp.core.verdict import Unsupported, Verdict
from kernel_lsp.core.words import counted
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
from kernel_lsp.server.client import Client
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.server.documents.edits import (
    RESULTS_FOLDER,
    DocumentEdits,
    edits_of_lines,
    propose,
    text_on_disk,
    write_aside,
)
from kernel_lsp.server.documents.places import n_lines_above
from kernel_lsp.server.features.formatting import check_text, failure_text, result_text
from kernel_lsp.server.jobs.call_site_edits import offer_call_sites
from kernel_lsp.server.jobs.inferred_inputs import inference_failed, inputs_inferred
from kernel_lsp.server.jobs.jobs import Job
from kernel_lsp.server.jobs.starting import go_on, goes_on, start_estimate, start_resume, wants_to_resume
from kernel_lsp.server.knowledge import KnownCapture, KnownCheck, KnownEstimate, KnownProfile, NoEstimate
from kernel_lsp.server.settings import are_alike
from kernel_lsp.server.state import State

ADVICE_MARKS = {"apply": "", "measure": "; measure first", "keep": "; keep PyTorch"}
"""Ends of an edit's description by advice. With a mark, a client does not apply by default."""

logger = logging.getLogger(__name__)


async def job_ended(state: State, job: Job, reply: Reply) -> None:
    """Process the engine's reply to a job."""
    if isinstance(job.request, EstimateTarget) and reply.error is None:
        state.knowledge.learn_capture(job.uri, job.symbol, KnownCapture(job.digest, job.serial))
    if _is_outdated(state, job) and (reply.error is None or reply.error.kind != "cancelled"):
        _estimate_again(state, job)
        return
    if reply.error is not None:
        await _failed(state, job, reply.error)
        return
    assert reply.result is not None
    match job.request:
        case Check():
            _checked(state, job, CheckResult.model_validate(reply.result))
        case ProfileKernel():
            _profiled(state, job, ProfileResult.model_validate(reply.result))
        case EstimateTarget():
            _estimated(state, job, TargetEstimate.model_validate(reply.result))
        case InferInputs():
            await inputs_inferred(state, job, InferredInputs.model_validate(reply.result))
        case Optimize() | OptimizeLines() | Resume():
            await _ran(state, job, RunResult.model_validate(reply.result))


async def present(state: State, workspace: Path, result: RunResult, since_serial: int | None = None) -> None:
    """Offer a run's files in the best form that the client supports; for optimized lines, also the call that replaces
    them. `since_serial` is the document's at the start of the run; without it the lines must be unchanged."""
    summary = result.summary
    label = f"kernel-lsp: {summary.name}, {result_text(summary)}"
    folder = workspace.joinpath(FOLDER_NAME, *RESULTS_FOLDER, summary.run_id)
    changed = _changed_lines(state, result, since_serial)
    action = "apply" if summary.recommendation is None else summary.recommendation.action
    keeps = action == "keep"
    named = f"run {summary.run_id}{ADVICE_MARKS[action]}"
    proposal = propose(result.files, label, state.documents, state.client.features, changed, named)
    if changed is not None and not state.client.features.confirms_edits:
        await _show_diff(state.client, changed, folder)
    reason = proposal.reason
    if keeps and not state.client.features.confirms_edits:
        reason = "PyTorch is recommended"
    elif proposal.edit is not None:
        is_applied = await _offer(state, proposal.edit, label, result)
        if is_applied and not state.client.features.confirms_edits:
            state.client.inform(_created_text(result))
        elif is_applied and result.lines is None and not keeps:
            state.spawn(offer_call_sites(state, result))
        if is_applied or state.client.features.confirms_edits:
            return
        reason = "the editor did not create the files"
    if proposal.is_nothing_new:
        state.client.inform(f"{label}. {proposal.reason}: {summary.out}")
        return
    paths = write_aside(result.files, folder)
    text = f"{label}. {reason}, so the result is in {folder}; its place is {summary.out}."
    state.client.inform(text)
    await state.client.show(paths[0])


def _created_text(result: RunResult) -> str:
    """Return the message after an edit that the user did not see: its files, whether to save them, and the advice."""
    n_unsaved = sum(text_on_disk(file.path) != file.text for file in result.files)
    files = f"{counted(len(result.files), 'new file')} in {result.summary.out.name}"
    remedy = f" ({n_unsaved} unsaved: save all)" if n_unsaved else ""
    return f"kernel-lsp: {result.summary.name}: {files}{remedy}; {result_text(result.summary)}"


def _changed_lines(state: State, result: RunResult, since_serial: int | None) -> DocumentEdits | None:
    """Return None if no lines were optimized or they have changed since."""
    document = state.documents.at(Path(result.summary.file))
    if result.lines is None or document is None:
        return None
    serial = document.serial if since_serial is None else since_serial
    edits = edits_of_lines(document, result.lines, result.summary, serial)
    if not edits:
        text = f"{result.lines.name}: the lines have changed since, so they are not replaced by a call."
        state.client.inform(text)
        return None
    return DocumentEdits(document, edits)


async def _show_diff(client: Client, changed: DocumentEdits, folder: Path) -> None:
    """Show the diff in an editor that cannot preview an edit."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{Path(changed.document.uri).name}.diff"
    path.write_text(changed.diff(), encoding="utf-8")
    if not await client.show(path):
        client.inform(f"The call that replaces the lines is in {path}")


def _is_outdated(state: State, job: Job) -> bool:
    """Return True when the settings that the result depends on, such as the GPU, have changed."""
    document = state.documents.get(job.uri)
    if job.settings is None or document is None:
        return False
    return not are_alike(job.settings, state.settings_for(document.file))


def _estimate_again(state: State, job: Job) -> None:
    """Estimate again with the current settings, where that is allowed."""
    document = state.documents.get(job.uri)
    if document is not None and state.trust.allows_commands:
        start_estimate(state, document, job.symbol, is_quiet=job.is_quiet)


def _checked(state: State, job: Job, result: CheckResult) -> None:
    document = state.documents.get(job.uri)
    if document is not None:
        state.knowledge.learn_check(job.uri, KnownCheck(result.verdict, job.serial))
        state.knowledge_changed(document)
    if not job.is_quiet:
        kind = types.MessageType.Info if result.verdict.is_correct else types.MessageType.Warning
        state.client.say(kind, f"{result.kernel.name}: {check_text(result.verdict)}")


def _not_checked(state: State, job: Job, problem: Problem) -> None:
    """Record why a saved kernel could not be checked, at the location of its findings."""
    verdict = Verdict(candidate_id="", device="", outcome=Unsupported(message=_with_next_step(problem)))
    state.knowledge.learn_check(job.uri, KnownCheck(verdict, job.serial))
    state.knowledge_changed(state.documents.get(job.uri))


def _with_next_step(problem: Problem) -> str:
    return ". Next: ".join(filter(None, (problem.message, problem.next_step)))


def _profiled(state: State, job: Job, result: ProfileResult) -> None:
    document = state.documents.get(job.uri)
    if result.report is None:
        reason = failure_text(result.outcome) if result.outcome is not None else "no reason was given"
        state.client.warn(f"{result.kernel.name}: no profile: {reason}")
        return
    if document is not None:
        state.knowledge.learn_profile(job.uri, KnownProfile(result.report, job.serial))
        state.knowledge_changed(document)
    state.client.inform(f"{result.kernel.name}: {result.report.summary()}")


def _estimated(state: State, job: Job, estimate: TargetEstimate) -> None:
    document = state.documents.get(job.uri)
    if document is not None:
        estimate = _in_document(estimate, document, n_lines_above(state.notebooks.above(document)))
        known = KnownEstimate(estimate, job.digest, job.serial, job.settings or Settings())
        state.knowledge.learn_estimate(job.uri, job.symbol, known)
        state.knowledge_changed(document)


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


async def _ran(state: State, job: Job, result: RunResult) -> None:
    summary = result.summary
    state.knowledge.learn_run(job.workspace, summary)
    state.knowledge_changed(None)
    if summary.candidate_id is None:
        state.client.warn(f"{summary.target}: no verified kernel: {summary.reason}")
    elif result.problem:
        state.client.warn(f"{summary.target}: {result.problem}")
    else:
        if not Path(summary.file).exists():
            state.client.warn(f"{summary.file}, the source of {summary.name}, no longer exists.")
        await present(state, job.workspace, result, None if isinstance(job.request, Resume) else job.serial)


async def _failed(state: State, job: Job, problem: Problem) -> None:
    if problem.kind == "cancelled":
        return
    if goes_on(job, problem):
        state.spawn(go_on(state, job))
        return
    if isinstance(job.request, EstimateTarget):
        why = NoEstimate(_with_next_step(problem), job.digest, job.settings or Settings())
        state.knowledge.learn_no_estimate(job.uri, job.symbol, why)
    if isinstance(job.request, Check) and problem.kind == "user":
        _not_checked(state, job, problem)
    if job.is_quiet:
        if problem.kind == "environment":
            state.client.warn_once(f"{_with_next_step(problem)}.")
        logger.info("%s: %s", job.title, problem.message)
        return
    if isinstance(job.request, InferInputs):
        await inference_failed(state, job, problem)
        return
    run_id = job.tracker.run_id
    if problem.kind in ("died", "engine_died") and run_id:
        await _offer_resume(state, job, problem, run_id)
        return
    place = f"{problem.file}:{problem.line}: " if problem.file and problem.line else ""
    next_step = f" Next: {problem.next_step}" if problem.next_step else ""
    state.client.say(types.MessageType.Error, f"{job.title}: {place}{problem.message}.{next_step}")


async def _offer_resume(state: State, job: Job, problem: Problem, run_id: str) -> None:
    message = f"{job.title}: {problem.message}. Finished work is kept: run {run_id} can be resumed."
    if await wants_to_resume(state, message):
        start_resume(state, job.uri, job.workspace, run_id)


async def _offer(state: State, edit: types.WorkspaceEdit, label: str, result: RunResult) -> bool:
    """Apply the edit. Without confirmation the folders are created first: Neovim 0.7 creates files but no folders."""
    if state.client.features.confirms_edits:
        return await state.client.apply(edit, label)
    for file in result.files:
        with suppress(OSError):
            file.path.parent.mkdir(parents=True, exist_ok=True)
    if not await state.client.apply(edit, label):
        return False
    await state.client.show(result.files[0].path)
    return True
