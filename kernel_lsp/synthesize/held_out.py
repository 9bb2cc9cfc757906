"""Compare tasks with held-out sets, e.g. KernelBench, by normalized graph hash and by n-grams of operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernel_lsp.core.model import Noun
from kernel_lsp.errors import KernelLspError
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.source.pytorch import read_target

MAX_SIMILARITY = 0.7
"""Maximum Jaccard index of two tasks' n-grams. A task of four operators that shares three in order has about 0.5."""
TRACE_DEADLINE_S = 60.0


class Trace(Noun):
    """A task's normalized graph: its hash, n-grams of operators, and operators in order."""

    graph_hash: str
    grams: tuple[str, ...]
    ops: tuple[str, ...]


@dataclass(frozen=True)
class HeldOut:
    """Traces of held-out tasks by target. `untraced` are those that could not be traced, with the reason."""

    traces: dict[str, Trace]
    untraced: dict[str, str] = field(default_factory=dict)

    def nearest(self, trace: Trace) -> tuple[str, float]:
        """Return the most similar held-out task and its similarity: 1 for an equal graph, else the Jaccard index."""
        found = [(similarity(trace, other), target) for target, other in self.traces.items()]
        best, target = max(found, default=(0.0, ""))
        return target, best


def similarity(one: Trace, other: Trace) -> float:
    if one.graph_hash == other.graph_hash:
        return 1.0
    both = set(one.grams) & set(other.grams)
    return len(both) / max(1, len(set(one.grams) | set(other.grams)))


async def trace_target(worker: Worker, target: str, directory: Path) -> Trace:
    """Trace one task. Raises KernelLspError where it cannot be traced."""
    source = read_target(target, directory)
    request = {"source": source.model_dump(mode="json")}
    return Trace.model_validate(await worker.ask("trace_task", request, deadline_s=TRACE_DEADLINE_S))


async def trace_held_out(worker: Worker, targets: Sequence[str], directory: Path) -> HeldOut:
    """Trace every held-out task. Those that cannot be traced are listed, and compared with nothing."""
    traces: dict[str, Trace] = {}
    untraced: dict[str, str] = {}
    for target in targets:
        if not worker.is_alive:
            untraced[target] = "the worker ended before"
            continue
        try:
            traces[target] = await trace_target(worker, target, directory)
        except KernelLspError as error:
            untraced[target] = error.message
    return HeldOut(traces, untraced)
