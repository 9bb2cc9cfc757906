"""Numbers in words, each with its kind, GPU and date, as hovers, lenses and reports say them."""

from __future__ import annotations

from kernel_lsp.core.measurement import Comparison, Estimate, Measurement
from kernel_lsp.core.verdict import KernelFacts, Verdict
from kernel_lsp.engine.messages import RunSummary

MS, S = 1e3, 1e6


def time_text(time_us: float) -> str:
    """``6.45 us``, ``1.2 ms``, ``3 s``."""
    if time_us < MS:
        return f"{time_us:.3g} us"
    return f"{time_us / MS:.3g} ms" if time_us < S else f"{time_us / S:.3g} s"


def amount_text(amount: float, unit: str) -> str:
    """With the decimal prefix that fits: ``58.8 MB``, ``1.2 GFLOP``."""
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if amount >= factor:
            return f"{amount / factor:.3g} {prefix}{unit}"
    return f"{amount:.3g} {unit}"


def number_text(number: Estimate | Measurement) -> str:
    """A time with its interval, kind, GPU and date."""
    interval = f"[{number.low_us:.3g}, {number.high_us:.3g}]"
    return f"{time_text(number.time_us)} {interval}, {number.kind} on {number.gpu}, {number.date}"


def bold_number_text(number: Estimate | Measurement) -> str:
    """The same in Markdown, the time in bold."""
    time, _, rest = number_text(number).partition(" [")
    return f"**{time}** [{rest}"


def comparison_text(comparison: Comparison) -> str:
    """``6x vs eager (estimated, H200)``"""
    ours = comparison.ours
    return f"{comparison.speedup:.2g}x vs {comparison.baseline_name} ({ours.kind}, {ours.gpu})"


def result_text(run: RunSummary) -> str:
    """A run's result in one line: how fast against what, and where it was verified."""
    parts = [comparison_text(comparison) for comparison in run.comparisons.values()]
    return ", ".join([*parts, f"verified on {run.device}"])


def facts_text(facts: KernelFacts) -> str:
    """Registers, spills and shared memory, as ptxas says."""
    spills = facts.spill_store_bytes + facts.spill_load_bytes
    spilled = f"{spills} B spilled" if spills else "no spills"
    return f"{facts.n_registers} registers, {spilled}, {facts.shared_bytes} B shared"


def verdict_text(verdict: Verdict) -> str:
    """The outcome in one line. "Unsupported" is never called clean."""
    outcome = verdict.outcome
    if outcome.kind == "correct":
        return f"correct in {len(outcome.cases)} cases on the {verdict.device}"
    if outcome.kind == "build_failed":
        return "does not compile"
    if outcome.kind == "unsupported":
        return f"could not be checked: {outcome.message}"
    return f"{outcome.kind.replace('_', ' ')}: {outcome.message}"
