"""Cache captures for estimates, while the engine lives."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from pathlib import Path

from kernel_lsp.config import load_settings
from kernel_lsp.core.model import Noun
from kernel_lsp.core.task import Task
from kernel_lsp.engine.generated import origin_of
from kernel_lsp.engine.line_costs import estimate_lines
from kernel_lsp.engine.messages import EstimateTarget, TargetEstimate
from kernel_lsp.errors import SettingError
from kernel_lsp.gpu.specs import GpuSpec, find_gpu

CAPTURED_NAME = "captured.json"
"""File name in the folder of the job that captures."""
MAX_KEPT = 64
"""Maximum number of targets; one takes up to some megabytes of disk."""


class Captured(Noun):
    """A target's captured task. `generated` is the file built from a notebook's cells, if the target is in one."""

    task: Task
    generated: Path | None = None


class Captures:
    """Captures by target and interpreter, in a folder of the engine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, request: EstimateTarget, folder: Path) -> None:
        """Store the capture that a job left in its folder, if any, and evict the oldest."""
        with suppress(OSError, SettingError):  # on failure the next estimate captures again
            self._folder.mkdir(exist_ok=True)
            (folder / CAPTURED_NAME).replace(self._path(request))
            kept = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
            for path in kept[:-MAX_KEPT]:
                path.unlink()

    def has(self, request: EstimateTarget) -> bool:
        """Return True when the target was captured under the interpreter of the request's settings."""
        try:
            return self._path(request).is_file()
        except SettingError:
            return False

    def estimate(self, request: EstimateTarget) -> TargetEstimate:
        """Estimate the cached capture for the GPU of the request's settings. Raises SettingError."""
        captured = Captured.model_validate_json(self._path(request).read_bytes())
        gpu = find_gpu(load_settings(request.directory, request.settings).target_gpu)
        return estimate_captured(captured, request.target, gpu)

    def _path(self, request: EstimateTarget) -> Path:
        python = load_settings(request.directory, request.settings).python
        about = json.dumps([str(request.directory), request.target, bool(request.cells), str(python)])
        return self._folder / f"{hashlib.sha256(about.encode(errors='replace')).hexdigest()}.json"


def estimate_captured(captured: Captured, target: str, gpu: GpuSpec) -> TargetEstimate:
    """Estimate each line, numbered as in the file or in the concatenated cells."""
    found = estimate_lines(target, captured.task, gpu)
    return found if captured.generated is None else _in_cells(found, captured.generated)


def _in_cells(found: TargetEstimate, generated: Path) -> TargetEstimate:
    """Convert lines of the generated file to lines of the cells, which have one line less above them."""
    notebook = str(origin_of(generated).file)
    lines = [
        line.model_copy(update={"file": notebook, "line": line.line - 1})
        for line in found.lines
        if Path(line.file) == generated
    ]
    return found.model_copy(update={"lines": tuple(lines)})
