"""Format numbers with their kind, GPU and date, and what a recorded run says of a target, for hovers, lenses and
reports."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from kernel_lsp.core.measurement import Comparison, Estimate, Measurement
from kernel_lsp.core.profile import LineProfile
from kernel_lsp.core.recommendation import detail_lines, headline, recommend
from kernel_lsp.core.recording import RecordedConfiguration, RecordedTarget
from kernel_lsp.core.verdict import CheckOutcome, KernelFacts, Verdict
from kernel_lsp.core.words import counted
from kernel_lsp.engine.messages import RunSummary
from kernel_lsp.errors import TargetError
from kernel_lsp.source.recorded import recorded_target

MS, S = 1e3, 1e6
_MARKS = re.compile(
    r"\*\*|`|\*(?=\(stale)|(?<=\))\*|(?<!\S)\*(?=\w)|(?<=\w)\*(?=[\s,.]|$)|^\|[-:| ]+\|\n|^\| | \|$", re.MULTILINE
)
"""Markdown for bold, code, italics and tables."""


def time_text(time_us: float) -> str:
    """``6.45 us``, ``1.2 ms``, ``3 s``."""
    if time_us < MS:
        return f"{time_us:.3g} us"
    return f"{time_us / MS:.3g} ms" if time_us < S else f"{time_us / S:.3g} s"


def plain_text(markdown: str) -> str:
    """Convert our Markdown to plain text for a client that does not render it; table columns stay separated."""
    return _MARKS.sub("", markdown).replace(" | ", "  ")


def amount_text(amount: float, unit: str) -> str:
    """Format with a decimal prefix: ``58.8 MB``, ``1.2 GFLOP``."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if amount >= factor:
            return f"{amount / factor:.3g} {prefix}{unit}"
    return f"{amount:.3g} {unit}"


def number_text(number: Estimate | Measurement) -> str:
    """Format a time with its interval, kind, GPU and date."""
    interval = f"[{number.low_us:.3g}, {number.high_us:.3g}]"
    return f"{time_text(number.time_us)} {interval}, {number.kind} on {number.gpu}, {number.date}"


def bold_number_text(number: Estimate | Measurement) -> str:
    """Format the same as Markdown, the time in bold."""
    time, _, rest = number_text(number).partition(" [")
    return f"**{time}** [{rest}"


def comparisons_text(comparisons: Mapping[str, Comparison]) -> str:
    """Format speedups: ``2.7x vs eager, 1.3x vs compile, H200`` if measured, ``2.7x vs eager, estimated for H200``
    otherwise. Covers all baselines, marks those of a backward pass, and is empty without any."""
    said = {f"{_direction(name)}{headline(comparison)}": comparison.ours for name, comparison in comparisons.items()}
    where = dict.fromkeys(_where(ours) for ours in said.values())
    return ", ".join([*said, *where])


def result_text(run: RunSummary) -> str:
    """Summarise a run in one line: the advice where it is not the kernel, speedup, GPU, and where it was verified."""
    is_measured = any(isinstance(comparison.ours, Measurement) for comparison in run.comparisons.values())
    verified = "verified" if is_measured else f"verified on {run.device}"
    advice = run.recommendation.headline if run.recommendation is not None else ""
    return ", ".join(filter(None, (advice, comparisons_text(run.comparisons), verified)))


def check_text(verdict: Verdict) -> str:
    """Summarise a verdict in one line, with advice and times where available."""
    found = recommend(verdict.times)
    advice = found.headline if found is not None else ""
    return ", ".join(filter(None, (advice, verdict_text(verdict), comparisons_text(verdict.times))))


def profile_text(lines: Sequence[LineProfile]) -> str:
    """Describe a line's profile in each kernel that contains it."""
    return "; ".join(line.in_words() for line in lines)


def shapes_text(number: Estimate | Measurement) -> str:
    """Format the shapes that a number is for: ``x f32[64, 256]``."""
    return ", ".join(
        f"{name} {number.dtypes.get(name, '')}{list(shape)}".replace("  ", " ") for name, shape in number.shapes.items()
    )


def comparison_lines(comparisons: Mapping[str, Comparison]) -> list[str]:
    """List each time with its interval, kind, GPU, shapes and date, and the baselines."""
    lines = []
    for name, comparison in comparisons.items():
        lines += [
            f"`{name}`: {bold_number_text(comparison.ours)}; {shapes_text(comparison.ours)}",
            *(f"- {line}" for line in _baseline_lines(comparison)),
        ]
    return list(dict.fromkeys(lines))


def facts_text(facts: KernelFacts) -> str:
    """Format the registers, spills and shared memory that ptxas reports."""
    spills = facts.spill_store_bytes + facts.spill_load_bytes
    spilled = f"{spills} B spilled" if spills else "no spills"
    return f"{facts.n_registers} registers, {spilled}, {facts.shared_bytes} B shared"


def verdict_text(verdict: Verdict) -> str:
    """Summarise the outcome in one line."""
    outcome = verdict.outcome
    if outcome.kind == "correct":
        return f"correct in {counted(len(outcome.cases), 'case')} on the {verdict.device}"
    return failure_text(outcome)


def failure_text(outcome: CheckOutcome) -> str:
    """Explain why a kernel is incorrect or unverified. "Unsupported" is never reported as clean."""
    if outcome.kind == "correct":
        return ""
    if outcome.kind == "build_failed":
        return "does not compile"
    if outcome.kind == "unsupported":
        return f"could not be checked: {outcome.message}"
    return f"{outcome.kind.replace('_', ' ')}: {outcome.message}"


BACKWARD_MARK = "_backward"
MAKER = "NVIDIA "


def _baseline_lines(comparison: Comparison) -> list[str]:
    """List every baseline with its time and supported claim, or the estimate's only baseline."""
    vs_baseline = f"{comparison.speedup:.2g}x vs {comparison.baseline_name}: {number_text(comparison.baseline)}"
    return detail_lines(comparison) or [vs_baseline]


def _direction(operation: str) -> str:
    return "backward " if BACKWARD_MARK in operation else ""


def _where(number: Estimate | Measurement) -> str:
    gpu = number.gpu.removeprefix(MAKER)
    return gpu if isinstance(number, Measurement) else f"estimated for {gpu}"


MAX_LISTED = 6


def recorded_of(file: Path | None, symbol: str) -> RecordedTarget | None:
    """Return what the workspace's recording says of a target; None without one. The analysis reports an invalid one."""
    try:
        return recorded_target(file, symbol) if file is not None else None
    except TargetError:
        return None


def share_text(target: RecordedTarget) -> str:
    """Return ``23 % of a step``."""
    percent = target.share * 100
    return f"{percent:.0f} % of a step" if percent >= 10 else f"{percent:.2g} % of a step"


def recorded_text(target: RecordedTarget | None) -> str:
    """Return Markdown for a hover: share, times, and the configurations; empty without a recording."""
    if target is None:
        return ""
    backward = f" + {target.backward_us:.3g} us backward" if target.backward_us else ""
    n_calls = f"{target.n_calls:,} call{'s' if target.n_calls != 1 else ''}"
    of = f", `{' '.join(target.source.command)}` on {target.source.date[:10]}" if target.source is not None else ""
    head = f"Recorded: **{share_text(target)}** ({target.forward_us:.3g} us forward{backward}), {n_calls}{of}"
    shows_init = len({configuration.init for configuration in target.configurations}) > 1
    rows = [_row(configuration, shows_init) for configuration in target.configurations[:MAX_LISTED]]
    return "\n".join([head, "", "| calls | inputs | mode |", "|--:|---|---|", *rows]) if rows else head


def _row(found: RecordedConfiguration, shows_init: bool) -> str:
    notes = [
        _code(found.init) if shows_init and found.init else "",
        found.mode,
        "autograd" if found.grad else "",
        _code(" ".join(found.source.command)) if found.source is not None else "",
        *(_code(f"{name}: {text}") for name, text in found.layouts.items()),
    ]
    inputs = ", ".join(filter(None, (found.inputs, *(f"{name}=..." for name in found.opaque))))
    return f"| {found.n_calls:,} | {_code(inputs)} | {', '.join(filter(None, notes))} |"


def _code(text: str) -> str:
    return f"`{text.replace('|', ' ').replace('`', ' ')}`"
