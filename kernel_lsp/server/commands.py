"""Implement `workspace/executeCommand`. A command that starts a job replies with its id before the job begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from kernel_lsp.config import find_workspace
from kernel_lsp.engine.messages import DraftPlan, OptimizeLines, PlanDraft, ProfileKernel
from kernel_lsp.rules.finding import TextEdit, TextRange
from kernel_lsp.server.client import Client
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.server.documents.edits import DocumentEdits, document_edit, line_end
from kernel_lsp.server.documents.places import cells_of, file_at, file_of, is_saved, place_of
from kernel_lsp.server.features.explanations import explanation, rule_place
from kernel_lsp.server.features.reports import show_report, show_result
from kernel_lsp.server.jobs.call_site_edits import revert_everywhere, use_everywhere
from kernel_lsp.server.jobs.inferred_inputs import start_inference
from kernel_lsp.server.jobs.jobs import Following, new_id
from kernel_lsp.server.jobs.starting import start_check, start_estimate, start_job, start_optimize, start_resume
from kernel_lsp.server.jobs.verified_early import use_now
from kernel_lsp.server.protocol import messages as protocol
from kernel_lsp.server.protocol.rpc import structure_strictly
from kernel_lsp.server.state import State

LABEL = "kernel-lsp: add a launch plan"
NOTHING = "no plan drafted: the file has no kernel that writes to memory"
TOP = TextRange(0, 0, 0, 0)


async def write_plan(state: State, document: Document, line: int) -> None:
    """Draft a plan for the kernel at a line and insert it at the top, unless the text has changed meanwhile."""
    serial = document.serial
    reply = await state.engines.of(file_of(document).parent).ask(
        DraftPlan(id=new_id(), file=file_of(document), text=document.text, line=line)
    )
    draft = PlanDraft.model_validate(reply.result).text if reply.result is not None else ""
    if not draft:
        state.client.warn(reply.error.message if reply.error is not None else NOTHING)
    elif document.serial != serial:
        state.client.inform("the text has changed since: no plan was added")
    else:
        end = line_end(document)
        inserted = TextEdit(TOP, draft.replace("\n", end) + end + end)
        edit = document_edit(DocumentEdits(document, (inserted,)), versioned=state.client.features.versioned_edits)
        await state.client.apply(edit, LABEL)


ANALYSIS_WAIT_S, FIRST_ANALYSIS_S = 0.5, 30.0
"""Maximum waits for an analysis, in seconds: one takes some hundredths of a second, the first also the process's
start-up. Without it a target's shapes are not known to be missing."""
UNTRUSTED = "Workspace not trusted: its code does not run. Trust it first."


async def execute(state: State, params: types.ExecuteCommandParams) -> Any:
    """Run a command. Raises JsonRpcInvalidParams for an unknown command or invalid arguments."""
    command = next((known for known in protocol.COMMANDS if known.name == params.command), None)
    if command is None:
        raise JsonRpcInvalidParams(message=f"there is no command {params.command!r}")
    argument = _argument(command, list(params.arguments or ()))
    if isinstance(argument, protocol.TargetArguments):
        await _up_to_date(state, argument.uri)
    return await _HANDLERS[command.name](state, argument)


async def _optimize(state: State, about: protocol.TargetArguments) -> protocol.JobStarted:
    return _start_optimize(state, about, "optimize")


async def _optimize_with_backward(state: State, about: protocol.TargetArguments) -> protocol.JobStarted:
    return _start_optimize(state, about, "optimize_with_backward")


async def _add_shapes(state: State, about: protocol.TargetArguments) -> protocol.JobStarted:
    _allow(state)
    document = _saved(state, about.uri)
    if document is None:
        raise JsonRpcInvalidParams(message=f"the document {about.uri!r} is not open")
    return protocol.JobStarted(start_inference(state, document, about.symbol))


async def _up_to_date(state: State, uri: str) -> None:
    """Wait briefly for the analysis of the current text, so that the result is attributed to it."""
    document = state.documents.named(uri)
    if document is not None:
        is_new = state.analyses.latest(document).asked_serial < 0
        await state.analyses.current(document, FIRST_ANALYSIS_S if is_new else ANALYSIS_WAIT_S)


def _start_optimize(state: State, about: protocol.TargetArguments, following: Following) -> protocol.JobStarted:
    """Start a run; for a target without shapes, infer them first."""
    _allow(state)
    document = _saved(state, about.uri)
    target = state.analyses.latest(document).analysis.target(about.symbol) if document is not None else None
    if document is not None and target is not None and not target.inputs and not about.kernel:
        return protocol.JobStarted(start_inference(state, document, about.symbol, following))
    backward = following == "optimize_with_backward"
    return protocol.JobStarted(start_optimize(state, about, backward=backward))


def _saved(state: State, uri: str) -> Document | None:
    """Return the open document, which must be saved unless it is a notebook's cell; None when it is not open."""
    document = state.documents.named(uri)
    if document is not None and not cells_of(state.notebooks, document):
        _check_saved(state.client, document, file_of(document))
    return document


async def _optimize_lines(state: State, about: protocol.LinesArguments) -> protocol.JobStarted:
    _allow(state)
    path = file_at(about.uri)
    document = state.documents.named(about.uri)
    if document is None:
        raise JsonRpcInvalidParams(message=f"the document {about.uri!r} is not open")
    _check_saved(state.client, document, path)
    first, last = about.first_line + 1, about.last_line + 1
    request = OptimizeLines(
        id=new_id(),
        directory=path.parent,
        target=f"{path.name}::{about.symbol}",
        first_line=first,
        last_line=last,
        settings=state.settings.overrides(path.parent),
        has_editor_model=state.client.has_editor_model,
    )
    title = f"Optimize lines {first} to {last} of {about.symbol}"
    return protocol.JobStarted(start_job(state, request, title, document.uri, path, serial=document.serial))


async def _check(state: State, about: protocol.DocumentArguments) -> protocol.JobStarted:
    return protocol.JobStarted(start_check(state, _kernel(state, about), is_quiet=False))


async def _measure(state: State, about: protocol.DocumentArguments) -> protocol.JobStarted:
    document = _kernel(state, about)
    if not state.has_gpu:
        raise JsonRpcInvalidParams(message="this machine has no GPU to measure on")
    return protocol.JobStarted(start_check(state, document, is_quiet=False, is_measured=True))


async def _profile(state: State, about: protocol.DocumentArguments) -> protocol.JobStarted:
    document = _kernel(state, about)
    path = file_at(document.uri)
    overrides = state.settings.overrides(path.parent)
    request = ProfileKernel(id=new_id(), directory=path.parent, kernel=path, text=document.text, settings=overrides)
    job = start_job(state, request, f"Profile {path.name}", document.uri, path, serial=document.serial)
    return protocol.JobStarted(job)


async def _add_plan(state: State, about: protocol.PlanArguments) -> None:
    document = state.documents.named(about.uri)
    if document is None or document.language != "cuda":
        raise JsonRpcInvalidParams(message=f"no CUDA document {about.uri!r} is open")
    state.spawn(write_plan(state, document, about.line))


def _kernel(state: State, about: protocol.DocumentArguments) -> Document:
    """Return the open kernel file of a command. Raises JsonRpcInvalidParams, also in an untrusted workspace."""
    _allow(state)
    document = state.documents.named(about.uri)
    if document is None or document.language != "cuda":
        raise JsonRpcInvalidParams(message=f"no CUDA document {about.uri!r} is open")
    return document


async def _estimate(state: State, about: protocol.TargetArguments) -> protocol.JobStarted:
    _allow(state)
    document = state.documents.named(about.uri)
    if document is None:
        raise JsonRpcInvalidParams(message=f"the document {about.uri!r} is not open")
    return protocol.JobStarted(start_estimate(state, document, about.symbol, is_quiet=False))


async def _cancel(state: State, about: protocol.JobArguments) -> protocol.JobStarted:
    job = state.jobs.get(about.job) if about.job is not None else state.jobs.newest()
    if job is None:
        raise JsonRpcInvalidParams(message="no such job is under way")
    state.spawn(state.jobs.cancel(job))
    return protocol.JobStarted(job.id)


async def _use_now(state: State, about: protocol.JobArguments) -> protocol.JobStarted:
    return protocol.JobStarted(use_now(state, about.job))


async def _resume(state: State, about: protocol.RunArguments) -> protocol.JobStarted:
    _allow(state)
    workspace = find_workspace(place_of(state.documents, about.uri).parent)
    return protocol.JobStarted(start_resume(state, about.uri, workspace, about.run))


async def _show_kernel(state: State, about: protocol.RunArguments) -> None:
    state.spawn(show_result(state, about, beside=False))


async def _compare(state: State, about: protocol.RunArguments) -> None:
    state.spawn(show_result(state, about, beside=True))


async def _report(state: State, about: protocol.RunArguments) -> None:
    state.spawn(show_report(state, about))


async def _use_everywhere(state: State, about: protocol.TargetArguments) -> None:
    state.spawn(use_everywhere(state, file_at(about.uri), about.symbol))


async def _revert_everywhere(state: State, about: protocol.TargetArguments) -> None:
    state.spawn(revert_everywhere(state, file_at(about.uri), about.symbol))


async def _explain(state: State, about: protocol.ExplainArguments) -> str:
    text = await asyncio.to_thread(explanation, about.code)
    state.spawn(_show_explanation(state.client, about.code, text))
    return text


async def _show_explanation(client: Client, code: str, text: str) -> None:
    """Open the rule's page at the rule; show the text of other findings, and where no page can be opened."""
    found = await asyncio.to_thread(rule_place, code)
    if found is None or not await client.show(*found):
        client.inform(text)


_HANDLERS: dict[str, Callable[[State, Any], Any]] = {
    "kernelLsp.optimize": _optimize,
    "kernelLsp.optimizeWithBackward": _optimize_with_backward,
    "kernelLsp.optimizeLines": _optimize_lines,
    "kernelLsp.addShapes": _add_shapes,
    "kernelLsp.check": _check,
    "kernelLsp.measure": _measure,
    "kernelLsp.addPlan": _add_plan,
    "kernelLsp.profile": _profile,
    "kernelLsp.estimate": _estimate,
    "kernelLsp.cancel": _cancel,
    "kernelLsp.useNow": _use_now,
    "kernelLsp.resume": _resume,
    "kernelLsp.showKernel": _show_kernel,
    "kernelLsp.compare": _compare,
    "kernelLsp.report": _report,
    "kernelLsp.useEverywhere": _use_everywhere,
    "kernelLsp.revertEverywhere": _revert_everywhere,
    "kernelLsp.explain": _explain,
}


def _allow(state: State) -> None:
    """Raise JsonRpcInvalidParams in an untrusted workspace."""
    if not state.trust.allows_commands:
        state.client.warn(UNTRUSTED)
        raise JsonRpcInvalidParams(message=UNTRUSTED)
    state.trust.has_been_asked = True


def _check_saved(client: Client, document: Document, path: Path) -> None:
    """Require a saved file: the worker imports it from disk, so unsaved code would give a kernel for other code than
    shown."""
    if not is_saved(document, path):
        message = f"Save {path.name} first: the file on disk is what gets optimized."
        client.warn(message)
        raise JsonRpcInvalidParams(message=message)


def _argument(command: protocol.Command, arguments: list[Any]) -> Any:
    try:
        if len(arguments) > 1:
            raise TypeError("one object is expected")
        return structure_strictly(arguments[0] if arguments else {}, command.argument)
    except Exception as error:  # converters raise arbitrary exceptions on malformed values
        name = command.argument.__name__
        raise JsonRpcInvalidParams(message=f"{command.name} takes one {name}: {error}") from None
