"""A search that is given a kernel begins from it, and says whether anything beat it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import pytest

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.event import CandidateProposed
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.errors import TargetError
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.run.final_verification import SearchResult
from kernel_lsp.evolve.run.generations import Search, SearchSettings
from kernel_lsp.evolve.run.request import ModelChoices, OptimizeRequest, SeedKernel, read_seed_kernel
from tests.evolve.world import FakeDevice, Program, Ran, Realized, World, kernel, reply
from tests.scripted_model import ScriptedModel

TARGET = "../model.py::scale"


async def searched(folder: Path, given: str) -> tuple[SearchResult, list[str]]:
    """The end of a search of the generator's schedules, and the candidates in the order in which they came."""
    seed = SeedKernel(name="scale.cu", text=given).candidate(TARGET)
    with Archive(folder) as archive:
        run_id = archive.start_run("model.py::scale", {})
        search = Search(
            run_id, Program(speeds=(50, 60, 70, 80)), FakeDevice(), archive, SearchSettings(2, 4, 0, (seed,))
        )
        events = [event async for event in search.run()]
    assert search.result is not None
    return search.result, [event.candidate_id for event in events if isinstance(event, CandidateProposed)]


async def searched_with_models(folder: Path, given: str, time_us: float) -> Ran:
    """The same with a model whose kernels take `time_us`."""
    choices = ModelChoices(early_stop="off", repair_rounds=0)
    world = World(folder, choices=choices, seed_kernels=(SeedKernel(name="scale.cu", text=given),))
    world.program = None
    return await world.search(ScriptedModel(lambda request: reply(time_us + request.sample)))


async def test_a_given_kernel_is_the_first_candidate(tmp_path: Path) -> None:
    _, proposed = await searched(tmp_path, kernel(65.0))
    assert proposed[0] == SeedKernel(name="scale.cu", text=kernel(65.0)).candidate(TARGET).id


async def test_a_faster_kernel_beats_the_given_one_and_the_end_says_by_how_much(tmp_path: Path) -> None:
    result, _ = await searched(tmp_path, kernel(100.0))
    assert result.winner is not None
    assert "T=50.0" in result.winner.text
    assert "; 2x as fast as the given kernel (100 us)" in result.reason


async def test_a_given_kernel_that_nothing_beats_wins(tmp_path: Path) -> None:
    result, _ = await searched(tmp_path, kernel(10.0))
    assert result.winner is not None
    assert result.winner.origin.description == "the given scale.cu"
    assert "nothing beat the given kernel" in result.reason


async def test_of_a_given_kernel_that_is_wrong_the_end_says_so(tmp_path: Path) -> None:
    result, _ = await searched(tmp_path, kernel(10.0, "WRONG"))
    assert result.winner is not None
    assert "the given kernel failed: " in result.reason


async def test_without_a_given_kernel_the_end_does_not_speak_of_one(tmp_path: Path) -> None:
    ran = await World(tmp_path, choices=ModelChoices(early_stop="off")).search(ScriptedModel(lambda _: reply(5.0)))
    assert "given" not in ran.result.reason


async def test_models_improve_the_given_kernel(tmp_path: Path) -> None:
    ran = await searched_with_models(tmp_path, kernel(100.0), time_us=40.0)
    given = SeedKernel(name="scale.cu", text=kernel(100.0)).candidate(TARGET)
    assert "x as fast as the given kernel (100 us)" in ran.result.reason
    assert all(record.parent_us is not None for record in ran.proposals)
    assert given.id in {parent for record in ran.proposals for parent in record.parents}


async def test_a_given_kernel_that_no_model_beats_wins(tmp_path: Path) -> None:
    ran = await searched_with_models(tmp_path, kernel(1.0), time_us=40.0)
    assert "nothing beat the given kernel" in ran.result.reason


def test_a_given_kernel_says_which_task_it_is_of_as_seen_from_where_results_go() -> None:
    assert "// task: ../model.py::scale\n" in SeedKernel(name="a.cu", text=kernel(1.0)).candidate(TARGET).text


def test_a_resumed_run_has_the_kernel_as_it_was(tmp_path: Path) -> None:
    seed = SeedKernel(name="a.cu", text=kernel(1.0))
    request = OptimizeRequest(
        target="m.py::f",
        directory=tmp_path,
        target_gpu="H200",
        generations=1,
        proposals=1,
        seed=0,
        seed_kernels=(seed,),
    )
    assert OptimizeRequest.model_validate_json(request.model_dump_json()).seed_kernels == (seed,)


def test_a_kernel_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot be read") as raised:
        read_seed_kernel(tmp_path / "gone.cu")
    assert raised.value.file == str(tmp_path / "gone.cu")


async def test_a_search_of_models_that_is_given_a_kernel_improves_it_and_translates_nothing(tmp_path: Path) -> None:
    ran = await searched_with_models(tmp_path, kernel(100.0), time_us=40.0)
    assert "translate" not in {record.operator for record in ran.proposals}


async def test_several_given_kernels_take_the_places_of_the_generators_schedules(tmp_path: Path) -> None:
    seeds = tuple(SeedKernel(name=f"{time_us}.cu", text=kernel(time_us)) for time_us in (41.0, 42.0, 43.0))
    world = World(tmp_path, choices=ModelChoices(early_stop="off", repair_rounds=0), seed_kernels=seeds)
    world.program = Program()
    ran = await world.search(ScriptedModel(lambda request: reply(20.0 + request.sample)))
    first = [event.candidate_id for event in ran.of("candidate_proposed")][:4]
    assert first[:3] == [seed.candidate(TARGET).id for seed in seeds]
    assert "as fast as the best given kernel (41 us)" in ran.result.reason


def test_a_run_from_when_there_could_be_one_given_kernel_only_has_it_still(tmp_path: Path) -> None:
    seed = SeedKernel(name="a.cu", text=kernel(1.0))
    old = {"target": "m.py::f", "directory": str(tmp_path), "target_gpu": "H200", "generations": 1, "proposals": 1}
    request = OptimizeRequest.model_validate(old | {"seed": 0, "seed_kernel": seed.model_dump()})
    assert request.seed_kernels == (seed,)
    assert OptimizeRequest.model_validate(old | {"seed": 0, "seed_kernel": None}).seed_kernels == ()


async def test_the_default_is_evaluated_while_other_schedules_are_rendered(tmp_path: Path) -> None:
    begun = threading.Event()

    class Asked(FakeDevice):
        async def verify(self, candidate: Candidate, depth: Literal["rank", "screen", "full"]) -> Verdict:
            begun.set()
            return await super().verify(candidate, depth)

    class Slow(Program):
        def realize(self, schedule: Mapping[str, int | str]) -> Realized:
            if schedule.get("speed", 80) != 80:
                assert begun.wait(10.0), "the device was not asked before"
            return super().realize(schedule)

    device = Asked()
    with Archive(tmp_path) as archive:
        run_id = archive.start_run("model.py::scale", {})
        search = Search(run_id, Slow(), device, archive, SearchSettings(1, 4, 0))
        events = [event async for event in search.run()]
    proposed = [event.candidate_id for event in events if isinstance(event, CandidateProposed)]
    assert len(set(proposed)) == 4
    assert [asked[0] for asked in device.asked if asked[1] == "screen"].count(proposed[0]) == 1
