"""Requests about a whole workspace: its runs, its targets, a run's report."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from pygls.exceptions import JsonRpcInvalidParams

from kernel_lsp.config import FOLDER_NAME, find_workspace
from kernel_lsp.core.recording import HotSpot, Speedup, rank_hot_spots
from kernel_lsp.engine.hot_spots import recorded_name, speedups_of
from kernel_lsp.engine.messages import GetReport, ListRuns, ReportPage, Request, RunList, RunSummary
from kernel_lsp.errors import TargetError
from kernel_lsp.process.channel import Channel
from kernel_lsp.server.documents.documents import path_of
from kernel_lsp.server.features.formatting import result_text
from kernel_lsp.server.jobs.jobs import Engines, new_id
from kernel_lsp.server.protocol import messages as protocol
from kernel_lsp.server.state import State
from kernel_lsp.source.recorded import read_recording

SCAN = (sys.executable, "-m", "kernel_lsp.server.analysis.analysis_worker", "targets")
SCAN_S = 60.0
"""Timeout of one folder scan, in seconds, in case the file system hangs."""


async def _runs(state: State, params: protocol.FolderParams) -> protocol.RunsResult:
    workspace = _workspace(params.uri)
    state.archives.add(workspace)
    return protocol.RunsResult([_item(run) for run in await _list_runs(state, workspace)])


async def _hot_spots(state: State, params: protocol.FolderParams) -> protocol.HotSpotsResult:
    workspace = _workspace(params.uri)
    return hot_spots(state, workspace, await _list_runs(state, workspace))


async def _targets(state: State, params: protocol.FolderParams) -> protocol.TargetsResult:
    """Scan for targets in a separate process, so that parsing many files delays no other reply. Scans run one at a
    time, whatever the number of requests."""
    path = _path(params.uri)
    async with state.scanning:
        try:
            async with asyncio.timeout(SCAN_S):
                return await _scan(path)
        except TimeoutError:
            return protocol.TargetsResult([], is_complete=False)


async def _report(state: State, params: protocol.RunArguments) -> protocol.ReportResult:
    workspace = _workspace(params.uri)
    if not state.trust.allows_commands:
        raise JsonRpcInvalidParams(message="the workspace is not trusted")
    result = await _ask(state.engines, workspace, GetReport(id=new_id(), directory=workspace, run_id=params.run))
    page = ReportPage.model_validate(result)
    return protocol.ReportResult(page.run_id, page.data, page.html)


HANDLERS: dict[str, Callable[..., Any]] = {
    "kernelLsp/runs": _runs,
    "kernelLsp/targets": _targets,
    "kernelLsp/hotSpots": _hot_spots,
    "kernelLsp/report": _report,
}


async def _list_runs(state: State, workspace: Path) -> tuple[RunSummary, ...]:
    if not state.trust.allows_commands or not (workspace / FOLDER_NAME / "archive.sqlite3").is_file():
        return ()
    result = await _ask(state.engines, workspace, ListRuns(id=new_id(), directory=workspace))
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


MAX_FILE_BYTES = 400_000


def hot_spots(state: State, workspace: Path, runs: Iterable[RunSummary]) -> protocol.HotSpotsResult:
    """Rank the workspace's recorded targets by share times headroom."""
    try:
        recording = read_recording(workspace)
    except TargetError as error:
        return protocol.HotSpotsResult([], problem=str(error))
    if recording is None:
        return protocol.HotSpotsResult([])
    speedups = _rooflines(state, workspace) | speedups_of(runs, workspace)
    items = [_hot_spot(spot, workspace) for spot in rank_hot_spots(recording, speedups)]
    found = [item for item in items if item is not None]
    return protocol.HotSpotsResult(found, " ".join(recording.command), recording.date)


def _rooflines(state: State, workspace: Path) -> dict[str, Speedup]:
    """Return the distance from the speed of light of those targets that have an estimate."""
    found = {}
    for document in state.documents:
        for target in state.analyses.latest(document).analysis.targets if document.file is not None else ():
            known = state.knowledge.estimate(document.uri, target.symbol)
            assert document.file is not None
            if known is not None and known.estimate.floor_us > 0:
                ratio = known.estimate.estimate.time_us / known.estimate.floor_us
                found[recorded_name(document.file, target.symbol, workspace)] = Speedup(ratio=ratio, kind="roofline")
    return found


def _hot_spot(spot: HotSpot, workspace: Path) -> protocol.HotSpotItem | None:
    """Return the item of a target that still exists; a recording may name any path."""
    name, _, symbol = spot.target.partition("::")
    file = (workspace / name).resolve()
    line = _line_of(file, symbol) if file.is_relative_to(workspace.resolve()) else None
    if line is None:
        return None
    return protocol.HotSpotItem(
        uri=file.as_uri(),
        symbol=symbol,
        line=line,
        share=spot.share,
        gain=spot.gain,
        speedup=spot.speedup.ratio if spot.speedup is not None else 0.0,
        kind=spot.speedup.kind if spot.speedup is not None else "",
        calls=spot.n_calls,
        inputs=spot.inputs,
    )


def _line_of(file: Path, symbol: str) -> int | None:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            return None
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    found = re.search(rf"^(?:def|class) {re.escape(symbol)}\b", text, re.MULTILINE)
    return text.count("\n", 0, found.start()) if found is not None else None
