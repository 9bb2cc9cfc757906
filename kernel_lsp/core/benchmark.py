"""Results of the benchmark suite and of the task filters: the outcome of each task, speedups over PyTorch, and whether
a task is worth measuring kernels on."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Literal

from kernel_lsp.core.measurement import EAGER, Comparison, Estimate, MissingBaseline, TimedBaseline, is_pytorch
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.core.recommendation import Recommendation

Kind = Literal["measured", "estimated", "mixed", "none"]
BaselineGroup = Literal["eager", "compile", "best", "peers"]
"""``compile`` is the fastest of torch.compile's modes that ran, ``best`` the faster of it and eager, ``peers`` the
fastest of other libraries."""
Status = Literal["verified", "none", "refused", "failed"]
"""``none``: no candidate was correct; ``refused``: the task cannot be captured or planned; ``failed``: the row hit its
time limit, or an error of ours."""


class BenchTime(Noun):
    """One operation of a verified kernel. `baselines_us` has the time of every PyTorch baseline that was timed."""

    operation: str
    kind: Literal["measured", "estimated"]
    gpu: str
    ours_us: float
    baselines_us: dict[str, float]
    floor_us: float | None = None
    claim: str = ""
    """Claim against the best of PyTorch, from interleaved measurements: faster, slower or no difference."""
    comparison: Comparison | None = None
    """Everything that was measured: intervals, noise floors, all baselines, clocks."""

    @property
    def share_of_limit(self) -> float | None:
        """Return the speed of light over our time; 1 is the limit."""
        return self.floor_us / self.ours_us if self.floor_us is not None and self.ours_us else None


class BenchEntry(Noun):
    """Outcome of one target. `speedups` are PyTorch's time over ours, summed over all operations, by baseline group; a
    group without a time for every operation is left out."""

    target: str
    status: Status
    detail: str
    times: tuple[BenchTime, ...] = ()
    speedups: dict[BaselineGroup, float] = {}
    claimed: dict[BaselineGroup, float] = {}
    """`speedups` in which each operation without a significant difference counts as 1.00."""
    recommendation: Recommendation | None = None
    library_steps: tuple[str, ...] = ()
    n_configurations: int = 1
    n_covered: int = 1
    """Number of the task's configurations that the verified kernel serves."""
    cut_short: str = ""
    """Reason why the search ended before its time: a verified kernel is then the best one so far. Empty otherwise."""
    elapsed_s: float = 0.0
    """Seconds from the start of the task to its result."""
    first_kernel_s: float | None = None
    """Seconds from the captured task to the first correct kernel with a time."""
    stages_s: dict[str, float] = {}
    """Seconds of the capture, the search, the full check and, prefixed with ``full check: ``, its stages, of which
    concurrent ones are marked. ``end of processes`` comes after the result."""
    cost_usd: float = 0.0

    @property
    def claims(self) -> tuple[str, ...]:
        """Return the distinct claims of the operations against the best of PyTorch."""
        return tuple(dict.fromkeys(time.claim for time in self.times if time.claim))

    @property
    def untimed(self) -> tuple[str, ...]:
        """Return the baselines of PyTorch without a time that could yet have one."""
        baselines = (each for time in self.times if time.comparison is not None for each in time.comparison.baselines)
        missing = (each for each in baselines if isinstance(each, MissingBaseline) and not each.is_final)
        return tuple(dict.fromkeys(each.name for each in missing if is_pytorch(each.name)))

    @property
    def compared_with(self) -> str:
        """Return what the best speedup is against: PyTorch, or its fastest baseline while others have no time."""
        found = self.recommendation
        return "PyTorch" if found is None or found.is_complete else f"{found.against} only"

    @property
    def share_of_limit(self) -> float | None:
        """Return the speed of light of all operations over our time; None where one is unknown."""
        floors = [time.floor_us for time in self.times]
        known = [floor for floor in floors if floor is not None]
        ours_us = sum(time.ours_us for time in self.times)
        return sum(known) / ours_us if ours_us and len(known) == len(floors) else None

    @property
    def kind(self) -> Kind:
        kinds = {time.kind for time in self.times}
        return "none" if not kinds else kinds.pop() if len(kinds) == 1 else "mixed"


class FastP(Noun):
    """Share of all tasks that are verified and more than `p` times as fast as the baseline (KernelBench's fast_p). At
    `p` = 0 it is the share that is verified and timed."""

    p: float
    share: float


class BenchScore(Noun):
    """Scores of all tasks against one baseline group. `geomean` covers the `n_compared` verified tasks with a speedup,
    `geomean_claimed` the same with "no difference" as 1.00; None without any."""

    baseline: BaselineGroup
    n_tasks: int
    n_compared: int
    fast: tuple[FastP, ...]
    geomean: float | None
    geomean_claimed: float | None = None


class BenchReport(Noun):
    """A run of the suite."""

    schema_version: int = SCHEMA_VERSION
    kind: Kind
    date: str
    entries: tuple[BenchEntry, ...]
    scores: tuple[BenchScore, ...]

    @property
    def n_verified(self) -> int:
        return sum(entry.status == "verified" for entry in self.entries)


FilterStatus = Literal["passed", "flagged", "skipped"]


class FilterResult(Noun):
    """One filter on one configuration. `number` is the measured value and `threshold` its limit; None where the filter
    has none. A skipped filter gives its reason in `message`."""

    filter: str
    configuration: str
    status: FilterStatus
    number: float | None = None
    threshold: float | None = None
    message: str = ""
    line: int | None = None


class TaskFilters(Noun):
    """All filters on one task. `refused` is the reason why the task could not be examined; empty when it could."""

    target: str
    device: str = ""
    configurations: tuple[str, ...] = ()
    results: tuple[FilterResult, ...] = ()
    refused: str = ""

    @property
    def flagged(self) -> tuple[FilterResult, ...]:
        return tuple(result for result in self.results if result.status == "flagged")

    @property
    def is_good(self) -> bool:
        return not self.refused and not self.flagged


class FilterReport(Noun):
    """Filter results of several tasks."""

    schema_version: int = SCHEMA_VERSION
    tasks: tuple[TaskFilters, ...]

    @property
    def n_good(self) -> int:
        return sum(task.is_good for task in self.tasks)


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
