"""Find the speedups of a workspace's recorded targets in its runs. Light: the server imports it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from kernel_lsp.core.recording import Speedup
from kernel_lsp.engine.messages import RunSummary


def speedups_of(runs: Iterable[RunSummary], workspace: Path) -> dict[str, Speedup]:
    """Return the speedup of each target's newest result, by the target's name in a recording."""
    found: dict[str, Speedup] = {}
    for run in runs:
        if run.recommendation is not None and run.recommendation.ratio > 0:
            name = recorded_name(Path(run.file), run.symbol or "Model", workspace)
            found.setdefault(name, Speedup(ratio=run.recommendation.ratio, kind=run.recommendation.kind))
    return found


def recorded_name(file: Path, symbol: str, workspace: Path) -> str:
    """Return the name of a target in the recording of a workspace."""
    path = os.path.relpath(os.path.realpath(file), os.path.realpath(workspace)).replace(os.sep, "/")
    return f"{path}::{symbol}"
