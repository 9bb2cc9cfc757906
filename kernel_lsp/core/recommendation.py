"""Recommend the kernel or PyTorch, from a run's times. Every surface shows this recommendation and makes no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from kernel_lsp.core.measurement import (
    COMPILE,
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
    is_pytorch,
)
from kernel_lsp.core.model import Noun

Action = Literal["apply", "measure", "keep"]
"""``apply``: the kernel is faster than all of PyTorch. ``measure``: its times do not decide. ``keep``: PyTorch."""
CLEAR_ESTIMATE = 1.1
"""Minimum ratio of two estimates that is a difference. Errors of the bandwidth are common to both and cancel."""
CLEAR_DIFFERENCE_US = 1.5
"""Minimum difference of two estimates in microseconds: the model's error of one launch."""
NEAR_FLOOR = 1.2
"""Maximum ratio to the speed of light at which a faster kernel for the same work is not worth a search."""
SEARCH_WITH_MODELS = "search with a language model: `--model`"
_ORDER: tuple[Action, ...] = ("keep", "measure", "apply")


class Recommendation(Noun):
    """The recommended action for a run's winner. `ratio` is the time of `against` over ours."""

    action: Action
    ratio: float
    against: str
    """PyTorch's fastest baseline with a time: ``eager``, ``compile``, ``compile max-autotune``."""
    kind: Literal["measured", "estimated"]
    why: str
    remedy: str
    """Action that would change the advice; empty for ``apply``."""
    is_complete: bool
    """False while a mode of `torch.compile` has no time, so that no kernel may be called faster."""
    operation: str = ""
    """The operation that decides, where there are several."""
    headline: str = ""
    """The recommendation in short, e.g. ``keep torch.compile: 0.84x``; empty for ``apply``."""

    @property
    def sentence(self) -> str:
        """Return the headline with the kind of its times, the reason, and what would help."""
        return f"{self.headline} ({self.kind}): {self.detail}"

    @property
    def detail(self) -> str:
        """Return the reason, and what would help."""
        deciding = f"{self.operation}: " if self.operation else ""
        return f"{deciding}{self.why}" + (f"; what would help: {self.remedy}" if self.remedy else "")


def recommend(comparisons: Mapping[str, Comparison], *, asked_models: bool = False) -> Recommendation | None:
    """Return the least favourable recommendation of all operations; None without times. Models are no remedy for a run
    that `asked_models`."""
    is_one = len(comparisons) == 1
    found = [_of(each, "" if is_one else name, asked_models) for name, each in comparisons.items()]
    return min(found, key=lambda each: (_ORDER.index(each.action), each.ratio), default=None)


def pytorch_name(baseline: str) -> str:
    """Return ``torch.compile max-autotune`` for ``compile max-autotune``; eager stays."""
    return baseline if baseline == EAGER else f"torch.{baseline}"


def factor_text(ratio: float) -> str:
    """Format a ratio: ``2.7x``, ``0.81x``; ``1.04x`` where two digits would round to 1."""
    text = f"{ratio:.2g}"
    return f"{ratio:.3g}x" if text in ("1", "0.99") else f"{text}x"


def _of(comparison: Comparison, operation: str, asked_models: bool) -> Recommendation:
    unmeasured = _unmeasured(comparison)
    action, why = _estimated(comparison) if isinstance(comparison.ours, Estimate) else _measured(comparison)
    if action == "apply" and unmeasured:
        action, why = "measure", f"no time of {', '.join(map(pytorch_name, unmeasured))}"
    if action == "keep" and comparison.floor is not None:
        times = comparison.ours.time_us / comparison.floor.time_us
        why += f", at {times:.3g} times the speed of light (roofline bound): {comparison.floor.basis}"
    return Recommendation(
        action=action,
        ratio=comparison.speedup,
        against=comparison.baseline_name,
        kind=comparison.ours.kind,
        why=why,
        remedy=_remedy(action, comparison, unmeasured, asked_models),
        is_complete=not unmeasured,
        operation=operation,
        headline=_headline(action, comparison, is_complete=not unmeasured),
    )


def _headline(action: Action, comparison: Comparison, *, is_complete: bool) -> str:
    if action == "apply":
        return ""
    verb = f"keep {pytorch_name(comparison.baseline_name)}" if action == "keep" else "measure first"
    scope = "" if is_complete else f" vs {comparison.baseline_name} only"
    return f"{verb}: {factor_text(comparison.speedup)}{scope}"


def _unmeasured(comparison: Comparison) -> list[str]:
    """Return the modes of `torch.compile` that may yet turn out to be faster. One that PyTorch failed to compile may
    not."""
    missing = [each for each in comparison.baselines if isinstance(each, MissingBaseline) and is_pytorch(each.name)]
    if not missing and all(name == EAGER for name in comparison.baselines_us):
        return [COMPILE]
    return [each.name for each in missing if each.name != EAGER and not each.is_final]


def _measured(comparison: Comparison) -> tuple[Action, str]:
    """Decide by the claim against the fastest baseline, and by any that is claimed to be faster than ours. A slower
    baseline whose noise hides the difference decides nothing."""
    name = pytorch_name(comparison.baseline_name)
    if isinstance(comparison.ours, Measurement) and not comparison.ours.is_resolved:
        return "measure", f"{comparison.ours.time_us:.2g} us is below the timer's resolution"
    ratios = [each.ratio for each in comparison.baselines if isinstance(each, TimedBaseline) and is_pytorch(each.name)]
    claims = {ratio.claim for ratio in (*ratios, comparison.ratio) if ratio is not None}
    if "slower" in claims or (comparison.ratio is None and comparison.speedup < 1.0):
        return "keep", f"slower than {name}"
    if comparison.ratio is not None and comparison.ratio.claim == "no difference":
        return "keep", f"not measurably faster than {name}"
    if comparison.ratio is None or comparison.ratio.claim == "not compared":
        return "measure", f"not measured in turn with {name}"
    return "apply", f"faster than {name}"


def _estimated(comparison: Comparison) -> tuple[Action, str]:
    ours_us, theirs_us = comparison.ours.time_us, comparison.baseline.time_us
    name = pytorch_name(comparison.baseline_name)
    if abs(ours_us - theirs_us) < CLEAR_DIFFERENCE_US or 1 / CLEAR_ESTIMATE < theirs_us / ours_us < CLEAR_ESTIMATE:
        return "measure", f"within the estimate's error of {name}"
    return ("apply", f"faster than {name}") if theirs_us > ours_us else ("keep", f"slower than {name}")


def _remedy(action: Action, comparison: Comparison, unmeasured: list[str], asked_models: bool) -> str:
    if action == "apply":
        return ""
    if action == "measure":
        return _remedy_of_doubt(comparison, unmeasured)
    if isinstance(comparison.ours, Estimate):
        if comparison.ours.bound == "launch":
            return "launches dominate: larger inputs, or a target with more of the code around it"
        return "measure on a GPU" if asked_models else f"measure on a GPU, or {SEARCH_WITH_MODELS}"
    if comparison.floor is not None and comparison.ours.time_us < NEAR_FLOOR * comparison.floor.time_us:
        return "both run near the speed of light: a target with more of the code around it saves traffic"
    return "`kernel-lsp profile KERNEL.cu` shows where its time goes" + (
        "" if asked_models else f"; {SEARCH_WITH_MODELS}"
    )


def _remedy_of_doubt(comparison: Comparison, unmeasured: list[str]) -> str:
    if isinstance(comparison.ours, Estimate):
        return "measure on a machine with a GPU"
    if unmeasured:
        return "`baseline_wait_s = 600` waits for torch.compile before it is timed"
    if not comparison.ours.is_resolved:
        return "larger inputs, or a target with more of the code around it"
    return "measure again: `kernel-lsp check KERNEL.cu`"


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
