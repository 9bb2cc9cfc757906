"""Files of a case may describe its inputs only where nobody but workers reads them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.process.case_files import CaseFiles, CaseOutput, CaseTensor, Rounding
from kernel_lsp.verify.cpu.cpu_device import LoadedKernel
from kernel_lsp.verify.model.cases import Case
from kernel_lsp.verify.oracle import case_store
from kernel_lsp.verify.oracle.case_store import CaseStore

CASE = Case("forward", (("N", 1 << 20),), "given", 0, "forward", is_captured=True)
ROUNDING = Rounding(1, 1.0, 0.0, 0.0, 0.0, 0.0)


class Gpu:
    index = 3
    n_turns = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        self.n_turns += 1
        await asyncio.sleep(0)
        yield


class AskedWorker:
    """Keeps what cases were asked with."""

    is_alive = True

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def make_case(self, operation: str, **asked: Any) -> CaseFiles:
        self.asked.append(asked)
        reference = CaseTensor("y", asked["directory"] / "expected" / "y.bin", DType.F64, (1,))
        output = CaseOutput("y", DType.F32, reference, None, None, None, ROUNDING, may_lose_nans=False)
        return CaseFiles(family=asked["family"], seed=0, inputs=(), outputs=(output,))


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> AskedWorker:
    monkeypatch.setattr(case_store, "DESCRIBED_ELEMENTS", 1 << 20)
    monkeypatch.setattr(case_store, "graph_of", lambda task, operation: SimpleNamespace(input_types=()))
    monkeypatch.setattr(case_store, "shapes_for", lambda graph, sizes: {"x": (sizes["N"],)})
    monkeypatch.setattr(case_store, "with_one_answer", lambda graph: frozenset())
    return AskedWorker()


def store_of(worker: AskedWorker, folder: Path, gpu: Any, *, may_sample: bool = True) -> CaseStore:
    task: Any = SimpleNamespace(forward=None, configuration=0)
    return CaseStore(task, cast(Any, worker), folder, gpu, may_sample=may_sample)


async def test_a_large_given_case_is_described_for_workers_and_written_for_others(
    worker: AskedWorker, tmp_path: Path
) -> None:
    store = store_of(worker, tmp_path, Gpu())
    for _ in range(2):
        await store.get(CASE, by_workers=True)
        await store.get(CASE)
    assert [(asked["may_describe"], asked["gpu"]) for asked in worker.asked] == [(True, 3), (False, 3)]
    assert len({asked["directory"] for asked in worker.asked}) == 2


async def test_cases_of_a_check_share_a_turn_on_the_gpu(worker: AskedWorker, tmp_path: Path) -> None:
    """Beside two other commands on the GPU each of 45 references waited for both of them."""
    gpu, cases = Gpu(), [replace(CASE, seed=seed) for seed in range(3)]
    store = store_of(worker, tmp_path, gpu)
    store.begin_in_order(cases, [])
    await store.idle()
    assert (len(worker.asked), gpu.n_turns) == (3, 1)


async def test_a_described_case_has_expectations_of_its_own(
    worker: AskedWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its values are others: a kernel that returns an input gets written files, another kernel of the task described
    ones."""
    monkeypatch.setattr(case_store, "read_expectations", lambda files: (files.outputs[0].reference.path,))
    store = store_of(worker, tmp_path, Gpu())
    for by_workers in (True, False, True):
        files = await store.get(CASE, by_workers=by_workers)
        assert isinstance(files, CaseFiles)
        assert store.expectations(files) == (files.outputs[0].reference.path,)


class CountingKernel:
    """Keeps what it was profiled on."""

    given: CaseFiles | None

    async def profile(self, bound: Any, case: Case, files: CaseFiles | None, limits: Any) -> str:
        self.given = files
        return "counted"


@pytest.mark.parametrize("is_described", [True, False])
async def test_a_described_case_is_not_made_again_to_be_counted(
    is_described: bool, worker: AskedWorker, tmp_path: Path
) -> None:
    """For an estimate beside the GPU hundreds of MB were drawn and written, and their reference made once more."""
    store, code, none = store_of(worker, tmp_path, Gpu() if is_described else None), CountingKernel(), cast(Any, None)
    kernel = LoadedKernel(cast(Any, code), store, none, [(CASE, none)], none, none)
    assert cast(str, await kernel.profile(none)) == "counted"
    assert (code.given is None, worker.asked == []) == (is_described, is_described)


@pytest.mark.parametrize(
    "other",
    [{"family": "normal"}, {"sizes": (("N", (1 << 20) - 1),)}, {"values": (0.5,)}],
    ids=["family", "size", "values"],
)
async def test_other_cases_are_one_for_all_and_written(
    worker: AskedWorker, tmp_path: Path, other: dict[str, Any]
) -> None:
    store, case = store_of(worker, tmp_path, Gpu()), replace(CASE, **other)
    await store.get(case, by_workers=True)
    await store.get(case)
    assert [asked["may_describe"] for asked in worker.asked] == [False]


@pytest.mark.parametrize(("gpu", "may_sample"), [(None, True), (Gpu(), False)], ids=["no GPU", "no sample"])
async def test_nothing_is_described_where_this_process_may_read_it(
    worker: AskedWorker, tmp_path: Path, gpu: Gpu | None, may_sample: bool
) -> None:
    await store_of(worker, tmp_path, gpu, may_sample=may_sample).get(CASE, by_workers=True)
    assert [asked["may_describe"] for asked in worker.asked] == [False]


async def test_cases_begun_ahead_are_those_that_workers_ask_for(worker: AskedWorker, tmp_path: Path) -> None:
    store = store_of(worker, tmp_path, Gpu())
    small = replace(CASE, sizes=(("N", 8),))
    store.begin_in_order([CASE], [small, CASE], by_workers={CASE, small})
    await store.idle()
    await store.get(CASE, by_workers=True)
    assert [(asked["shapes"]["x"], asked["may_describe"]) for asked in worker.asked] == [
        ((1 << 20,), True),
        ((8,), False),
    ]


async def test_cases_of_a_later_check_are_made_one_by_one_behind_those_that_are_asked_for(
    worker: AskedWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate whose references come behind all 69 of an attention's full check would wait for 20 s."""
    made = asyncio.Semaphore(0)
    store = store_of(worker, tmp_path, Gpu())
    make_case = worker.make_case

    async def slowly(operation: str, **asked: Any) -> CaseFiles:
        await made.acquire()
        return await make_case(operation, **asked)

    monkeypatch.setattr(worker, "make_case", slowly)
    later = [replace(CASE, family="normal", sizes=(("N", n),)) for n in (1, 2, 3)]
    store.make_ahead(later)
    await asyncio.sleep(0.01)
    asked_for = asyncio.create_task(store.get(CASE))
    await asyncio.sleep(0.01)
    for _ in range(4):
        made.release()
        await asyncio.sleep(0.01)
    await asked_for
    await store.idle()
    assert [asked["shapes"]["x"][0] for asked in worker.asked] == [1, 1 << 20, 2, 3]
    await store.get(later[2])
    assert len(worker.asked) == 4
