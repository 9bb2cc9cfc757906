"""Profile the best kernel so far for prompts and hints, and name the facts about a kernel that hints require."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.dtype import DType
from kernel_lsp.core.model import Noun
from kernel_lsp.core.profile import ProfileReport
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import CheckOutcome, Verdict
from kernel_lsp.errors import KernelLspError
from kernel_lsp.evolve.archive.model_records import ModelRecords

VALUE_PREFIX = "profile:"
WASTED = 0.25
"""Minimum wasted fraction of a line's sectors or wavefronts; less is due to edges and alignment."""
LOW_OCCUPANCY = 0.25

ProfileCandidate = Callable[[Candidate], Awaitable[ProfileReport | CheckOutcome]]
REREAD_FACTOR = 1.3
"""Traffic above compulsory bytes, as a factor, that counts as rereading; less is indices, statistics and partial
sums."""

_REDUCTIONS = re.compile(
    r"aten\.(?:sum|mean|amax|amin|max|min|var|std|norm|_?softmax|_log_softmax|native_layer_norm|prod)"
)
_CONTRACTIONS = re.compile(r"aten\.(?:mm|bmm|addmm|matmul|baddbmm|convolution|_scaled_dot_product)")


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


def facts_of_task(task: Task) -> frozenset[str]:
    """Return the facts that hold for every kernel of the task."""
    nodes = (*task.forward.nodes, *(task.backward.nodes if task.backward is not None else ()))
    tests = {
        "reduction": any(_REDUCTIONS.match(node.op) for node in nodes),
        "contraction": any(_CONTRACTIONS.match(node.op) for node in nodes),
        "half_precision": any(tensor.type.dtype in (DType.F16, DType.BF16) for tensor in task.tensors),
    }
    return frozenset(name for name, holds in tests.items() if holds)


def facts_of_kernel(verdict: Verdict, floor_bytes: int) -> frozenset[str]:
    """Return the facts in a kernel's estimate, compilation and findings. `floor_bytes` is the task's compulsory
    traffic."""
    estimate = verdict.estimate
    tests = {
        "spills": any(kernel.spill_store_bytes or kernel.spill_load_bytes for kernel in verdict.kernels),
        "shared_memory": any(kernel.shared_bytes for kernel in verdict.kernels),
        "uncoalesced": any("coalesc" in finding.code for finding in verdict.findings),
    }
    if estimate is not None:
        tests[f"{estimate.bound}_bound"] = True
        tests["several_launches"] = estimate.n_launches > 1
        tests["rereads"] = estimate.bytes_moved > REREAD_FACTOR * floor_bytes
    return frozenset(name for name, holds in tests.items() if holds)
