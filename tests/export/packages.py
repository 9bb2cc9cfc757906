"""Packages written for a test."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.core.digest import sha256_of
from kernel_lsp.core.task import Configuration, Task
from kernel_lsp.export.package.project import (
    PackageParts,
    Provenance,
    default_package_name,
    package_texts,
    write_package,
)

from .other_samples import Sample
from .samples import VERIFICATION, plan_of


def provenance(task: Task, cu_text: str) -> Provenance:
    return Provenance(
        task=task.target,
        task_sha256=sha256_of(task.model_dump_json()),
        kernel_sha256=sha256_of(cu_text),
        candidate_id="0123456789abcdef",
        proposed_by="user",
        verified=VERIFICATION,
        verified_on="PTX executor (CPU)",
        kernel_lsp_version="0.1.0",
        torch_version="2.13.0",
        date="2026-11-21",
    )


def parts_of(sample: Sample, *shapes: dict[str, tuple[int, ...]]) -> PackageParts:
    """The sample under its own name, with these configurations."""
    task, cu_text = sample.task(sample.stem), sample.cu_text(sample.stem)
    configurations = tuple(Configuration(name=str(each), shapes=each) for each in shapes)
    task = task.model_copy(update={"configurations": configurations})
    return PackageParts(task, cu_text, plan_of(cu_text), default_package_name(task), provenance(task, cu_text))


def texts_of(sample: Sample, *shapes: dict[str, tuple[int, ...]]) -> dict[str, str]:
    return package_texts(parts_of(sample, *shapes))


def written(sample: Sample, directory: Path) -> Path:
    write_package(parts_of(sample), directory)
    return directory
