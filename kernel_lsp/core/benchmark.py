"""Results of the benchmark suite: the outcome of each task, and speedups over PyTorch."""

from __future__ import annotations

from typing import Literal

from kernel_lsp.core.model import SCHEMA_VERSION, Noun

Kind = Literal["measured", "estimated", "mixed", "none"]
BaselineGroup = Literal["eager", "compile", "best"]
"""``compile`` is the fastest of torch.compile's modes that ran, ``best`` the faster of it and eager."""


class BenchTime(Noun):
    """One operation of a verified kernel. `baselines_us` has the time of every PyTorch baseline that was timed."""

    operation: str
    kind: Literal["measured", "estimated"]
    gpu: str
    ours_us: float
    baselines_us: dict[str, float]
    floor_us: float | None = None
    claim: str = ""
    """Claim against the best baseline, from interleaved measurements: faster, slower or no difference."""


class BenchEntry(Noun):
    """Outcome of one target. `speedups` are PyTorch's time over ours, summed over all operations, by baseline group; a
    group without a time for every operation is left out."""

    target: str
    status: Literal["verified", "none", "refused"]
    detail: str
    times: tuple[BenchTime, ...] = ()
    speedups: dict[BaselineGroup, float] = {}
    library_steps: tuple[str, ...] = ()
    n_configurations: int = 1
    n_covered: int = 1
    """Number of the task's configurations that the verified kernel's capture covers."""
    elapsed_s: float = 0.0
    cost_usd: float = 0.0

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
    """Scores of all tasks against one baseline group. `geomean` covers the `n_compared` verified tasks with a speedup;
    None without any."""

    baseline: BaselineGroup
    n_tasks: int
    n_compared: int
    fast: tuple[FastP, ...]
    geomean: float | None


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
