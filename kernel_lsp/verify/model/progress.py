"""What is known of one candidate while it is evaluated."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernel_lsp.core.finding import Finding
from kernel_lsp.core.measurement import Comparison, Estimate, Measurement
from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Built, CaseResult
from kernel_lsp.verify.model.cases import Case

Plan = Sequence[tuple[Case, BoundOperation]]
"""The cases of one direction with the launches that each makes; the captured sizes come first."""


@dataclass
class StageTimes:
    """Where the time goes, by stage, in seconds. Stages that run beside others have names that say so."""

    stages_s: dict[str, float] = field(default_factory=dict, kw_only=True)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """What happens inside is this stage's."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.add_stage(name, time.monotonic() - started)

    def add_stage(self, name: str, elapsed_s: float) -> None:
        """So much more was this stage's."""
        self.stages_s[name] = self.stages_s.get(name, 0.0) + elapsed_s


@dataclass
class Progress(StageTimes):
    """Filled in as stages pass; a verdict is made of it whenever one fails."""

    candidate_id: str
    findings: list[Finding] = field(default_factory=list)
    cases: list[CaseResult] = field(default_factory=list)
    times: dict[str, Comparison] = field(default_factory=dict)
    estimates: list[Estimate] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    built: Built | None = None
    has_atomics: bool = False
    """Some kernel adds to device memory: what one block wrote is not the final value."""
    singles_out_a_block: bool = False
    """Some kernel compares a block's number with that of one in the middle: a sample of blocks may not have it."""
    may_wait: bool = False
    """Some kernel has a loop that may wait for another thread."""

    def piece(self) -> Progress:
        """For one look, beside others that are made at the same time; `take` adds what it found."""
        return Progress(self.candidate_id, built=self.built, singles_out_a_block=self.singles_out_a_block)

    def take(self, piece: Progress) -> None:
        """What a piece found, behind what is known."""
        self.add_findings(piece.findings)
        self.notes += [note for note in piece.notes if note not in self.notes]
        self.cases += piece.cases
        self.times.update(piece.times)
        for name, elapsed_s in piece.stages_s.items():
            self.add_stage(name, elapsed_s)
        self.estimates += piece.estimates

    def add_findings(self, findings: Iterable[Finding]) -> None:
        """Each once."""
        self.findings += [finding for finding in findings if finding not in self.findings]
