"""Show what a recorded run says of a target: its share of a step, and the configurations seen."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.core.recording import RecordedConfiguration, RecordedTarget
from kernel_lsp.errors import TargetError
from kernel_lsp.source.recorded import recorded_target

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
    rows = [_row(configuration) for configuration in target.configurations[:MAX_LISTED]]
    return "\n".join([head, "", "| calls | inputs | mode |", "|--:|---|---|", *rows]) if rows else head


# --- below


def _row(found: RecordedConfiguration) -> str:
    notes = [
        found.mode,
        "autograd" if found.grad else "",
        _code(" ".join(found.source.command)) if found.source is not None else "",
        *(_code(f"{name}: {text}") for name, text in found.layouts.items()),
    ]
    inputs = ", ".join(filter(None, (found.inputs, *(f"{name}=..." for name in found.opaque))))
    return f"| {found.n_calls:,} | {_code(inputs)} | {', '.join(filter(None, notes))} |"


def _code(text: str) -> str:
    return f"`{text.replace('|', ' ').replace('`', ' ')}`"
