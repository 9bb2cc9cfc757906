"""The request of a synthesis: its number, seed, sizes, bounds and held-out folders."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kernel_lsp.core.model import Noun


@dataclass(frozen=True)
class Scale:
    """Sizes of tasks on a kind of device: elements of the first input, operations of all products, eager time (ms)."""

    elements: tuple[int, int]
    max_flops: float
    eager_ms: tuple[float, float]


SCALES = {
    "cpu": Scale((1 << 12, 1 << 18), 2e9, (0.02, 100.0)),
    "cuda": Scale((1 << 22, 1 << 27), 5e12, (1.0, 100.0)),
}
"""CUDA Agent's bounds of 1 to 100 ms hold on a GPU. On a CPU, the lower one excludes tasks that only dispatch."""
DEVICE_SCALES = {"CPU": "cpu"}
MAX_OPERATORS = 5
GROWTH = 8
"""Maximum elements of any tensor of a model's task, as a multiple of the scale's maximum. A drawn one has its own."""


class SynthesisRequest(Noun):
    """A synthesis, as its journal's first line states it. A resumed one must be equal, except for `n_tasks`."""

    seed: int
    scale: str
    max_operators: int = MAX_OPERATORS
    compiler: str = ""
    held_out: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    """Models as `--model` names them: they compose every second task, and judge baselines."""
    torch_version: str = ""
    catalogue_hash: str = ""


@dataclass(frozen=True)
class SynthesisFolder:
    """The files of a synthesis in its folder."""

    root: Path

    @property
    def tasks(self) -> Path:
        return self.root / "tasks"

    @property
    def drafts(self) -> Path:
        return self.root / ".drafts"

    @property
    def catalogue(self) -> Path:
        return self.root / "operators.json"

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def index(self) -> Path:
        return self.root / "index.parquet"
