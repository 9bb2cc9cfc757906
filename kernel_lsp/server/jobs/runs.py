"""Requests about a whole workspace: its runs, its targets, a run's report."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pygls.exceptions import JsonRpcInvalidParams

from kernel_lsp.config import FOLDER_NAME, find_workspace
from kernel_lsp.engine.messages import GetReport, ListRuns, ReportPage, Request, RunList, RunSummary
from kernel_lsp.process.channel import Channel
from kernel_lsp.server.documents.documents import path_of
from kernel_lsp.server.features.formatting import result_text
from kernel_lsp.server.jobs.hot_spots import hot_spots
from kernel_lsp.server.jobs.jobs import Engines, new_id
from kernel_lsp.server.language_server import KernelLanguageServer
from kernel_lsp.server.protocol import messages as protocol

SCAN = (sys.executable, "-m", "kernel_lsp.server.analysis.target_scan")
SCAN_S = 60.0
"""Timeout of one folder scan, in seconds, in case the file system hangs."""


async def _runs(ls: KernelLanguageServer, params: protocol.FolderParams) -> protocol.RunsResult:
    workspace = _workspace(params.uri)
    ls.archives.add(workspace)
    return protocol.RunsResult([_item(run) for run in await _list_runs(ls, workspace)])


async def _hot_spots(ls: KernelLanguageServer, params: protocol.FolderParams) -> protocol.HotSpotsResult:
    workspace = _workspace(params.uri)
    return hot_spots(ls, workspace, await _list_runs(ls, workspace))


async def _targets(ls: KernelLanguageServer, params: protocol.FolderParams) -> protocol.TargetsResult:
    """Scan for targets in a separate process, so that parsing many files delays no other reply. Scans run one at a
    time, whatever the number of requests."""
    path = _path(params.uri)
    async with ls.scanning:
        try:
            async with asyncio.timeout(SCAN_S):
                return await _scan(path)
        except TimeoutError:
            return protocol.TargetsResult([], is_complete=False)


async def _report(ls: KernelLanguageServer, params: protocol.RunArguments) -> protocol.ReportResult:
    workspace = _workspace(params.uri)
    if not ls.trust.allows_commands:
        raise JsonRpcInvalidParams(message="the workspace is not trusted")
    result = await _ask(ls.engines, workspace, GetReport(id=new_id(), directory=workspace, run_id=params.run))
    page = ReportPage.model_validate(result)
    return protocol.ReportResult(page.run_id, page.data, page.html)


HANDLERS: dict[str, Callable[..., Any]] = {
    "kernelLsp/runs": _runs,
    "kernelLsp/targets": _targets,
    "kernelLsp/hotSpots": _hot_spots,
    "kernelLsp/report": _report,
}


# --- below


async def _list_runs(ls: KernelLanguageServer, workspace: Path) -> tuple[RunSummary, ...]:
    if not ls.trust.allows_commands or not (workspace / FOLDER_NAME / "archive.sqlite3").is_file():
        return ()
    result = await _ask(ls.engines, workspace, ListRuns(id=new_id(), directory=workspace))
    return RunList.model_validate(result).runs


async def _scan(path: Path) -> protocol.TargetsResult:
    channel = Channel(SCAN, environment=dict(os.environ))
    await channel.start()
    try:
        channel.send({"folder": str(path)})
        async for message in channel.messages():
            targets = [protocol.TargetItem(**target) for target in message["targets"]]
            return protocol.TargetsResult(targets, message["is_complete"])
    finally:
        await channel.close()
    return protocol.TargetsResult([], is_complete=False)


async def _ask(engines: Engines, workspace: Path, request: Request) -> dict[str, Any]:
    reply = await engines.of(workspace).ask(request)
    if reply.result is None:
        raise JsonRpcInvalidParams(message=reply.error.message if reply.error is not None else "no reply")
    return reply.result


def _item(run: RunSummary) -> protocol.RunItem:
    return protocol.RunItem(
        run=run.run_id,
        target=run.target,
        uri=Path(run.file).as_uri(),
        symbol=run.symbol,
        status=run.status,  # type: ignore[arg-type]  # the archive's words are these
        started=run.started,
        device=run.device,
        has_kernel=run.candidate_id is not None,
        result=result_text(run) if run.candidate_id is not None else run.reason,
    )


def _workspace(uri: str) -> Path:
    path = _path(uri)
    return find_workspace(path if path.is_dir() else path.parent)


def _path(uri: str) -> Path:
    path = path_of(uri)
    if path is None:
        raise JsonRpcInvalidParams(message=f"{uri!r} is no file")
    return path
