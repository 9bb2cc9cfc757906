"""The request for hot spots: the recorded targets of a workspace, by what a kernel saves."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kernel_lsp.core.recording import HotSpot, Recording, Speedup, rank_hot_spots
from kernel_lsp.engine.hot_spots import recorded_name, speedups_of
from kernel_lsp.engine.messages import RunSummary
from kernel_lsp.errors import TargetError
from kernel_lsp.server.analysis.analysis_client import Analyses
from kernel_lsp.server.documents.documents import Documents
from kernel_lsp.server.knowledge import Knowledge
from kernel_lsp.server.language_server import KernelLanguageServer
from kernel_lsp.server.protocol import messages as protocol
from kernel_lsp.source.recorded import read_recording

MAX_FILE_BYTES = 400_000


def hot_spots(ls: KernelLanguageServer, workspace: Path, runs: Iterable[RunSummary]) -> protocol.HotSpotsResult:
    """Rank the workspace's recorded targets by share times headroom."""
    try:
        recording = read_recording(workspace)
    except TargetError as error:
        return protocol.HotSpotsResult([], problem=str(error))
    if recording is None:
        return protocol.HotSpotsResult([])
    speedups = _rooflines(ls.analyses, ls.documents, ls.knowledge, workspace, recording) | speedups_of(runs, workspace)
    items = [_item(spot, workspace) for spot in rank_hot_spots(recording, speedups)]
    found = [item for item in items if item is not None]
    return protocol.HotSpotsResult(found, " ".join(recording.command), recording.date)


# --- below


def _rooflines(
    analyses: Analyses, documents: Documents, knowledge: Knowledge, workspace: Path, recording: Recording
) -> dict[str, Speedup]:
    """Return the distance from the speed of light of those targets that have an estimate."""
    found = {}
    for document in documents:
        for target in analyses.latest(document).analysis.targets if document.file is not None else ():
            known = knowledge.estimate(document.uri, target.symbol)
            assert document.file is not None
            if known is not None and known.estimate.floor_us > 0:
                ratio = known.estimate.estimate.time_us / known.estimate.floor_us
                found[recorded_name(document.file, target.symbol, workspace)] = Speedup(ratio=ratio, kind="roofline")
    return found


def _item(spot: HotSpot, workspace: Path) -> protocol.HotSpotItem | None:
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
