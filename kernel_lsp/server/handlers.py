"""Handle each message of the protocol. Handlers are short: work runs in other processes, and replies are cached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lsprotocol import types

from kernel_lsp.config import FOLDER_NAME
from kernel_lsp.server.analysis.analysis_client import Analyses
from kernel_lsp.server.analysis.analysis_types import Analysis
from kernel_lsp.server.commands import execute
from kernel_lsp.server.documents.documents import Document, Documents, path_of
from kernel_lsp.server.documents.places import Notebooks
from kernel_lsp.server.features.code_actions import CodeActions
from kernel_lsp.server.features.code_lens import cuda_lenses, line_hints, profile_hints, python_lenses
from kernel_lsp.server.features.diagnostics import KERNEL_SUFFIX
from kernel_lsp.server.features.formatting import plain_text
from kernel_lsp.server.features.hover import cuda_hover, python_hover
from kernel_lsp.server.jobs import machine_code, runs
from kernel_lsp.server.jobs.job_results import job_ended
from kernel_lsp.server.jobs.starting import offer_interrupted, start_check, start_estimate
from kernel_lsp.server.language_server import KernelLanguageServer
from kernel_lsp.server.protocol import messages as protocol
from kernel_lsp.server.protocol.capabilities import DIAGNOSTICS_IDENTIFIER
from kernel_lsp.server.protocol.conversion import change_of
from kernel_lsp.server.settings import SECTION, are_alike
from kernel_lsp.source.recorded import FILE_NAME as RECORDING_NAME

FIRST_ANALYSIS_S = 5.0
"""Maximum wait of a request for the first analysis of a text, in seconds. A later request uses the rebased older
analysis."""
FRESH_ACTIONS_S = 0.03
"""Maximum wait of a code action request for a current analysis, in seconds: quick fixes need one."""
PULL_S = 10.0
"""Maximum wait of a diagnostics pull, in seconds; clients pull in the background."""


def register(server: KernelLanguageServer) -> None:
    """Bind handlers to every message, the end of jobs and changed settings."""
    server.when_job_ends, server.when_settings_change = job_ended, renew_estimates
    server.when_runs_are_listed = offer_interrupted
    for method, handler in HANDLERS.items():
        server.feature(method)(handler)


# --- life


async def _shutdown(ls: KernelLanguageServer, params: Any) -> None:
    ls.protocol.shut_down()
    ls.exit_status = 0
    await ls.close()


def _exit(ls: KernelLanguageServer, params: Any) -> None:
    ls.stopped.set()


async def _initialized(ls: KernelLanguageServer, params: Any) -> None:
    ls.spawn(ls.archives.run())
    if ls.client.registers_configuration:
        _register(ls, "configuration", types.WORKSPACE_DID_CHANGE_CONFIGURATION, {"section": SECTION})
    if ls.client.watches_files:
        watchers = [{"globPattern": "**/pyproject.toml"}, {"globPattern": f"**/{FOLDER_NAME}/{RECORDING_NAME}"}]
        _register(ls, "pyproject", types.WORKSPACE_DID_CHANGE_WATCHED_FILES, {"watchers": watchers})
    await ls.read_configuration()


def _register(ls: KernelLanguageServer, name: str, method: str, options: dict[str, Any]) -> None:
    registration = types.Registration(id=f"{SECTION}.{name}", method=method, register_options=options)
    ls.client_register_capability(types.RegistrationParams(registrations=[registration]))


def _set_trace(ls: KernelLanguageServer, params: types.SetTraceParams) -> None:
    ls.protocol.trace = params.value


# --- texts


def _did_open(ls: KernelLanguageServer, params: types.DidOpenTextDocumentParams) -> None:
    item = params.text_document
    _open(ls, item)


def _open(ls: KernelLanguageServer, item: types.TextDocumentItem) -> None:
    document = ls.documents.open(item.uri, item.language_id, item.version, item.text)
    document.notebook = ls.notebooks.path(item.uri)
    ls.forget(item.uri)
    ls.analyses.opened(document)
    for below in ls.notebooks.below(item.uri):
        ls.analyses.edited(below)
    ls.list_runs(document.file)
    ls.recall_kernel(document)


def _did_change(ls: KernelLanguageServer, params: types.DidChangeTextDocumentParams) -> None:
    _change(
        ls.analyses,
        ls.documents,
        ls.notebooks,
        params.text_document.uri,
        params.text_document.version,
        params.content_changes,
    )


def _change(
    analyses: Analyses, documents: Documents, notebooks: Notebooks, uri: str, version: int, events: Any
) -> None:
    document = documents.get(uri)
    if document is not None:
        document.apply([change_of(event) for event in events], version)
        for changed in (document, *notebooks.below(uri)):
            analyses.edited(changed)


def _did_close(ls: KernelLanguageServer, params: types.DidCloseTextDocumentParams) -> None:
    _close(ls, params.text_document.uri)


def _close(ls: KernelLanguageServer, uri: str) -> None:
    ls.documents.close(uri)
    ls.when_saved.pop(uri, None)
    ls.analyses.closed(uri)
    ls.forget(uri)
    if not ls.client.pulls_diagnostics:
        ls.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))


def _did_save(ls: KernelLanguageServer, params: types.DidSaveTextDocumentParams) -> None:
    document = ls.documents.get(params.text_document.uri)
    waiting = ls.when_saved.pop(params.text_document.uri, None)
    if waiting is not None:
        waiting()
    if document is None or document.path is None or not ls.trust.allows_background_work:
        return
    settings = ls.settings_for(document.file)
    if document.language == "cuda" and settings.check_on_save:
        ls.spawn(_check_again(ls, document, is_measured=settings.measure_on_save and ls.has_gpu))
    if document.language == "python" and settings.estimate_on_hover:
        ls.spawn(_estimate_again(ls, document))


async def _check_again(ls: KernelLanguageServer, document: Document, *, is_measured: bool) -> None:
    """Check a saved file with kernels once its latest text is analysed; without a plan it is compiled."""
    known = await ls.analyses.current(document, PULL_S)
    is_open = ls.documents.get(document.uri) is document
    analysis = known.analysis
    is_plain = bool(analysis.kernels) and document.path is not None and document.path.suffix == KERNEL_SUFFIX
    if (analysis.has_plan or is_plain) and is_open and ls.trust.allows_background_work:
        start_check(ls, document, is_quiet=True, is_measured=is_measured and analysis.has_plan)


async def _estimate_again(ls: KernelLanguageServer, document: Document) -> None:
    """Re-estimate the targets whose code has changed."""
    known = await ls.analyses.current(document, PULL_S)
    for target in known.analysis.targets:
        estimate = ls.knowledge.estimate(document.uri, target.symbol)
        if estimate is not None and estimate.digest != target.digest:
            start_estimate(ls, document, target.symbol, is_quiet=True)


# --- notebooks: each cell is a text


def _notebook_opened(ls: KernelLanguageServer, params: types.DidOpenNotebookDocumentParams) -> None:
    ls.notebooks.open(params.notebook_document.uri, params.notebook_document.cells)
    for cell in params.cell_text_documents:
        _open(ls, cell)


def _notebook_changed(ls: KernelLanguageServer, params: types.DidChangeNotebookDocumentParams) -> None:
    cells = params.change.cells
    if cells is None:
        return
    if cells.structure is not None:
        ls.notebooks.change(params.notebook_document.uri, cells.structure.array)
    for cell in (cells.structure.did_open or ()) if cells.structure is not None else ():
        _open(ls, cell)
    for closed in (cells.structure.did_close or ()) if cells.structure is not None else ():
        _close(ls, closed.uri)
    for changed in cells.text_content or ():
        _change(
            ls.analyses, ls.documents, ls.notebooks, changed.document.uri, changed.document.version, changed.changes
        )


def _notebook_closed(ls: KernelLanguageServer, params: types.DidCloseNotebookDocumentParams) -> None:
    ls.notebooks.close(params.notebook_document.uri)
    for cell in params.cell_text_documents:
        _close(ls, cell.uri)


# --- the workspace


async def _configuration_changed(ls: KernelLanguageServer, params: types.DidChangeConfigurationParams) -> None:
    if ls.client.gives_configuration:
        await ls.read_configuration()
        return
    values = params.settings.get(SECTION) if isinstance(params.settings, dict) else None
    if isinstance(values, dict):
        ls.settings.set_everywhere(values)
    ls.everything_changed()


def _files_changed(ls: KernelLanguageServer, params: types.DidChangeWatchedFilesParams) -> None:
    if any(change.uri.endswith(f"/{RECORDING_NAME}") for change in params.changes):
        for document in ls.documents:
            ls.analyses.edited(document)
    ls.everything_changed()


async def _folders_changed(ls: KernelLanguageServer, params: types.DidChangeWorkspaceFoldersParams) -> None:
    removed = {path_of(folder.uri) for folder in params.event.removed}
    added = [path for folder in params.event.added if (path := path_of(folder.uri)) is not None]
    ls.folders = [folder for folder in ls.folders if folder not in removed and folder not in added] + added
    for folder in removed:
        if folder is not None:
            ls.settings.forget(folder)
    await ls.read_configuration()


def _trust_changed(ls: KernelLanguageServer, params: protocol.TrustParams) -> None:
    ls.trust.said = params.trusted
    for document in ls.documents:
        ls.list_runs(document.file)
    if not params.trusted:
        for job in ls.jobs:
            ls.spawn(ls.jobs.cancel(job))
    ls.everything_changed()


def _progress_cancelled(ls: KernelLanguageServer, params: types.WorkDoneProgressCancelParams) -> None:
    job = ls.jobs.of_token(params.token)
    if job is not None:
        ls.spawn(ls.jobs.cancel(job))


# --- questions


async def _hover(ls: KernelLanguageServer, params: types.HoverParams) -> types.Hover | None:
    document = ls.documents.get(params.text_document.uri)
    if document is None:
        return None
    analysis = await _analysis(ls.analyses, document)
    line = params.position.line
    settings = ls.settings_for(document.file)  # first: estimates outdated by a changed pyproject.toml are dropped
    if document.language == "cuda":
        text = cuda_hover(document, analysis, ls.knowledge, line, settings.target_gpu)
    else:
        text = python_hover(document, analysis, ls.knowledge, line, _pending(ls, document, analysis, line))
    if not text:
        return None
    if ls.client.markdown_hover:
        return types.Hover(types.MarkupContent(types.MarkupKind.Markdown, text))
    return types.Hover(types.MarkupContent(types.MarkupKind.PlainText, plain_text(text)))


def _pending(ls: KernelLanguageServer, document: Document, analysis: Analysis, line: int) -> str:
    """Start an estimate if it may run automatically; return its status, or what the user can do."""
    target = analysis.target_at(line)
    if target is None or not target.inputs:
        return ""
    if ls.knowledge.estimate(document.uri, target.symbol) is not None or line not in (target.line, target.forward_line):
        return ""
    if document.file is None or (document.path is not None and not document.path.is_file()):
        return "No estimate: save this text as a file first."
    problem = ls.knowledge.why_no_estimate(document.uri, target)
    if problem:
        return f"No estimate: {problem}."
    if not ls.trust.allows_commands:
        return "No estimate: the workspace is not trusted."
    if not (ls.trust.allows_background_work and ls.settings_for(document.file).estimate_on_hover):
        return f"*Estimate {target.symbol}* (a code action) predicts its time; it imports this file."
    start_estimate(ls, document, target.symbol, is_quiet=True)
    return "Estimating: hover again in a moment."


async def _code_lens(ls: KernelLanguageServer, params: types.CodeLensParams) -> list[types.CodeLens]:
    document = ls.documents.get(params.text_document.uri)
    if document is None or not ls.settings_for(document.file).code_lens:
        return []
    analysis = await _analysis(ls.analyses, document)
    lenses = cuda_lenses if document.language == "cuda" else python_lenses
    return lenses(document, analysis, ls.knowledge)


async def _inlay_hint(ls: KernelLanguageServer, params: types.InlayHintParams) -> list[types.InlayHint]:
    document = ls.documents.get(params.text_document.uri)
    if document is None:
        return []
    first, last = params.range.start.line, params.range.end.line
    if document.language == "cuda":
        return profile_hints(document, ls.knowledge, first, last)
    if not ls.settings_for(document.file).inlay_hints:
        return []
    return line_hints(document, await _analysis(ls.analyses, document), ls.knowledge, first, last)


async def _code_action(
    ls: KernelLanguageServer, params: types.CodeActionParams
) -> list[types.CodeAction] | list[types.Command]:
    document = ls.documents.get(params.text_document.uri)
    if document is None:
        return []
    await _analysis(ls.analyses, document)
    known = await ls.analyses.current(document, FRESH_ACTIONS_S)
    only = [kind.value if isinstance(kind, types.CodeActionKind) else kind for kind in params.context.only or ()]
    actions = CodeActions(
        document, known, ls.knowledge, ls.client, has_gpu=ls.has_gpu, runs_code=ls.trust.allows_commands
    )
    start, end = params.range.start, params.range.end
    # A selection of whole lines ends at the start of the next one.
    last = end.line - 1 if end.character == 0 and end.line > start.line else end.line
    found = actions.between(start.line, last, only, selects=start != end)
    return found if ls.client.literal_actions else [action.command for action in found if action.command is not None]


async def _diagnostic(ls: KernelLanguageServer, params: types.DocumentDiagnosticParams) -> Any:
    document = ls.documents.get(params.text_document.uri)
    if document is None:
        return types.RelatedFullDocumentDiagnosticReport(items=[])
    await ls.analyses.current(document, PULL_S)
    items = ls.diagnostics(document)
    result_id = f"{DIAGNOSTICS_IDENTIFIER}-{hash(repr(items)) & 0xFFFFFFFF:08x}"
    if params.previous_result_id == result_id:
        return types.RelatedUnchangedDocumentDiagnosticReport(result_id=result_id)
    return types.RelatedFullDocumentDiagnosticReport(items=items, result_id=result_id)


async def _execute_command(ls: KernelLanguageServer, params: types.ExecuteCommandParams) -> Any:
    return await execute(ls, params)


async def _status(ls: KernelLanguageServer, params: protocol.StatusParams) -> protocol.StatusResult:
    return protocol.StatusResult(
        jobs=[job.params() for job in ls.jobs],
        n_documents=len(ls.documents),
        trusted=ls.trust.said,
        analyst_pid=ls.analyses.analyst_pid,
        engine_pids=ls.engines.pids,
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
    **machine_code.HANDLERS,
}


def renew_estimates(server: KernelLanguageServer) -> None:
    """Drop outdated estimates and recompute them: the protocol cannot refresh an open hover, so the answer must be
    ready when the client asks again."""
    for uri, symbol, made_with in server.knowledge.settings_of_estimates():
        document = server.documents.get(uri)
        if document is None:
            continue
        settings = server.settings_for(document.file)
        if are_alike(made_with, settings):
            continue
        server.knowledge.forget_estimate(uri, symbol)
        is_there = server.analyses.latest(document).analysis.target(symbol) is not None
        if is_there and settings.estimate_on_hover and server.trust.allows_background_work:
            start_estimate(server, document, symbol, is_quiet=True)
