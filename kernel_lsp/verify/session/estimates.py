"""Predict the times of a kernel and its target from a check on the executor."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.config import Settings
from kernel_lsp.core.measurement import Estimate, EstimatedBaseline, LineEstimate
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.verify.session.check import check_kernel

KERNEL_SUFFIXES = (".cu", ".cuh")


class EstimateReport(Noun):
    """Estimates by subject: ``eager`` and ``compile``, or the kernel's operations, alone and in PyTorch. `lines` are
    those of a PyTorch target, costliest first, and `floor_us` is its speed of light in microseconds."""

    schema_version: int = SCHEMA_VERSION
    target: str
    estimates: dict[str, Estimate]
    floor_us: float | None = None
    lines: tuple[LineEstimate, ...] = ()
    notes: tuple[str, ...] = ()


async def estimate_kernel(kernel: Path, directory: Path, settings: Settings) -> EstimateReport:
    """Return the times of a `.cu` file and of PyTorch. Raises UserError as reading does."""
    verdict = await check_kernel(kernel, None, directory, settings)
    estimates: dict[str, Estimate] = {}
    for name, comparison in verdict.times.items():
        assert isinstance(comparison.ours, Estimate)
        estimates[name] = comparison.ours
        for each in comparison.baselines:
            assert isinstance(each, EstimatedBaseline)
            estimates[f"{name} in {each.name}"] = each.estimate
    notes = () if verdict.is_correct else (f"the kernel is incorrect: {verdict.outcome.kind}",)
    return EstimateReport(target=str(kernel), estimates=estimates, notes=(*notes, *verdict.notes))
