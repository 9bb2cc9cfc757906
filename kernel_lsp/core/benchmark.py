"""Results of the benchmark suite and of the task filters: the outcome of each task, speedups over PyTorch, and whether
a task is worth measuring kernels on."""

from __future__ import annotations

from typing import Literal

from kernel_lsp.core.measurement import Comparison, MissingBaseline, is_pytorch
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
    """Number of the task's configurations that the verified kernel's capture covers."""
    cut_short: str = ""
    """Reason why the search ended before its time: a verified kernel is then the best one so far. Empty otherwise."""
    elapsed_s: float = 0.0
    """Seconds from the start of the task to its result."""
    first_kernel_s: float | None = None
    """Seconds from the captured task to the first correct kernel with a time."""
    stages_s: dict[str, float] = {}
    """Seconds of the capture, the search and the full check; after ``full check: `` those of its stages, of which
    concurrent ones say so. ``end of processes`` comes after the result."""
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
