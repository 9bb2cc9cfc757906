"""Describe times and ratios: a headline, and the lines with its evidence."""

from __future__ import annotations

from kernel_lsp.core.measurement import (
    EAGER,
    BaselineResult,
    ClockSummary,
    Comparison,
    Estimate,
    EstimatedBaseline,
    Measurement,
    MissingBaseline,
    Ratio,
    TimedBaseline,
)
from kernel_lsp.core.recommendation import factor_text


def headline(comparison: Comparison) -> str:
    """Return the headline, e.g. ``2.7x vs eager, 1.3x vs compile``: eager and the fastest other baseline, and which may
    not be claimed.

    A result of an older version has one baseline.
    """
    timed = [found for found in comparison.baselines if not isinstance(found, MissingBaseline)]
    eager = [found for found in timed if found.name == EAGER]
    others = sorted((found for found in timed if found.name != EAGER), key=lambda found: found.time_us)
    shown = [_short(found, comparison.ours.time_us) for found in (*eager, *others[:1])]
    return ", ".join(shown) or f"{comparison.speedup:.2g}x vs {comparison.baseline_name}"


def one_line(comparison: Comparison) -> str:
    """Return the time with its interval, the headline, and where and when."""
    ours = comparison.ours
    bound = f", {ours.bound}-bound" if isinstance(ours, Estimate) else ""
    baseline = "" if comparison.baselines else f" against {comparison.baseline_name} {_interval(comparison.baseline)}"
    return f"{_interval(ours)}{baseline}: {headline(comparison)} ({ours.kind} on {ours.gpu}, {ours.date}{bound})"


def detail_lines(comparison: Comparison) -> list[str]:
    """Return the evidence: every baseline and, of a measurement, the roofline bound and the state of the GPU."""
    ours = comparison.ours
    if not isinstance(ours, Measurement) or not comparison.baselines:
        return [_baseline_line(found, ours.time_us) for found in comparison.baselines]
    lines = [_ours_line(ours)]
    lines += [_baseline_line(found, ours.time_us) for found in comparison.baselines]
    if comparison.floor is not None:
        times = ours.time_us / comparison.floor.time_us
        lines.append(
            f"speed of light (roofline bound) {comparison.floor.time_us:.3g} us: {comparison.floor.basis}; "
            f"this takes {times:.3g} times that"
        )
    lines.append(_state_line(ours, next((r for r in map(_ratio_of, comparison.baselines) if r is not None), None)))
    return [*lines, *comparison.notes]


# --- below: pieces


def _short(found: TimedBaseline | EstimatedBaseline, ours_us: float) -> str:
    if isinstance(found, EstimatedBaseline):
        return f"{factor_text(found.time_us / ours_us)} vs {found.name}"
    if found.ratio is None:
        return f"{factor_text(found.measurement.time_us / ours_us)} vs {found.name} (of {found.measurement.date})"
    if found.ratio.claim == "no difference":
        return f"no different from {found.name}{_deciding_floor(found.ratio)}"
    return f"{factor_text(found.ratio.value)} vs {found.name}"


def _deciding_floor(ratio: Ratio) -> str:
    """Name the noise floor where it alone keeps a clear interval from being a claim."""
    is_clear = ratio.low > 1.0 or ratio.high < 1.0
    return f" ({factor_text(ratio.value)}, below the noise floor of {ratio.noise_floor:.1%})" if is_clear else ""


def _ours_line(ours: Measurement) -> str:
    parts = [f"device {ours.time_us:.3g} us with a cold L2"]
    if ours.warm_us is not None:
        parts.append(f"{ours.warm_us:.3g} us with a warm one")
    if ours.operator_us is not None:
        parts.append(f"{ours.operator_us:.3g} us per call from Python")
    if not ours.is_resolved:
        parts.append(f"under the timer's resolution of {ours.resolution_us:.2g} us: it says nothing")
    return ", ".join(parts)


def _baseline_line(found: BaselineResult, ours_us: float) -> str:
    if isinstance(found, MissingBaseline):
        hint = "" if found.is_final else "; with baseline_wait_s = 60 a timing waits for it"
        return f"{found.name}: no time, {found.reason}{hint}"
    if isinstance(found, EstimatedBaseline):
        estimate, times = found.estimate, f"{found.time_us / ours_us:.3g}x"
        return f"{found.name} {_interval(estimate)}: {times}, estimated from {estimate.method}"
    timed = found.measurement
    if found.ratio is None:
        times = f"{timed.time_us / ours_us:.3g}x"
        return f"{found.name} {_interval(timed)}: {times}, of {timed.date} and not measured in turn, so no claim"
    ratio = found.ratio
    return (
        f"{found.name} {_interval(timed)}: {ratio.value:.3g}x [{ratio.low:.3g}, {ratio.high:.3g}], {ratio.claim} "
        f"(noise {ratio.noise_floor:.1%}, {ratio.n_rounds} rounds)"
    )


def _state_line(ours: Measurement, ratio: Ratio | None) -> str:
    state = f"TF32 {ours.tf32} in PyTorch, cuDNN benchmark {ours.cudnn_benchmark}; {_clocks(ours.clocks)}"
    if ratio is not None and ratio.throttled_share:
        state += f"; the GPU slowed itself down in {ratio.throttled_share:.0%} of the rounds"
    return state


def _clocks(clocks: ClockSummary) -> str:
    if not clocks.is_known:
        return f"clocks not known: {clocks.reason}"
    slowed = f", slowed down: {', '.join(clocks.throttle_reasons)}" if clocks.throttle_reasons else ""
    return (
        f"SM {_range(clocks.low_sm_mhz, clocks.high_sm_mhz)} MHz, memory "
        f"{_range(clocks.low_memory_mhz, clocks.high_memory_mhz)} MHz, up to {clocks.highest_temperature_c} C and "
        f"{clocks.highest_power_w:.0f} W{slowed}"
    )


def _range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _interval(number: Estimate | Measurement) -> str:
    return f"{number.time_us:.3g} us [{number.low_us:.3g}, {number.high_us:.3g}]"


def _ratio_of(found: BaselineResult) -> Ratio | None:
    return found.ratio if isinstance(found, TimedBaseline) else None
