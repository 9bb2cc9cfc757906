"""The server's state: documents, analyses, cached results and jobs of one client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lsprotocol import types

from kernel_lsp.config import FOLDER_NAME, Settings, find_workspace
from kernel_lsp.core.event import CandidateVerified
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
    Reply,
    Resume,
    RunList,
)
from kernel_lsp.errors import SettingError
from kernel_lsp.gpu.specs import has_gpu
from kernel_lsp.server.analysis.analysis_client import Analyses
from kernel_lsp.server.client import Client, as_object
from kernel_lsp.server.documents.documents import Document, Documents, path_of
from kernel_lsp.server.documents.places import Notebooks
from kernel_lsp.server.features.diagnostics import advice_diagnostics, diagnostics_of
from kernel_lsp.server.jobs.editor_model import EditorModel, ManualPrompts
from kernel_lsp.server.jobs.jobs import Engines, Job, Jobs, new_id
from kernel_lsp.server.knowledge import ArchiveWatch, Knowledge, KnownCheck
from kernel_lsp.server.protocol.handshake import Initialized
from kernel_lsp.server.protocol.messages import FolderParams, RunEventParams
from kernel_lsp.server.settings import EditorSettings, Trust

RUNS = (Optimize, OptimizeLines, Resume)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reactions:
    """Handlers of a job's end, of changed settings, of the first list of a workspace's runs, and of a kernel that is
    verified while its run goes on."""

    job_ended: Callable[[State, Job, Reply], Awaitable[None]]
    settings_changed: Callable[[State], None]
    runs_listed: Callable[[State, Path], Awaitable[None]]
    verified_early: Callable[[State, Job, CandidateVerified], Coroutine[Any, Any, None]]


class State:
    """The state that handlers and commands read and change."""

    def __init__(self, client: Client, initialized: Initialized, reactions: Reactions) -> None:
        options = as_object(initialized.params.get("initializationOptions"))
        self.client, self._reactions = client, reactions
        self.has_gpu = has_gpu()
        self.editor_model = EditorModel(client.protocol)
        self.manual_prompts = ManualPrompts(client.show, client.inform, self.spawn)
        self.documents = Documents(client.features.encoding)
        self.knowledge = Knowledge()
        self.settings = EditorSettings(as_object(options.get("settings")), self._settings_changed)
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
        self._has_news = False
        self._lensed: dict[str, tuple[object, ...]] = {}

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

    def settings_for(self, path: Path | None) -> Settings:
        """Return the settings for a file, or the defaults. An invalid setting is reported once, and the previous values
        stay."""
        directory = path.parent if path is not None else (self.folders[0] if self.folders else Path.cwd())
        try:
            return self.settings.of(directory)
        except SettingError as error:
            self.client.warn_once(str(error))
            return self.settings.latest(directory)

    def _settings_changed(self) -> None:
        """Drop results of other settings at once, and refresh what the client shows."""
        self._has_news = True
        self._reactions.settings_changed(self)
        asyncio.get_running_loop().call_soon(self._show_news)

    def _show_news(self) -> None:
        if self._has_news:
            self.everything_changed()

    async def read_configuration(self) -> None:
        """Take over the client's configuration, if it has any."""
        values = await self.client.configuration(self.folders)
        if values is None:
            return
        if values and isinstance(values[0], dict):
            self.settings.set_everywhere(values[0])
        for folder, value in zip(self.folders, values[1:], strict=False):
            if isinstance(value, dict):
                self.settings.set_for(folder, value)
        self.everything_changed()

    def diagnostics(self, document: Document) -> list[types.Diagnostic]:
        """Return the current diagnostics of a document."""
        if not self.settings_for(document.file).diagnostics:
            return []
        analysis = self.analyses.latest(document).now(document)
        check = self.knowledge.check(document.uri)
        found = diagnostics_of(document, analysis, check, shows_related=self.client.features.shows_related)
        return [*found, *advice_diagnostics(document, analysis, self.knowledge)]

    def analysis_changed(self, document: Document) -> None:
        """Publish new findings and targets. Lenses are refreshed too: the client's own request after the edit came too
        early."""
        self._publish(document)
        analysis = self.analyses.latest(document).analysis
        lensed = (analysis.has_plan, analysis.kernels, *((each.symbol, each.line) for each in analysis.targets))
        if self._lensed.get(document.uri) != lensed:
            self._lensed[document.uri] = lensed
            self.spawn(self.client.refresh_lenses())

    def knowledge_changed(self, document: Document | None) -> None:
        """Publish new times, verdicts or runs: of one document, or of all."""
        for changed in [document] if document is not None else self.documents:
            self._publish(changed)
        self.spawn(self.client.refresh())

    def everything_changed(self) -> None:
        """Refresh everything after a change of settings or trust."""
        self.settings.look()
        self._has_news = False
        logging.getLogger("kernel_lsp").setLevel(self.settings_for(None).log_level.upper())
        self.knowledge_changed(None)

    def _publish(self, document: Document) -> None:
        """Publish diagnostics, but not before the first analysis: an empty list would mean no findings."""
        if not self.client.features.pulls_diagnostics and self.analyses.latest(document).is_any:
            self.client.publish(document.uri, self.diagnostics(document), document.version)

    def list_runs(self, path: Path | None) -> None:
        """Load the earlier runs of a file's workspace, once; offer to go on with the newest that was interrupted."""
        if path is None or not self.trust.allows_commands:
            return
        workspace = find_workspace(path.parent)
        if self.archives.add(workspace) and (workspace / FOLDER_NAME / "archive.sqlite3").is_file():
            self.spawn(self.load_runs(workspace, is_first=True))

    async def load_runs(self, workspace: Path, *, is_first: bool = False) -> None:
        """Learn the runs of a workspace from its archive."""
        reply = await self.engines.of(workspace).ask(ListRuns(id=new_id(), directory=workspace))
        if reply.result is None:
            return
        self.knowledge.learn_runs(workspace, RunList.model_validate(reply.result).runs)
        self.knowledge_changed(None)
        if is_first:
            await self._reactions.runs_listed(self, workspace)
        elif self.client.wants_job_news:
            self.client.notify("kernelLsp/runsChanged", FolderParams(workspace.as_uri()))

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
            self.spawn(self.load_runs(workspace))

    def _is_running_in(self, workspace: Path) -> bool:
        """Return True while a run of ours writes to the archive of the workspace: its end is learned from its reply."""
        return any(job.workspace == workspace and isinstance(job.request, RUNS) for job in self.jobs)

    def _job_changed(self, job: Job) -> None:
        if self.client.wants_job_news:
            self.client.notify("kernelLsp/jobChanged", job.params())

    def _job_told(self, job: Job, event: JobEvent) -> None:
        if isinstance(event.event, CandidateVerified):
            self.spawn(self._reactions.verified_early(self, job, event.event))
        match event.event:
            case ModelAsked():
                self.editor_model.ask(job, event.event)
            case ModelDropped():
                self.editor_model.drop(job.id, event.event.call)
            case PromptWaits():
                self.manual_prompts.add(job.id, event.event)
            case PromptOver():
                self.manual_prompts.over(job.id, event.event.prompt)
            case _ if self.client.wants_events and job.tracker.run_id:
                told = RunEventParams(job.id, job.tracker.run_id, event.event.model_dump(mode="json"))
                self.client.notify("kernelLsp/runEvent", told)

    async def _job_ended(self, job: Job, reply: Reply) -> None:
        self.editor_model.drop_all(job.id)
        self.manual_prompts.drop_all(job.id)
        self.knowledge.run_over(job.id)
        await self._reactions.job_ended(self, job, reply)

    def _engine_died(self, workspace: Path, how: str) -> None:
        text = f"The kernel-lsp engine of {workspace} ended ({how}). It starts again when it is needed."
        self.client.warn(text)


def _log_failure(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.error("a task of ours failed", exc_info=task.exception())


def _folders(params: dict[str, Any]) -> list[Path]:
    """Return the workspace folders, or the root of a client without folder support."""
    given = params.get("workspaceFolders")
    uris = [folder.get("uri") for folder in given if isinstance(folder, dict)] if isinstance(given, list) else []
    uris = uris or [params.get("rootUri")]
    paths = [path_of(uri) for uri in uris if isinstance(uri, str)]
    return [path for path in paths if path is not None]
