"""What is screened before it may touch a GPU: races that only long rows have are found there, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.evaluate.executor_checks import ExecutorChecks
from tests.corpora import evaluate_all, is_caught, is_passed, read_kernels

TESTS = Path(__file__).parent.parent
RACES = [
    kernel
    for kernel in read_kernels(TESTS / "attacks")
    if kernel.file.name.startswith("race_") and ("fence" in kernel.file.name or "block" in kernel.file.name)
]
BETWEEN_BLOCKS = [kernel for kernel in read_kernels(TESTS / "benign") if "block" in kernel.file.name]


@pytest.fixture(autouse=True)
def _screen_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutorChecks, "check", ExecutorChecks.screen)


@pytest.mark.timeout(600)
async def test_a_screen_finds_the_races_of_the_corpus() -> None:
    assert len(RACES) > 6
    found = [outcome async for outcomes in evaluate_all(RACES) for outcome in outcomes]
    assert [outcome.kernel.file.name for outcome in found if not is_caught(outcome)] == []


@pytest.mark.timeout(600)
async def test_a_screen_passes_what_orders_its_blocks() -> None:
    found = [outcome async for outcomes in evaluate_all(BETWEEN_BLOCKS) for outcome in outcomes]
    assert len(found) >= 3
    assert [outcome.kernel.file.name for outcome in found if not is_passed(outcome)] == []
