"""Reuse of tuned schedules: the same graph, sizes and GPU need no second search, in whichever workspace.

The user's cache folder has one entry per key. An entry holds only while the generator prints the same text for its
schedule, so a newer generator searches again.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from kernel_lsp import __version__
from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.digest import sha256_of
from kernel_lsp.core.model import Noun
from kernel_lsp.core.task import Graph, Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.run.evaluations import score_kind, score_us
from kernel_lsp.training.features import SchedulableProgram
from kernel_lsp.verify.timing.baseline_cache import KeyedCache

FOLDER = "schedules"
SAME_TIME = 1.1
"""Maximum ratio of a time to the recorded one at which the recorded search still holds."""


class TunedKey(Noun):
    """The factors of a schedule's time. `gpu` is the device that measured, or the target of estimates."""

    graphs: str
    """Hash of the graphs without names of the user's code."""
    sizes: dict[str, int]
    gpu: str
    kind: Literal["measured", "estimated"]
    version: str = __version__


class TunedSchedule(Noun):
    """The winner of an earlier search. `n_tried` is the number of candidates that it was chosen from."""

    schedule: dict[str, int | str]
    text_hash: str
    time_us: float
    n_tried: int
    date: str

    def holds(self, program: SchedulableProgram) -> bool:
        """Return True when the generator still prints this text for the schedule."""
        realized = program.realize(self.schedule)
        return realized.is_valid and _text_hash(realized.text) == self.text_hash

    def is_confirmed_by(self, text: str, time_us: float) -> bool:
        """Return True when this is the kernel, and it takes about the recorded time."""
        return _text_hash(text) == self.text_hash and time_us <= SAME_TIME * self.time_us


class TunedSchedules(KeyedCache[TunedSchedule]):
    """The user's cache of tuned schedules."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / FOLDER, TypeAdapter(TunedSchedule))

    def remember(self, key: TunedKey, winner: Candidate, verdict: Verdict, n_tried: int) -> None:
        """Keep the winner of a search, unless a faster one from as many candidates is known."""
        time_us = score_us(verdict)
        if winner.origin.proposer != "generator" or time_us is None or score_kind(verdict) != key.kind:
            return
        known, text_hash = self.find(key), _text_hash(winner.text)
        n_tried = max(n_tried, known.n_tried) if known is not None and known.text_hash == text_hash else n_tried
        if known is not None and known.n_tried > n_tried and known.time_us <= time_us:
            return
        today = datetime.date.today().isoformat()
        schedule = dict(winner.origin.schedule)
        self.keep(
            key,
            TunedSchedule(schedule=schedule, text_hash=text_hash, time_us=time_us, n_tried=n_tried, date=today),
        )


def tuned_key(task: Task, gpu: str, kind: Literal["measured", "estimated"]) -> TunedKey:
    """Return the key of a task: equal for the same computation in another file."""
    graphs = [_plain(graph) for graph in task.graphs]
    text = json.dumps([graphs, [argument.model_dump(mode="json") for argument in task.arguments]], sort_keys=True)
    return TunedKey(
        graphs=sha256_of(text),
        sizes={symbol.name: symbol.captured for symbol in task.symbols},
        gpu=gpu,
        kind=kind,
    )


def _plain(graph: Graph) -> Mapping[str, Any]:
    """Return the graph without places in the user's code."""
    return graph.model_dump(mode="json", exclude={"nodes": {"__all__": {"source", "user_name", "module_path"}}})


def _text_hash(text: str) -> str:
    """Return the hash of a kernel's text without its `task:` line, which names a path."""
    lines = (line for line in text.splitlines() if not line.startswith("// task:"))
    return sha256_of("\n".join(lines))
