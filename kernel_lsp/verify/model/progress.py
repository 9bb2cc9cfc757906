"""The evidence about one candidate while it is evaluated."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernel_lsp.core.finding import Finding
from kernel_lsp.core.measurement import Comparison, Estimate, Measurement
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Built, CaseResult, CheckOutcome
from kernel_lsp.verify.model.cases import Case

Plan = Sequence[tuple[Case, BoundOperation]]
"""The cases of one direction with the launches of each. The captured sizes come first."""


@dataclass
class StageTimes:
    """Elapsed time by stage, in seconds. The name of a concurrent stage says that it is concurrent."""

    stages_s: dict[str, float] = field(default_factory=dict, kw_only=True)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to this stage."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add_stage(name, time.monotonic() - started)

    def add_stage(self, name: str, elapsed_s: float) -> None:
        """Add time to a stage."""
        self.stages_s[name] = self.stages_s.get(name, 0.0) + elapsed_s


@dataclass
class Progress(StageTimes):
    """Evidence that is filled in as stages pass. A verdict is made from it whenever a stage fails."""

    candidate_id: str
    findings: list[Finding] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)
    times: dict[str, Comparison] = field(default_factory=dict)
    estimates: list[Estimate] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    built: Built | None = None
    gpu: str = ""
    """Name of the GPU that it was assigned to."""
    has_atomics: bool = False
    """Some kernel has atomics on device memory: a value that one block wrote is not final."""
    singles_out_a_block: bool = False
    """Some kernel compares the block index with that of an inner block, which sampled blocks may not include."""
    may_wait: bool = False
    """Some kernel has a loop that may wait for another thread."""

    def piece(self) -> Progress:
        """Return an empty record for one concurrent check; `take` merges it."""
        return Progress(self.candidate_id, built=self.built, singles_out_a_block=self.singles_out_a_block)

    def take(self, piece: Progress) -> None:
        """Append the evidence of a concurrent check."""
        self.add_findings(piece.findings)
        self.notes += [note for note in piece.notes if note not in self.notes]
        self.cases += piece.cases
        self.times.update(piece.times)
        for name, elapsed_s in piece.stages_s.items():
            self.add_stage(name, elapsed_s)
        self.estimates += piece.estimates

    def add_findings(self, findings: Iterable[Finding]) -> None:
        """Add findings without duplicates."""
        self.findings += [finding for finding in findings if finding not in self.findings]


Look = Callable[[Progress], Awaitable[CheckOutcome | None]]
"""A check of a candidate, which records its evidence. None when nothing failed."""
