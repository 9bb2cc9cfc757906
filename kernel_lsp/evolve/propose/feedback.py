"""Describe a verdict to a model: the error, its location and magnitude, or the bottleneck of a correct kernel; and
profile the best kernel so far, with the facts that hints name."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.dtype import DType
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.measurement import Comparison, Estimate, Measurement
from kernel_lsp.core.model import Noun
from kernel_lsp.core.profile import ProfileReport
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import CaseResult, CheckOutcome, TensorError, Verdict
from kernel_lsp.core.words import fitted
from kernel_lsp.errors import KernelLspError
from kernel_lsp.evolve.archive.model_records import ModelRecords

N_FINDINGS = 8
N_MESSAGE_CHARACTERS = 400
MAX_RECOMMENDATIONS = 3
SPARSE_REGISTERS = 128
"""Registers per thread above which fewer than half of a multiprocessor's threads fit (64 K registers, 2048 threads: 32
each at full occupancy)."""


def describe_failure(verdict: Verdict, text: str) -> str:
    """Describe why a candidate is incorrect: the outcome, the findings with their lines, the mismatch in numbers."""
    outcome = verdict.outcome
    lines: list[str] = []
    match outcome.kind:
        case "build_failed":
            lines.append("It does not build.")
        case "mismatch":
            lines += [f"It computes wrong values. {_case(outcome.failed)}", *map(_error, outcome.failed.errors)]
        case "correct":
            lines.append("It is right.")
        case _:
            lines.append(f"{outcome.kind.replace('_', ' ').capitalize()}: {_short(outcome.message)}")
    findings = dict.fromkeys((*getattr(outcome, "findings", ()), *verdict.findings))
    lines += _findings(findings, text.splitlines())
    return "\n".join(lines)


def describe_profile(verdict: Verdict, floor_us: float) -> str:
    """Summarise a correct candidate's bottleneck, and give up to three numbered recommendations."""
    lines: list[str] = []
    estimate = verdict.estimate
    if estimate is not None:
        lines.append(_estimate(estimate, floor_us))
    for kernel in verdict.kernels:
        spilled = kernel.spill_store_bytes + kernel.spill_load_bytes
        lines.append(
            f"{kernel.kernel}: {kernel.n_registers} registers per thread, {kernel.shared_bytes} bytes of static shared "
            f"memory, {spilled} bytes spilled"
        )
    recommended = _recommendations(verdict)[:MAX_RECOMMENDATIONS]
    lines += [f"{number}. {text}" for number, text in enumerate(recommended, start=1)]
    return "\n".join(lines)


def describe_times(verdict: Verdict) -> str:
    """Report the times measured on a GPU for our kernel and PyTorch, one line per operation; empty without any."""
    lines = [_measured(name, comparison) for name, comparison in verdict.times.items()]
    return "\n".join(line for line in lines if line)


def _measured(name: str, comparison: Comparison) -> str:
    ours = comparison.ours
    if not isinstance(ours, Measurement):
        return ""
    text = f"{name}: {ours.time_us:.4g} us measured on {ours.gpu} with a cold L2"
    text += f"; the fastest of PyTorch ({comparison.baseline_name}) takes {comparison.baseline.time_us:.4g} us"
    return f"{text}; the floor is {comparison.floor.time_us:.3g} us" if comparison.floor is not None else text


def _case(case: CaseResult) -> str:
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in case.shapes.items())
    return f"In {case.operation} with inputs '{case.family}' at {shapes}:"


def _error(error: TensorError) -> str:
    text = f"- '{error.output}': {error.n_wrong} of {error.n_elements} elements wrong, relative L2 error "
    text += f"{error.relative_l2:.3g} where {error.relative_l2_budget:.3g} is allowed"
    if error.worst_index is not None and error.found is not None:
        text += f"; worst at {list(error.worst_index)}: {error.found:.6g} instead of {error.expected:.6g}"
    elif error.n_wrong and error.found is None:
        text += "; they are never written"
    return text


def _findings(findings: Iterable[Finding], source: Sequence[str]) -> list[str]:
    """List the findings by severity, each with its line of the file."""
    ranked = sorted(findings, key=lambda finding: finding.severity not in (Severity.ERROR, Severity.WARNING))
    lines = []
    for finding in ranked[:N_FINDINGS]:
        place = f"line {finding.line}: " if finding.line is not None else ""
        thread = f" (block {finding.block}, thread {finding.thread})" if finding.block and finding.thread else ""
        lines.append(f"- {place}{_short(finding.message)}{thread} [{finding.code}]")
        if finding.line is not None and 0 < finding.line <= len(source):
            lines.append(f"    {source[finding.line - 1].strip()}")
    return lines


def _estimate(estimate: Estimate, floor_us: float) -> str:
    text = (
        f"It is bound by {estimate.bound}: {estimate.bytes_moved} bytes moved, {estimate.n_operations} floating-point "
    )
    text += f"operations, {estimate.n_launches} launches; {estimate.time_us / floor_us:.2g} times the floor"
    return f"{text} (estimated)."


def _recommendations(verdict: Verdict) -> list[str]:
    found = []
    if any(kernel.spill_store_bytes + kernel.spill_load_bytes for kernel in verdict.kernels):
        found.append("Registers are spilled: hold less per thread.")
    if any(kernel.n_registers > SPARSE_REGISTERS for kernel in verdict.kernels):
        found.append(f"More than {SPARSE_REGISTERS} registers per thread leave few threads to hide latency.")
    if verdict.estimate is not None and verdict.estimate.n_launches > 1:
        found.append("Each launch costs time and a trip of its intermediate through memory.")
    found += [_short(finding.message) for finding in verdict.findings if finding.severity is Severity.WARNING]
    return found


def _short(message: str) -> str:
    return fitted(message, N_MESSAGE_CHARACTERS)


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
        self, records: ModelRecords, profile: ProfileCandidate | None, recorded: Mapping[str, str] | None
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
    nodes = [node for graph in task.graphs for node in graph.nodes]
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
