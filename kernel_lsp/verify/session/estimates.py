"""Predict the times of a target, or of a kernel and its target, without checking anything."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.config import Settings
from kernel_lsp.core.measurement import Estimate, EstimatedBaseline
from kernel_lsp.core.model import SCHEMA_VERSION, Noun
from kernel_lsp.gpu.estimate import estimate_baselines
from kernel_lsp.gpu.specs import find_gpu
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.model.cases import captured_sizes
from kernel_lsp.verify.session.check import check_kernel
from kernel_lsp.verify.session.session import Session

KERNEL_SUFFIXES = (".cu", ".cuh")


class EstimateReport(Noun):
    """Estimates by subject: ``eager forward``, ``eager backward``, or the kernel's operations."""

    schema_version: int = SCHEMA_VERSION
    target: str
    estimates: dict[str, Estimate]
    notes: tuple[str, ...] = ()


async def estimate_target(target: str, directory: Path, settings: Settings) -> EstimateReport:
    """Return eager PyTorch's time for a target; for a `.cu` file, its own time and eager's.

    Raises SettingError for an unknown GPU, TargetError and UserError as capturing and reading do.
    """
    find_gpu(settings.target_gpu)
    if target.endswith(KERNEL_SUFFIXES):
        return await _estimate_kernel(Path(target), directory, settings)
    source = read_target(target, directory)
    async with Session(settings) as session:
        task = await session.capture(source, with_backward=False)
        found = estimate_baselines(task.forward, captured_sizes(task), session.gpu)
    return EstimateReport(target=target, estimates={each.name: each.estimate for each in found}, notes=task.notes)


async def _estimate_kernel(kernel: Path, directory: Path, settings: Settings) -> EstimateReport:
    verdict = await check_kernel(kernel, None, directory, settings)
    estimates: dict[str, Estimate] = {}
    for name, comparison in verdict.times.items():
        assert isinstance(comparison.ours, Estimate)
        estimates[name] = comparison.ours
        for each in comparison.baselines:
            assert isinstance(each, EstimatedBaseline)
            estimates[f"{name} in {each.name}"] = each.estimate
    notes = () if verdict.is_correct else (f"the kernel is not right: {verdict.outcome.kind}",)
    return EstimateReport(target=str(kernel), estimates=estimates, notes=(*notes, *verdict.notes))
