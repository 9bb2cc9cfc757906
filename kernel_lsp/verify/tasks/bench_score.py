"""Score a benchmark run: speedups by group of baselines, fast_p, and the geometric mean."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence

from kernel_lsp.core.benchmark import BaselineGroup, BenchEntry, BenchReport, BenchScore, BenchTime, FastP, Kind
from kernel_lsp.core.measurement import EAGER, Comparison, Estimate

THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 5.0)
"""Values of p. KernelBench reports 0, 0.5, 0.8, 1, 1.5 and 2."""
GROUPS: tuple[BaselineGroup, ...] = ("eager", "compile", "best")


def bench_time(operation: str, comparison: Comparison) -> BenchTime:
    """Return one operation's times, from the comparison of its verdict."""
    return BenchTime(
        operation=operation,
        kind="estimated" if isinstance(comparison.ours, Estimate) else "measured",
        gpu=comparison.ours.gpu,
        ours_us=comparison.ours.time_us,
        baselines_us=comparison.baselines_us,
        floor_us=comparison.floor.time_us if comparison.floor is not None else None,
        claim=comparison.ratio.claim if comparison.ratio is not None else "",
    )


def speedups(times: Sequence[BenchTime]) -> dict[BaselineGroup, float]:
    """Return PyTorch's time over ours with all operations together, by group of baselines."""
    ours_us = sum(time.ours_us for time in times)
    if not ours_us:
        return {}
    totals = {group: [_baseline_us(time.baselines_us, group) for time in times] for group in GROUPS}
    return {group: sum(found) / ours_us for group, found in totals.items() if all(time_us > 0 for time_us in found)}


def bench_report(entries: Sequence[BenchEntry]) -> BenchReport:
    """Return the report of a finished run."""
    kinds: set[Kind] = {entry.kind for entry in entries} - {"none"}
    kind: Kind = "none" if not kinds else kinds.pop() if len(kinds) == 1 else "mixed"
    scores = {group: score for group in GROUPS if (score := _score(group, entries)).n_compared}
    if "compile" not in scores:
        scores.pop("best", None)  # it would equal eager
    return BenchReport(
        kind=kind, date=datetime.date.today().isoformat(), entries=tuple(entries), scores=tuple(scores.values())
    )


# --- below


def _baseline_us(baselines: Mapping[str, float], group: BaselineGroup) -> float:
    """Return the fastest time of the group; 0 when it has none."""
    chosen = {
        "eager": [time_us for name, time_us in baselines.items() if name == EAGER],
        "compile": [time_us for name, time_us in baselines.items() if name != EAGER],
        "best": list(baselines.values()),
    }[group]
    return min(chosen, default=0.0)


def _score(group: BaselineGroup, entries: Sequence[BenchEntry]) -> BenchScore:
    found = [entry.speedups[group] for entry in entries if entry.status == "verified" and group in entry.speedups]
    n_tasks = len(entries)
    return BenchScore(
        baseline=group,
        n_tasks=n_tasks,
        n_compared=len(found),
        fast=tuple(FastP(p=p, share=sum(speedup > p for speedup in found) / max(1, n_tasks)) for p in THRESHOLDS),
        geomean=math.exp(sum(map(math.log, found)) / len(found)) if found else None,
    )
