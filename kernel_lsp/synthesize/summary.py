"""Summarize a synthesis: how many tasks each filter was asked about and dropped, and the time of each stage."""

from __future__ import annotations

from collections import Counter

from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.synthesize.attempt import FILTERS, Attempt
from kernel_lsp.synthesize.request import SynthesisFolder
from kernel_lsp.synthesize.run import Synthesis


class FilterCount(Noun):
    """Tasks that reached a filter, and those that it dropped."""

    filter: str
    n_reached: int
    n_dropped: int

    @property
    def share_passed(self) -> float:
        return 1.0 - self.n_dropped / self.n_reached if self.n_reached else 1.0


class SynthesisSummary(Noun):
    """JSON output of `kernel-lsp synthesize --json`. Times are in seconds; those of stages sum over processes."""

    schema_version: int = SCHEMA_VERSION
    folder: str
    index: str
    n_tasks: int
    n_wanted: int
    n_attempts: int
    n_resumed: int
    n_duplicates: int
    n_captured: int
    n_held_out: int
    untraced_held_out: dict[str, str]
    filters: tuple[FilterCount, ...]
    structures: dict[str, int]
    device: str
    compiler: str
    elapsed_s: float
    stage_s: dict[str, float]


def summarize(synthesis: Synthesis, folder: SynthesisFolder) -> SynthesisSummary:
    """Return the summary of a finished or interrupted synthesis."""
    settled = [*synthesis.accepted, *synthesis.dropped]
    stages: Counter[str] = Counter()
    for attempt in settled:
        stages.update(attempt.seconds)
    hashes = [attempt.trace.graph_hash for attempt in synthesis.accepted if attempt.trace is not None]
    return SynthesisSummary(
        folder=str(folder.root),
        index=str(folder.index),
        n_tasks=len(synthesis.accepted),
        n_wanted=synthesis.n_tasks,
        n_attempts=len(settled),
        n_resumed=synthesis.n_resumed,
        n_duplicates=len(hashes) - len(set(hashes)),
        n_captured=sum(attempt.is_captured for attempt in synthesis.accepted),
        n_held_out=len(synthesis.held_out.traces),
        untraced_held_out=synthesis.held_out.untraced,
        filters=_counts(settled),
        structures=dict(Counter(attempt.structure for attempt in synthesis.accepted)),
        device=next((attempt.device for attempt in synthesis.accepted), ""),
        compiler=next((attempt.compiler for attempt in synthesis.accepted), ""),
        elapsed_s=round(synthesis.elapsed_s, 1),
        stage_s={name: round(seconds, 1) for name, seconds in stages.items()},
    )


def _counts(settled: list[Attempt]) -> tuple[FilterCount, ...]:
    """Count along the filters' order: a dropped task reaches none after the filter that dropped it."""
    dropped = Counter(attempt.dropped_by for attempt in settled)
    counts, n_left = [], len(settled)
    for name in FILTERS:
        counts.append(FilterCount(filter=name, n_reached=n_left, n_dropped=dropped[name]))
        n_left -= dropped[name]
    return tuple(counts)
