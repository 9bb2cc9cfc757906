"""Handle each message of the protocol. Handlers are short: work runs in other processes, and replies are cached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from kernel_lsp.config import FOLDER_NAME
from kernel_lsp.engine.messages import GetMachineCode, MachineCode
from kernel_lsp.server.analysis.analysis_client import Analyses
from kernel_lsp.server.analysis.analysis_types import Analysis
from kernel_lsp.server.commands import execute
from kernel_lsp.server.documents.documents import Document, path_of
from kernel_lsp.server.documents.edits import change_of
from kernel_lsp.server.documents.places import file_of
from kernel_lsp.server.features.code_actions import CodeActions
from kernel_lsp.server.features.code_lens import cuda_lenses, line_hints, profile_hints, python_lenses
from kernel_lsp.server.features.diagnostics import KERNEL_SUFFIX
from kernel_lsp.server.features.formatting import plain_text
from kernel_lsp.server.features.hover import cuda_hover, python_hover
from kernel_lsp.server.jobs import runs
from kernel_lsp.server.jobs.job_results import job_ended
from kernel_lsp.server.jobs.jobs import new_id
from kernel_lsp.server.jobs.starting import offer_interrupted, start_check, start_estimate
from kernel_lsp.server.jobs.verified_early import verified_early
from kernel_lsp.server.protocol import messages as protocol
from kernel_lsp.server.protocol.handshake import DIAGNOSTICS_IDENTIFIER
from kernel_lsp.server.settings import SECTION, are_alike
from kernel_lsp.server.state import Reactions, State
from kernel_lsp.source.recorded import FILE_NAME as RECORDING_NAME


async def _machine_code(state: State, params: protocol.MachineCodeParams) -> protocol.MachineCodeResult:
    document = state.documents.named(params.uri)
    if document is None or document.language != "cuda":
        raise JsonRpcInvalidParams(message=f"no CUDA document {params.uri!r} is open")
    if not state.trust.allows_commands:
        raise JsonRpcInvalidParams(message="the workspace is not trusted")
    path = file_of(document)
    request = GetMachineCode(
        id=new_id(),
        directory=path.parent,
        kernel=path,
        text=document.text,
        line=params.line + 1,
        form=params.form,
        architecture=params.architecture,
        settings=state.settings.overrides(path.parent),
    )
    reply = await state.engines.of(path.parent).ask(request)
    if reply.error is not None:
        problem = f"{reply.error.message}. Next: {reply.error.next_step}".removesuffix(". Next: ")
        return _result(MachineCode(form=params.form, architecture=params.architecture, problem=problem))
    return _result(MachineCode.model_validate(reply.result))


def _result(code: MachineCode) -> protocol.MachineCodeResult:
    return protocol.MachineCodeResult(
        text=code.text,
        lines=[line - 1 for line in code.lines],
        function=code.function,
        architecture=code.architecture,
        first_line=code.first_line - 1,
        last_line=code.last_line - 1,
        architectures=list(code.architectures),
        problem=code.problem,
    )


FIRST_ANALYSIS_S = 5.0
"""Maximum wait of a request for the first analysis of a text, in seconds. A later request uses the rebased older
analysis."""
FRESH_ACTIONS_S = 0.03
"""Maximum wait of a code action request for a current analysis, in seconds: quick fixes need one."""
PULL_S = 10.0
"""Maximum wait of a diagnostics pull, in seconds; clients pull in the background."""


async def _shutdown(state: State, params: Any) -> None:
    state.client.protocol.shut_down()
    state.exit_status = 0
    await state.close()


def _exit(state: State, params: Any) -> None:
    state.stopped.set()


async def _initialized(state: State, params: Any) -> None:
    state.spawn(state.archives.run())
    if state.client.features.registers_configuration:
        state.client.register("configuration", types.WORKSPACE_DID_CHANGE_CONFIGURATION, {"section": SECTION})
    if state.client.features.watches_files:
        watchers = [{"globPattern": "**/pyproject.toml"}, {"globPattern": f"**/{FOLDER_NAME}/{RECORDING_NAME}"}]
        state.client.register("pyproject", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, {"watchers": watchers})
    await state.read_configuration()


def _set_trace(state: State, params: types.SetTraceParams) -> None:
    state.client.protocol.trace = params.value


def _did_open(state: State, params: types.DidOpenTextDocumentParams) -> None:
    item = params.text_document
    _open(state, item)


def _open(state: State, item: types.TextDocumentItem) -> None:
    document = state.documents.open(item.uri, item.language_id, item.version, item.text)
    document.notebook = state.notebooks.path(item.uri)
    state.forget(item.uri)
    state.analyses.opened(document)
    for below in state.notebooks.below(item.uri):
        state.analyses.edited(below)
    state.list_runs(document.file)
    state.recall_kernel(document)


def _did_change(state: State, params: types.DidChangeTextDocumentParams) -> None:
    _change(state, params.text_document.uri, params.text_document.version, params.content_changes)


def _change(state: State, uri: str, version: int, events: Any) -> None:
    document = state.documents.get(uri)
    if document is not None:
        document.apply([change_of(event) for event in events], version)
        for changed in (document, *state.notebooks.below(uri)):
            state.analyses.edited(changed)


def _did_close(state: State, params: types.DidCloseTextDocumentParams) -> None:
    _close(state, params.text_document.uri)


def _close(state: State, uri: str) -> None:
    state.documents.close(uri)
    state.when_saved.pop(uri, None)
    state.analyses.closed(uri)
    state.forget(uri)
    if not state.client.features.pulls_diagnostics:
        state.client.publish(uri, [])


def _did_save(state: State, params: types.DidSaveTextDocumentParams) -> None:
    document = state.documents.get(params.text_document.uri)
    waiting = state.when_saved.pop(params.text_document.uri, None)
    if waiting is not None:
        waiting()
    if document is None or document.path is None or not state.trust.allows_background_work:
        return
    settings = state.settings_for(document.file)
    if document.language == "cuda" and settings.check_on_save:
        state.spawn(_check_again(state, document, is_measured=settings.measure_on_save and state.has_gpu))
    if document.language == "python" and settings.estimate_on_hover:
        state.spawn(_estimate_again(state, document))


async def _check_again(state: State, document: Document, *, is_measured: bool) -> None:
    """Check a saved file with kernels once its latest text is analysed; without a plan it is compiled."""
    known = await state.analyses.current(document, PULL_S)
    is_open = state.documents.get(document.uri) is document
    analysis = known.analysis
    is_plain = bool(analysis.kernels) and document.path is not None and document.path.suffix == KERNEL_SUFFIX
    if (analysis.has_plan or is_plain) and is_open and state.trust.allows_background_work:
        start_check(state, document, is_quiet=True, is_measured=is_measured and analysis.has_plan)


async def _estimate_again(state: State, document: Document) -> None:
    """Re-estimate the targets whose code has changed."""
    known = await state.analyses.current(document, PULL_S)
    for target in known.analysis.targets:
        estimate = state.knowledge.estimate(document.uri, target.symbol)
        if estimate is not None and estimate.digest != target.digest:
            start_estimate(state, document, target.symbol, is_quiet=True)


def _notebook_opened(state: State, params: types.DidOpenNotebookDocumentParams) -> None:
    state.notebooks.open(params.notebook_document.uri, params.notebook_document.cells)
    for cell in params.cell_text_documents:
        _open(state, cell)


def _notebook_changed(state: State, params: types.DidChangeNotebookDocumentParams) -> None:
    cells = params.change.cells
    if cells is None:
        return
    if cells.structure is not None:
        state.notebooks.change(params.notebook_document.uri, cells.structure.array)
    for cell in (cells.structure.did_open or ()) if cells.structure is not None else ():
        _open(state, cell)
    for closed in (cells.structure.did_close or ()) if cells.structure is not None else ():
        _close(state, closed.uri)
    for changed in cells.text_content or ():
        _change(state, changed.document.uri, changed.document.version, changed.changes)


def _notebook_closed(state: State, params: types.DidCloseNotebookDocumentParams) -> None:
    state.notebooks.close(params.notebook_document.uri)
    for cell in params.cell_text_documents:
        _close(state, cell.uri)


async def _configuration_changed(state: State, params: types.DidChangeConfigurationParams) -> None:
    if state.client.features.gives_configuration:
        await state.read_configuration()
        return
    values = params.settings.get(SECTION) if isinstance(params.settings, dict) else None
    if isinstance(values, dict):
        state.settings.set_everywhere(values)
    state.everything_changed()


def _files_changed(state: State, params: types.DidChangeWatchedFilesParams) -> None:
    if any(change.uri.endswith(f"/{RECORDING_NAME}") for change in params.changes):
        for document in state.documents:
            state.analyses.edited(document)
    state.everything_changed()


async def _folders_changed(state: State, params: types.DidChangeWorkspaceFoldersParams) -> None:
    removed = {path_of(folder.uri) for folder in params.event.removed}
    added = [path for folder in params.event.added if (path := path_of(folder.uri)) is not None]
    state.folders = [folder for folder in state.folders if folder not in removed and folder not in added] + added
    for folder in removed:
        if folder is not None:
            state.settings.forget(folder)
    await state.read_configuration()


def _trust_changed(state: State, params: protocol.TrustParams) -> None:
    state.trust.said = params.trusted
    for document in state.documents:
        state.list_runs(document.file)
    if not params.trusted:
        for job in state.jobs:
            state.spawn(state.jobs.cancel(job))
    state.everything_changed()


def _progress_cancelled(state: State, params: types.WorkDoneProgressCancelParams) -> None:
    job = state.jobs.of_token(params.token)
    if job is not None:
        state.spawn(state.jobs.cancel(job))


async def _hover(state: State, params: types.HoverParams) -> types.Hover | None:
    document = state.documents.get(params.text_document.uri)
    if document is None:
        return None
    analysis = await _analysis(state.analyses, document)
    line = params.position.line
    settings = state.settings_for(document.file)  # first: estimates outdated by a changed pyproject.toml are dropped
    if document.language == "cuda":
        text = cuda_hover(document, analysis, state.knowledge, line, settings.target_gpu)
    else:
        text = python_hover(document, analysis, state.knowledge, line, _pending(state, document, analysis, line))
    if not text:
        return None
    if state.client.features.markdown_hover:
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))
    return types.Hover(types.MarkupContent(types.MarkupKind.PlainText, plain_text(text)))


def _pending(state: State, document: Document, analysis: Analysis, line: int) -> str:
    """Start an estimate if it may run automatically; return its status, or what the user can do."""
    target = analysis.target_at(line)
    if target is None or not target.inputs:
        return ""
    if state.knowledge.estimate(document.uri, target.symbol) is not None or line not in (
        target.line,
        target.forward_line,
    ):
        return ""
    if document.file is None or (document.path is not None and not document.path.is_file()):
        return "No estimate: save this text as a file first."
    problem = state.knowledge.why_no_estimate(document.uri, target)
    if problem:
        return f"No estimate: {problem}."
    if not state.trust.allows_commands:
        return "No estimate: the workspace is not trusted."
    if not (state.trust.allows_background_work and state.settings_for(document.file).estimate_on_hover):
        return f"*Estimate {target.symbol}* (a code action) predicts its time; it imports this file."
    start_estimate(state, document, target.symbol, is_quiet=True)
    return "Estimating: hover again in a moment."


async def _code_lens(state: State, params: types.CodeLensParams) -> list[types.CodeLens]:
    document = state.documents.get(params.text_document.uri)
    if document is None or not state.settings_for(document.file).code_lens:
        return []
    analysis = await _analysis(state.analyses, document)
    lenses = cuda_lenses if document.language == "cuda" else python_lenses
    return lenses(document, analysis, state.knowledge)


async def _inlay_hint(state: State, params: types.InlayHintParams) -> list[types.InlayHint]:
    document = state.documents.get(params.text_document.uri)
    if document is None:
        return []
    first, last = params.range.start.line, params.range.end.line
    if document.language == "cuda":
        return profile_hints(document, state.knowledge, first, last)
    if not state.settings_for(document.file).inlay_hints:
        return []
    return line_hints(document, await _analysis(state.analyses, document), state.knowledge, first, last)


async def _code_action(state: State, params: types.CodeActionParams) -> list[types.CodeAction] | list[types.Command]:
    document = state.documents.get(params.text_document.uri)
    if document is None:
        return []
    await _analysis(state.analyses, document)
    known = await state.analyses.current(document, FRESH_ACTIONS_S)
    only = [kind.value if isinstance(kind, types.CodeActionKind) else kind for kind in params.context.only or ()]
    actions = CodeActions(
        document,
        known,
        state.knowledge,
        state.client.features,
        has_gpu=state.has_gpu,
        runs_code=state.trust.allows_commands,
    )
    start, end = params.range.start, params.range.end
    # A selection of whole lines ends at the start of the next one.
    last = end.line - 1 if end.character == 0 and end.line > start.line else end.line
    found = actions.between(start.line, last, only, selects=start != end)
    return (
        found
        if state.client.features.literal_actions
        else [action.command for action in found if action.command is not None]
    )


async def _diagnostic(state: State, params: types.DocumentDiagnosticParams) -> Any:
    document = state.documents.get(params.text_document.uri)
    if document is None:
        return types.RelatedFullDocumentDiagnosticReport(items=[])
    await state.analyses.current(document, PULL_S)
    items = state.diagnostics(document)
    result_id = f"{DIAGNOSTICS_IDENTIFIER}-{hash(repr(items)) & 0xFFFFFFFF:08x}"
    if params.previous_result_id == result_id:
        return types.RelatedUnchangedDocumentDiagnosticReport(result_id=result_id)
    return types.RelatedFullDocumentDiagnosticReport(items=items, result_id=result_id)


async def _execute_command(state: State, params: types.ExecuteCommandParams) -> Any:
    return await execute(state, params)


async def _status(state: State, params: protocol.StatusParams) -> protocol.StatusResult:
    return protocol.StatusResult(
        jobs=[job.params() for job in state.jobs],
        n_documents=len(state.documents),
        trusted=state.trust.said,
        analyst_pid=state.analyses.analyst_pid,
        engine_pids=state.engines.pids,
    )


async def _analysis(analyses: Analyses, document: Document) -> Analysis:
    """Return the analysis rebased onto the current text."""
    known = analyses.latest(document)
    if known.asked_serial < 0:
        known = await analyses.current(document, FIRST_ANALYSIS_S)
    return known.now(document)


HANDLERS: dict[str, Callable[..., Any]] = {
    types.INITIALIZED: _initialized,
    types.SHUTDOWN: _shutdown,
    types.EXIT: _exit,
    types.SET_TRACE: _set_trace,
    types.TEXT_DOCUMENT_DID_OPEN: _did_open,
    types.TEXT_DOCUMENT_DID_CHANGE: _did_change,
    types.TEXT_DOCUMENT_DID_CLOSE: _did_close,
    types.TEXT_DOCUMENT_DID_SAVE: _did_save,
    types.NOTEBOOK_DOCUMENT_DID_OPEN: _notebook_opened,
    types.NOTEBOOK_DOCUMENT_DID_CHANGE: _notebook_changed,
    types.NOTEBOOK_DOCUMENT_DID_CLOSE: _notebook_closed,
    types.WORKSPACE_DID_CHANGE_CONFIGURATION: _configuration_changed,
    types.WORKSPACE_DID_CHANGE_WATCHED_FILES: _files_changed,
    types.WORKSPACE_DID_CHANGE_WORKSPACE_FOLDERS: _folders_changed,
    types.WINDOW_WORK_DONE_PROGRESS_CANCEL: _progress_cancelled,
    types.TEXT_DOCUMENT_HOVER: _hover,
    types.TEXT_DOCUMENT_CODE_LENS: _code_lens,
    types.TEXT_DOCUMENT_INLAY_HINT: _inlay_hint,
    types.TEXT_DOCUMENT_CODE_ACTION: _code_action,
    types.TEXT_DOCUMENT_DIAGNOSTIC: _diagnostic,
    types.WORKSPACE_EXECUTE_COMMAND: _execute_command,
    "kernelLsp/didChangeTrust": _trust_changed,
    "kernelLsp/status": _status,
    **runs.HANDLERS,
    "kernelLsp/machineCode": _machine_code,
}


def renew_estimates(state: State) -> None:
    """Drop outdated estimates and recompute them: the protocol cannot refresh an open hover, so the answer must be
    ready when the client asks again."""
    for uri, symbol, made_with in state.knowledge.settings_of_estimates():
        document = state.documents.get(uri)
        if document is None:
            continue
        settings = state.settings_for(document.file)
        if are_alike(made_with, settings):
            continue
        state.knowledge.forget_estimate(uri, symbol)
        is_there = state.analyses.latest(document).analysis.target(symbol) is not None
        if is_there and settings.estimate_on_hover and state.trust.allows_background_work:
            start_estimate(state, document, symbol, is_quiet=True)


REACTIONS = Reactions(job_ended, renew_estimates, offer_interrupted, verified_early)
