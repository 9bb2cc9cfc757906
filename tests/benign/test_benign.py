"""Kernels that are unusual and right pass the whole pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpora import evaluate_all, is_passed, read_kernels

BENIGN = read_kernels(Path(__file__).parent)
N_GROUPS = 6


@pytest.mark.timeout(900)
@pytest.mark.parametrize("group", range(N_GROUPS))
async def test_every_benign_kernel_passes(group: int) -> None:
    tasks = sorted({kernel.task_line for kernel in BENIGN})[group::N_GROUPS]
    kernels = [kernel for kernel in BENIGN if kernel.task_line in tasks]
    found = [outcome async for finished in evaluate_all(kernels) for outcome in finished]
    assert len(found) == len(kernels)
    assert [(o.kernel.file.name, o.verdict.outcome, o.problem) for o in found if not is_passed(o)] == []


def test_there_are_many_benign_kernels() -> None:
    assert len(BENIGN) >= 50
