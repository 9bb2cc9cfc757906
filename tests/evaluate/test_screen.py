"""What is screened before it may touch a GPU: races that only long rows have are found there, too."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.evaluate.executor_checks import ExecutorChecks
from tests.corpora import Kernel, evaluate_all, is_caught, is_passed, read_kernels

TESTS = Path(__file__).parent.parent
RACES = ("race_no_fence_after_the_flag", "race_no_fence_before_the_flag", "race_the_highest_block_gathers")
"""Of several blocks for each row, or of more than a small case has."""
ORDERED = ("last_block_finishes", "second_pass_over_parts")


def named(folder: str, names: tuple[str, ...]) -> list[Kernel]:
    return [kernel for kernel in read_kernels(TESTS / folder) if kernel.file.stem in names]


@pytest.fixture(autouse=True)
def _screen_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExecutorChecks, "check", ExecutorChecks.screen)


@pytest.mark.timeout(600)
async def test_a_screen_finds_the_races_of_the_corpus() -> None:
    found = [outcome async for outcomes in evaluate_all(named("attacks", RACES)) for outcome in outcomes]
    assert len(found) == len(RACES)
    assert [outcome.kernel.file.name for outcome in found if not is_caught(outcome)] == []


@pytest.mark.timeout(600)
async def test_a_screen_passes_what_orders_its_blocks() -> None:
    found = [outcome async for outcomes in evaluate_all(named("benign", ORDERED)) for outcome in outcomes]
    assert len(found) == len(ORDERED)
    assert [outcome.kernel.file.name for outcome in found if not is_passed(outcome)] == []
