"""Score a benchmark run: speedups by group of baselines, fast_p, and the geometric means."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence

from kernel_lsp.core.benchmark import BaselineGroup, BenchEntry, BenchReport, BenchScore, BenchTime, FastP, Kind
from kernel_lsp.core.measurement import EAGER, Comparison, Estimate, TimedBaseline, is_pytorch

THRESHOLDS = (0.0, 0.5, 0.8, 1.0, 1.2, 1.5, 2.0, 5.0)
"""Values of p. KernelBench reports 0, 0.5, 0.8, 1, 1.5 and 2."""
GROUPS: tuple[BaselineGroup, ...] = ("eager", "compile", "best", "peers")
NO_DIFFERENCE = "no difference"


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
        comparison=comparison,
    )


def speedups(times: Sequence[BenchTime], *, by_claim: bool = False) -> dict[BaselineGroup, float]:
    """Return the baseline's time over ours with all operations together, by group of baselines. `by_claim` counts an
    operation without a significant difference as 1.00."""
    ours_us = sum(time.ours_us for time in times)
    if not ours_us:
        return {}
    totals = {group: [_baseline_us(time, group, by_claim) for time in times] for group in GROUPS}
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


def fast_share(entries: Sequence[BenchEntry], group: BaselineGroup, p: float) -> float:
    """Return the share of all tasks that are verified and more than `p` times as fast as the group."""
    return sum(speedup > p for speedup in _compared(entries, group)) / max(1, len(entries))


def _baseline_us(time: BenchTime, group: BaselineGroup, by_claim: bool) -> float:
    """Return the fastest time of the group; 0 when it has none."""
    names = [name for name in time.baselines_us if _is_in(name, group)]
    if not names:
        return 0.0
    fastest = min(names, key=lambda name: time.baselines_us[name])
    return time.ours_us if by_claim and _claims(time).get(fastest) == NO_DIFFERENCE else time.baselines_us[fastest]


def _is_in(name: str, group: BaselineGroup) -> bool:
    own: BaselineGroup = "eager" if name == EAGER else "compile" if is_pytorch(name) else "peers"
    return own == group or (group == "best" and own != "peers")


def _claims(time: BenchTime) -> Mapping[str, str]:
    baselines = time.comparison.baselines if time.comparison is not None else ()
    return {b.name: b.ratio.claim for b in baselines if isinstance(b, TimedBaseline) and b.ratio is not None}


def _compared(entries: Sequence[BenchEntry], group: BaselineGroup) -> list[float]:
    return [entry.speedups[group] for entry in entries if entry.status == "verified" and group in entry.speedups]


def _score(group: BaselineGroup, entries: Sequence[BenchEntry]) -> BenchScore:
    claimed = [entry.claimed[group] for entry in entries if entry.status == "verified" and group in entry.claimed]
    found = _compared(entries, group)
    return BenchScore(
        baseline=group,
        n_tasks=len(entries),
        n_compared=len(found),
        fast=tuple(FastP(p=p, share=fast_share(entries, group, p)) for p in THRESHOLDS),
        geomean=_geomean(found),
        geomean_claimed=_geomean(claimed),
    )


def _geomean(values: Sequence[float]) -> float | None:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None
