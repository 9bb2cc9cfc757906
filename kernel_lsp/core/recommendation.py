"""Recommend the kernel or PyTorch, from a run's times. Every surface shows this recommendation and makes no other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from kernel_lsp.core.measurement import (
    COMPILE,
    EAGER,
    Comparison,
    Estimate,
    Measurement,
    MissingBaseline,
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


def recommend(comparisons: Mapping[str, Comparison]) -> Recommendation | None:
    """Return the least favourable recommendation of all operations; None without times."""
    found = [_of(comparison, name if len(comparisons) > 1 else "") for name, comparison in comparisons.items()]
    return min(found, key=lambda each: (_ORDER.index(each.action), each.ratio), default=None)


def pytorch_name(baseline: str) -> str:
    """Return ``torch.compile max-autotune`` for ``compile max-autotune``; eager stays."""
    return baseline if baseline == EAGER else f"torch.{baseline}"


def factor_text(ratio: float) -> str:
    """Format a ratio: ``2.7x``, ``0.81x``; ``1.04x`` where two digits would round to 1."""
    text = f"{ratio:.2g}"
    return f"{ratio:.3g}x" if text in ("1", "0.99") else f"{text}x"


def _of(comparison: Comparison, operation: str) -> Recommendation:
    unmeasured = _unmeasured(comparison)
    action, why = _estimated(comparison) if isinstance(comparison.ours, Estimate) else _measured(comparison)
    if action == "apply" and unmeasured:
        action, why = "measure", f"no time of {', '.join(map(pytorch_name, unmeasured))}"
    return Recommendation(
        action=action,
        ratio=comparison.speedup,
        against=comparison.baseline_name,
        kind=comparison.ours.kind,
        why=why,
        remedy=_remedy(action, comparison, unmeasured),
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
    """Decide by the claims against each baseline: any that is not slower than ours can be kept instead."""
    name = pytorch_name(comparison.baseline_name)
    if isinstance(comparison.ours, Measurement) and not comparison.ours.is_resolved:
        return "measure", f"{comparison.ours.time_us:.2g} us is below the timer's resolution"
    ratios = [each.ratio for each in comparison.baselines if isinstance(each, TimedBaseline) and is_pytorch(each.name)]
    claims = {ratio.claim for ratio in (*ratios, comparison.ratio) if ratio is not None}
    if "slower" in claims or (comparison.ratio is None and comparison.speedup < 1.0):
        return "keep", f"slower than {name}"
    if "no difference" in claims:
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


def _remedy(action: Action, comparison: Comparison, unmeasured: list[str]) -> str:
    if action == "apply":
        return ""
    if action == "measure":
        return _remedy_of_doubt(comparison, unmeasured)
    if isinstance(comparison.ours, Estimate):
        if comparison.ours.bound == "launch":
            return "launches dominate: larger inputs, or a target with more of the code around it"
        return "measure on a GPU, or search with a language model: `--model`"
    if comparison.floor is not None and comparison.ours.time_us < NEAR_FLOOR * comparison.floor.time_us:
        return "both run near the speed of light: a target with more of the code around it saves traffic"
    return "`kernel-lsp profile KERNEL.cu` shows where its time goes; search with a language model: `--model`"


def _remedy_of_doubt(comparison: Comparison, unmeasured: list[str]) -> str:
    if isinstance(comparison.ours, Estimate):
        return "measure on a machine with a GPU"
    if unmeasured:
        return "`baseline_wait_s = 600` waits for torch.compile before it is timed"
    if not comparison.ours.is_resolved:
        return "larger inputs, or a target with more of the code around it"
    return "measure again: `kernel-lsp check KERNEL.cu`"
