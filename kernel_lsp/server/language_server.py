"""The server's state, which connects documents, analyses, cached results, jobs and the client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams
from pygls.lsp.server import LanguageServer

from kernel_lsp import __version__
from kernel_lsp.config import FOLDER_NAME, Settings, find_workspace
from kernel_lsp.engine.messages import (
    GetKernelRecord,
    JobEvent,
    KernelRecord,
    ListRuns,
    ModelAsked,
    ModelDropped,
    Optimize,
    OptimizeLines,
    PromptOver,
    PromptWaits,
    Resume,
    RunList,
)
from kernel_lsp.errors import SettingError
from kernel_lsp.gpu.presence import has_gpu
from kernel_lsp.server.analysis.analysis_client import Analyses
from kernel_lsp.server.documents.documents import Document, Documents, path_of
from kernel_lsp.server.documents.places import Notebooks
from kernel_lsp.server.features.diagnostics import advice_diagnostics, diagnostics_of
from kernel_lsp.server.jobs.archive_watch import ArchiveWatch
from kernel_lsp.server.jobs.editor_model import EditorModel, ManualPrompts
from kernel_lsp.server.jobs.jobs import Engines, Job, Jobs, new_id
from kernel_lsp.server.knowledge import Knowledge, KnownCheck
from kernel_lsp.server.protocol.handshake import Initialized
from kernel_lsp.server.protocol.messages import FolderParams, RunEventParams
from kernel_lsp.server.protocol.rpc import ClientRefused, Protocol
from kernel_lsp.server.settings import SECTION, EditorSettings, Trust

Say = Callable[[types.MessageType, str], None]
"""Show a message to the user."""
Show = Callable[..., Awaitable[bool]]
"""Open a file in the editor."""
RUNS = (Optimize, OptimizeLines, Resume)

logger = logging.getLogger(__name__)


class KernelLanguageServer(LanguageServer):
    """One client's server. Handlers are in `kernel_lsp.server.handlers`, commands in `kernel_lsp.server.commands`."""

    protocol: Protocol
    when_job_ends: Callable[[KernelLanguageServer, Job, Any], Awaitable[None]]
    when_settings_change: Callable[[KernelLanguageServer], None]
    when_runs_are_listed: Callable[[KernelLanguageServer, Path], Awaitable[None]]
    """Set by `kernel_lsp.server.handlers.register`, whose modules import this one."""

    def __init__(self, initialized: Initialized) -> None:
        super().__init__("kernel-lsp", __version__, protocol_cls=Protocol)
        options = _object(initialized.params.get("initializationOptions"))
        self.client_process_id = initialized.params.get("processId")
        self.client = initialized.features
        self.has_gpu = has_gpu()
        self.wants_job_news = _wants(initialized, "jobs")
        self.wants_events = _wants(initialized, "events")
        self.types_commands = _wants(initialized, "terminal")
        self.has_editor_model = _wants(initialized, "languageModel")
        self.editor_model = EditorModel(self.protocol)
        self.manual_prompts = ManualPrompts(self.show, partial(self.say, types.MessageType.Info), self.spawn)
        self.documents = Documents(self.client.encoding)
        self.knowledge = Knowledge()
        self.settings = EditorSettings(_object(options.get("settings")), self._settings_changed)
        self.trust = Trust(options["trusted"] if isinstance(options.get("trusted"), bool) else None)
        self.folders = _folders(initialized.params)
        self.notebooks = Notebooks(self.documents)
        self.analyses = Analyses(self.documents, self.analysis_changed, self.notebooks.above)
        self.engines = Engines(self._engine_died)
        self.jobs = Jobs(self._job_changed, self._job_told, self._job_ended)
        self.scanning = asyncio.Lock()
        self.stopped = asyncio.Event()
        self.exit_status = 1
        self.when_saved: dict[str, Callable[[], object]] = {}
        """Work that waits for a document to be saved, by URI."""
        self.archives = ArchiveWatch(self._archive_changed, self._is_running_in)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._said: set[str] = set()
        self._has_news = False
        self._lensed: dict[str, tuple[object, ...]] = {}

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Log the error only: the requester already has a reply."""
        is_ours = not isinstance(error, JsonRpcInvalidParams)
        logger.log(logging.ERROR if is_ours else logging.INFO, "%s: %s", getattr(source, "__name__", source), error)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run in the background; log its exceptions."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_log_failure)

    async def close(self) -> None:
        """End every job and process within the 1.5 s granted to engines."""
        for task in (*self._tasks,):
            task.cancel()
        await asyncio.gather(self.jobs.close(), self.engines.close(), self.analyses.close(), return_exceptions=True)

    def forget(self, uri: str) -> None:
        """Drop the results of a closed or reopened document."""
        self.knowledge.forget(uri)
        self._lensed.pop(uri, None)

    # --- settings

    def settings_for(self, path: Path | None) -> Settings:
        """Return the settings for a file, or the defaults. An invalid setting is reported once, and the previous values
        stay."""
        directory = path.parent if path is not None else (self.folders[0] if self.folders else Path.cwd())
        try:
            return self.settings.of(directory)
        except SettingError as error:
            self.say_once(types.MessageType.Warning, str(error))
            return self.settings.latest(directory)

    def _settings_changed(self) -> None:
        """Drop results of other settings at once, and refresh what the client shows."""
        self._has_news = True
        self.when_settings_change(self)
        asyncio.get_running_loop().call_soon(self._show_news)

    def _show_news(self) -> None:
        if self._has_news:
            self.everything_changed()

    async def read_configuration(self) -> None:
        """Request the client's configuration, globally and for each folder."""
        if not self.client.gives_configuration:
            return
        items = [types.ConfigurationItem(section=SECTION)]
        items += [types.ConfigurationItem(section=SECTION, scope_uri=folder.as_uri()) for folder in self.folders]
        try:
            values = await self.workspace_configuration_async(types.ConfigurationParams(items=items))
        except ClientRefused as error:
            logger.warning("the client gave no configuration: %s", error)
            return
        if values and isinstance(values[0], dict):
            self.settings.set_everywhere(values[0])
        for folder, value in zip(self.folders, values[1:], strict=False):
            if isinstance(value, dict):
                self.settings.set_for(folder, value)
        self.everything_changed()

    # --- telling the client

    def say(self, kind: types.MessageType, message: str) -> None:
        """Show a message to the user."""
        self.window_show_message(types.ShowMessageParams(type=kind, message=message))

    def say_once(self, kind: types.MessageType, message: str) -> None:
        """Show a message once, not after every edit."""
        if message not in self._said:
            self._said.add(message)
            self.say(kind, message)

    async def show(self, path: Path, line: int | None = None) -> bool:
        """Open a file in the editor, at a 0-based line; return False if the client cannot."""
        if not self.client.shows_documents:
            return False
        at = types.Range(types.Position(line, 0), types.Position(line, 0)) if line is not None else None
        return await self.show_document(types.ShowDocumentParams(uri=path.as_uri(), take_focus=False, selection=at))

    async def show_document(self, params: types.ShowDocumentParams) -> bool:
        """Open a document as the parameters say; return False if the client refuses."""
        try:
            return (await self.window_show_document_async(params)).success
        except ClientRefused:
            return False

    async def apply(self, edit: types.WorkspaceEdit, label: str) -> bool:
        """Have the client make an edit; return False if it did not."""
        try:
            applied = await self.workspace_apply_edit_async(types.ApplyWorkspaceEditParams(edit=edit, label=label))
        except ClientRefused as error:
            self.say(types.MessageType.Warning, f"the editor refused the edit: {error}")
            return False
        if not applied.applied:
            logger.info("not applied: %s", applied.failure_reason)
        return applied.applied

    def diagnostics(self, document: Document) -> list[types.Diagnostic]:
        """Return the current diagnostics of a document."""
        if not self.settings_for(document.file).diagnostics:
            return []
        analysis = self.analyses.latest(document).now(document)
        check = self.knowledge.check(document.uri)
        found = diagnostics_of(document, analysis, check, shows_related=self.client.shows_related)
        return [*found, *advice_diagnostics(document, analysis, self.knowledge)]

    def analysis_changed(self, document: Document) -> None:
        """Publish new findings and targets. Lenses are refreshed too: the client's own request after the edit came too
        early."""
        self._publish(document)
        analysis = self.analyses.latest(document).analysis
        lensed = (analysis.has_plan, analysis.kernels, *((each.symbol, each.line) for each in analysis.targets))
        if self.client.refreshes_lenses and self._lensed.get(document.uri) != lensed:
            self._lensed[document.uri] = lensed
            self.spawn(_harmless(self.workspace_code_lens_refresh_async(None)))

    def knowledge_changed(self, document: Document | None) -> None:
        """Publish new times, verdicts or runs: of one document, or of all."""
        for changed in [document] if document is not None else self.documents:
            self._publish(changed)
        if self.client.pulls_diagnostics:
            self.spawn(_harmless(self.workspace_diagnostic_refresh_async(None)))
        if self.client.refreshes_lenses:
            self.spawn(_harmless(self.workspace_code_lens_refresh_async(None)))
        if self.client.refreshes_hints:
            self.spawn(_harmless(self.workspace_inlay_hint_refresh_async(None)))

    def everything_changed(self) -> None:
        """Refresh everything after a change of settings or trust."""
        self.settings.look()
        self._has_news = False
        logging.getLogger("kernel_lsp").setLevel(self.settings_for(None).log_level.upper())
        self.knowledge_changed(None)

    def _publish(self, document: Document) -> None:
        """Publish diagnostics, but not before the first analysis: an empty list would mean no findings."""
        if not self.client.pulls_diagnostics and self.analyses.latest(document).is_any:
            self.text_document_publish_diagnostics(
                types.PublishDiagnosticsParams(document.uri, self.diagnostics(document), document.version)
            )

    # --- runs

    def list_runs(self, path: Path | None) -> None:
        """Load the earlier runs of a file's workspace, once; offer to go on with the newest that was interrupted."""
        if path is None or not self.trust.allows_commands:
            return
        workspace = find_workspace(path.parent)
        if self.archives.add(workspace) and (workspace / FOLDER_NAME / "archive.sqlite3").is_file():
            self.spawn(self._list_runs(workspace, is_first=True))

    async def _list_runs(self, workspace: Path, *, is_first: bool = False) -> None:
        reply = await self.engines.of(workspace).ask(ListRuns(id=new_id(), directory=workspace))
        if reply.result is None:
            return
        self.knowledge.learn_runs(workspace, RunList.model_validate(reply.result).runs)
        self.knowledge_changed(None)
        if is_first:
            await self.when_runs_are_listed(self, workspace)
        elif self.wants_job_news:
            self.protocol.notify("kernelLsp/runsChanged", FolderParams(workspace.as_uri()))

    def recall_kernel(self, document: Document) -> None:
        """Load what the archive knows of an opened kernel, if there is an archive."""
        path = document.file
        if path is None or document.language != "cuda" or not self.trust.allows_commands:
            return
        workspace = find_workspace(path.parent)
        if (workspace / FOLDER_NAME / "archive.sqlite3").is_file():
            self.spawn(self._recall_kernel(document, workspace))

    async def _recall_kernel(self, document: Document, workspace: Path) -> None:
        serial = document.serial
        request = GetKernelRecord(id=new_id(), directory=workspace, text=document.text)
        reply = await self.engines.of(workspace).ask(request)
        record = KernelRecord.model_validate(reply.result) if reply.result is not None else KernelRecord()
        if record.verdict is None or self.knowledge.check(document.uri) is not None:
            return
        origin = f"run {record.run_id}, {record.date}"
        self.knowledge.learn_check(document.uri, KnownCheck(record.verdict, serial, origin, record.judged))
        self.knowledge_changed(document)

    def _archive_changed(self, workspace: Path) -> None:
        if self.trust.allows_commands:
            self.spawn(self._list_runs(workspace))

    def _is_running_in(self, workspace: Path) -> bool:
        """Return True while a run of ours writes to the archive of the workspace: its end is learned from its reply."""
        return any(job.workspace == workspace and isinstance(job.request, RUNS) for job in self.jobs)

    # --- jobs

    def _job_changed(self, job: Job) -> None:
        if self.wants_job_news:
            self.protocol.notify("kernelLsp/jobChanged", job.params())

    def _job_told(self, job: Job, event: JobEvent) -> None:
        match event.event:
            case ModelAsked():
                self.editor_model.ask(job, event.event)
            case ModelDropped():
                self.editor_model.drop(job.id, event.event.call)
            case PromptWaits():
                self.manual_prompts.add(job.id, event.event)
            case PromptOver():
                self.manual_prompts.over(job.id, event.event.prompt)
            case _ if self.wants_events and job.tracker.run_id:
                told = RunEventParams(job.id, job.tracker.run_id, event.event.model_dump(mode="json"))
                self.protocol.notify("kernelLsp/runEvent", told)

    async def _job_ended(self, job: Job, reply: Any) -> None:
        self.editor_model.drop_all(job.id)
        self.manual_prompts.drop_all(job.id)
        await self.when_job_ends(self, job, reply)

    def _engine_died(self, workspace: Path, how: str) -> None:
        text = f"The kernel-lsp engine of {workspace} ended ({how}). It starts again when it is needed."
        self.say(types.MessageType.Warning, text)


# --- below


async def _harmless(request: Coroutine[Any, Any, Any]) -> None:
    """Ignore a client's refusal to refresh."""
    try:
        await request
    except ClientRefused as error:
        logger.info("refused: %s", error)


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("a task of ours failed", exc_info=task.exception())


def _wants(initialized: Initialized, what: str) -> bool:
    """Return True when the client declares an experimental capability of ours."""
    experimental = _object(_object(initialized.params.get("capabilities")).get("experimental"))
    return _object(experimental.get("kernelLsp")).get(what) is True


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _folders(params: dict[str, Any]) -> list[Path]:
    """Return the workspace folders, or the root of a client without folder support."""
    given = params.get("workspaceFolders")
    uris = [folder.get("uri") for folder in given if isinstance(folder, dict)] if isinstance(given, list) else []
    uris = uris or [params.get("rootUri")]
    paths = [path_of(uri) for uri in uris if isinstance(uri, str)]
    return [path for path in paths if path is not None]
