"""Kernels that are unusual and right pass the whole pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.corpora import Kernel, by_task, evaluate_all, is_passed, read_kernels, sample

BENIGN = read_kernels(Path(__file__).parent)
CHOSEN = sample(BENIGN, lambda kernel: kernel.task_line, every=8)
N_GROUPS = 6


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kernels", by_task(CHOSEN, N_GROUPS), ids=lambda kernels: kernels[0].file.stem)
async def test_a_benign_kernel_passes(kernels: list[Kernel]) -> None:
    found = [outcome async for finished in evaluate_all(kernels) for outcome in finished]
    assert len(found) == len(kernels)
    assert [(o.kernel.file.name, o.verdict.outcome, o.problem) for o in found if not is_passed(o)] == []


@pytest.mark.skipif(
    len(CHOSEN) < len(BENIGN), reason=f"{len(BENIGN) - len(CHOSEN)} of {len(BENIGN)} kernels are left to `make attacks`"
)
def test_all_benign_kernels_were_tried() -> None:
    assert CHOSEN == BENIGN


def test_there_are_many_benign_kernels() -> None:
    assert len(BENIGN) >= 50
