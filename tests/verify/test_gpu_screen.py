"""Check the screen before a GPU: races that only long rows have are found there, too."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundOperation, BoundTensor
from kernel_lsp.process.case_files import CaseFiles
from kernel_lsp.verify.cpu.executor_checks import screen, screened_cases
from kernel_lsp.verify.gpu.checks import GpuChecks, MeasuringGpu
from kernel_lsp.verify.model.cases import Case, Plan
from kernel_lsp.verify.oracle.case_store import CaseStore
from kernel_lsp.verify.session import evaluation
from tests.corpora import Kernel, evaluate_all, is_caught, is_passed, read_kernels
from tests.verify.copies import TASK

TESTS = Path(__file__).parent.parent
RACES = (
    *("race_no_fence_after_the_flag", "race_no_fence_before_the_flag", "race_the_highest_block_gathers"),
    "race_large_blocks_without_fence",
)
"""Sizes of several blocks for each row, or of more than a small case has."""
ORDERED = ("last_block_finishes", "last_of_large_blocks_finishes", "second_pass_over_parts")


def named(folder: str, names: tuple[str, ...]) -> list[Kernel]:
    return [kernel for kernel in read_kernels(TESTS / folder) if kernel.file.stem in names]


def _bytes(n: int) -> BoundTensor:
    return BoundTensor(name="x", dtype=DType.U8, shape=(n,), role="input")


def plan() -> Plan:
    """Families, orders of threads and sizes: what is screened is neither first nor smallest."""
    cases = [("given", "forward", 90), ("zeros", "reverse", 1), ("normal", "random", 2), ("normal", "reverse", 8)]
    cases += [("normal", "forward", 3), ("normal", "reverse", 4)]
    return [
        (Case("forward", (), family, n, order), BoundOperation(name="f", dims={}, tensors=(_bytes(n),), steps=()))  # type: ignore[arg-type]  # parameters are words
        for family, order, n in cases
    ]


def test_cases_that_are_watched_for_races_are_screened_the_smallest_first() -> None:
    assert [case.seed for case, _ in screened_cases(plan())] == [4, 8]


def test_what_has_several_blocks_is_screened_beside_them() -> None:
    case, bound = plan()[3]
    several = (replace(case, of_several_blocks=True, seed=90), bound)
    assert [case.seed for case, _ in screened_cases([several, *plan()])] == [4, 8, 90]


def test_references_that_the_screen_waits_for_are_made_first() -> None:
    """The captured sizes among them, which it counts."""
    begun: list[list[int]] = []
    store: Any = SimpleNamespace(
        begin_in_order=lambda *groups, **_: begun.extend([c.seed for c in g] for g in groups),
        takes_a_turn=lambda _: False,
    )
    gpu: Any = SimpleNamespace(device=None, timer=None, full_wait_s=0.0)
    GpuChecks(store, [gpu], 0).prefetch([plan()])
    assert begun == [[4, 8, 90], [1, 2, 3, 4, 8, 90]]


@pytest.mark.parametrize(("full_wait_s", "n_offered"), [(60.0, 1), (0.0, 0)])
async def test_a_search_has_pytorch_prepared_once_its_first_references_are_made(
    full_wait_s: float, n_offered: int
) -> None:
    offered: list[Any] = []
    is_made = asyncio.Event()
    files = CaseFiles("given", 0, ())

    async def get(case: Case, **_: Any) -> CaseFiles:
        await is_made.wait()
        return files

    async def offer(operation: Any) -> None:
        offered.append(operation)

    store: Any = SimpleNamespace(begin_in_order=lambda *_, **__: None, takes_a_turn=lambda _: False, get=get)
    gpu: Any = SimpleNamespace(device=None, timer=SimpleNamespace(offer=offer), full_wait_s=full_wait_s)
    checks = GpuChecks(store, [gpu], 0)
    (case, bound), *others = plan()
    captured = [(replace(case, is_captured=True), bound), *others]
    checks.prefetch([captured])
    checks.prefetch([captured])
    await asyncio.sleep(0.01)
    assert offered == []
    is_made.set()
    await asyncio.sleep(0.01)
    assert [operation.files for operation in offered] == [files] * n_offered
    await checks.close()


async def test_others_are_begun_when_the_first_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[int] = []
    is_made = asyncio.Event()

    async def made() -> None:
        await is_made.wait()

    def begin(case: Case, **_: Any) -> asyncio.Task[None]:
        begun.append(case.seed)
        return asyncio.create_task(made())

    worker: Any = None
    store = CaseStore(TASK, worker, tmp_path)
    monkeypatch.setattr(store, "begin", begin)
    cases = [case for case, _ in plan()]
    store.begin_in_order(cases[:2], cases[2:])
    await asyncio.sleep(0.01)
    assert begun == [90, 1]
    is_made.set()
    await asyncio.sleep(0.01)
    assert begun == [90, 1, 2, 8, 3, 4]
    await store.close()


@pytest.fixture(autouse=True)
def _screen_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "check", screen)


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


def test_a_full_check_waits_for_pytorch_up_to_an_end() -> None:
    none: Any = None
    assert MeasuringGpu(none, none, 60.0).wait_s == 60.0
    assert 4.0 < MeasuringGpu(none, none, 60.0, time.monotonic() + 5.0).wait_s <= 5.0
    assert MeasuringGpu(none, none, 60.0, time.monotonic() - 5.0).wait_s == 0.0
