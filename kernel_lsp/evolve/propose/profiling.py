"""Profile the best kernel so far for prompts and hints, once per kernel, and store the result with the run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.model import Noun
from kernel_lsp.core.profile import ProfileReport
from kernel_lsp.core.verdict import CheckOutcome
from kernel_lsp.errors import KernelLspError
from kernel_lsp.evolve.archive.model_records import ModelRecords

VALUE_PREFIX = "profile:"
WASTED = 0.25
"""Minimum wasted fraction of a line's sectors or wavefronts; less is due to edges and alignment."""
LOW_OCCUPANCY = 0.25

ProfileCandidate = Callable[[Candidate], Awaitable[ProfileReport | CheckOutcome]]


class ProfileDigest(Noun):
    """A profile's summary for prompts, and the facts that hints require. Empty without a profile."""

    summary: str = ""
    facts: tuple[str, ...] = ()


class Profiler:
    """Profile the candidates of one run; `recorded` are the digests of a replayed run, by value name."""

    def __init__(
        self, records: ModelRecords, profile: ProfileCandidate | None, recorded: Mapping[str, str] | None = None
    ) -> None:
        self._records, self._profile, self._recorded = records, profile, recorded or {}

    async def digest(self, candidate: Candidate) -> ProfileDigest:
        """Return the digest: archived, else recorded, else computed now. It is empty if profiling fails."""
        name = VALUE_PREFIX + candidate.id
        known = self._records.value(name) or self._recorded.get(name)
        digest = ProfileDigest.model_validate_json(known) if known is not None else await self._made(candidate)
        self._records.save_value(name, digest.model_dump_json())
        return digest

    async def _made(self, candidate: Candidate) -> ProfileDigest:
        if self._profile is None:
            return ProfileDigest()
        try:
            report = await self._profile(candidate)
        except KernelLspError:  # a missing or failing tool costs the prompt a paragraph, not the run
            return ProfileDigest()
        return digest_of(report) if isinstance(report, ProfileReport) else ProfileDigest()


def digest_of(report: ProfileReport) -> ProfileDigest:
    """Return the summary without dates, and the facts about its wasted accesses."""
    lines = report.lines()
    tests = {
        "uncoalesced": any(line.wasted_sectors > WASTED for line in lines),
        "bank_conflicts": any(line.wasted_wavefronts > WASTED for line in lines),
        "low_occupancy": any(0.0 < kernel.occupancy < LOW_OCCUPANCY for kernel in report.kernels),
    }
    return ProfileDigest(summary=report.summary(), facts=tuple(name for name, holds in tests.items() if holds))
