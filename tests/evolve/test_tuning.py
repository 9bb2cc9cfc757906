"""A search of schedules ends where nothing is left to gain, and what was tuned once is reused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.measurement import Comparison, Estimate, TimeFloor
from kernel_lsp.core.task import SourceLine
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.run import final_verification
from kernel_lsp.evolve.run.final_verification import SearchResult, TimeLimit
from kernel_lsp.evolve.run.generations import Search, SearchSettings
from kernel_lsp.evolve.run.reuse import TunedSchedule, TunedSchedules, tuned_key
from tests.evolve.world import TASK, FakeDevice, Knob, Program, Realized, kernel, verdict_of

KEY = tuned_key(TASK, "H200", "estimated")


class Device(FakeDevice):
    """Knows the speed of light and the time of torch.compile."""

    def __init__(self, floor_us: float, compile_us: float) -> None:
        super().__init__()
        self.floor = TimeFloor(time_us=floor_us, impossible_below_us=1.0, basis="bytes")
        self.compile_us = compile_us

    async def verify(self, candidate: Candidate, depth: Literal["rank", "screen", "full"]) -> Verdict:
        verdict = await super().verify(candidate, depth)
        ours = verdict.estimate
        assert isinstance(ours, Estimate)
        compiled = ours.model_copy(update={"time_us": self.compile_us})
        found = Comparison(baseline_name="compile", baseline=compiled, ours=ours, floor=self.floor)
        return verdict.model_copy(update={"times": {"scale": found}})


class MeasuringDevice(FakeDevice):
    """Measures; a short measurement of the fastest kernels is off by a third. Each takes `gpu_s` of the GPU, and its
    time is multiplied by `factor` of its knob. `noise` is half its relative interval."""

    def __init__(
        self,
        gpu_s: float = 0.0,
        factor: Callable[[float], float] = lambda speed: 1.0,
        delay_s: float = 0.0,
        noise: float = 0.0,
    ) -> None:
        super().__init__(delay_s=delay_s)
        self.baseline_wait_s, self._gpu_s, self._factor, self._noise = 1.0, gpu_s, factor, noise

    async def verify(self, candidate: Candidate, depth: Literal["rank", "screen", "full"]) -> Verdict:
        verdict = await super().verify(candidate, depth)
        assert verdict.estimate is not None
        us = verdict.estimate.time_us
        us *= self._factor(us) * (1.3 if depth == "rank" and us < 60 else 1.0)
        stages_s = {"gpu wait": 99.0, "gpu time": self._gpu_s}
        bounds = {"low_us": us * (1.0 - self._noise), "high_us": us * (1.0 + self._noise)}
        estimate = verdict.estimate.model_copy(update={"time_us": us, **bounds})
        return verdict.model_copy(update={"estimate": estimate, "stages_s": stages_s})


async def searched(
    folder: Path,
    device: FakeDevice,
    n_generations: int = 12,
    tuned: TunedSchedule | None = None,
    limit: TimeLimit | None = None,
    program: Program | None = None,
) -> SearchResult:
    with Archive(folder) as archive:
        settings = SearchSettings(n_generations, 4, 0, early_stop=True, tuned=tuned, limit=limit)
        search = Search(archive.start_run("model.py::scale", {}), program or Program(), device, archive, settings)
        async for _ in search.run():
            pass
    assert search.result is not None
    return search.result


def remembered(folder: Path, winner: Candidate | None, verdict: Verdict | None, n_tried: int) -> TunedSchedule:
    assert winner is not None
    assert verdict is not None
    TunedSchedules(folder).remember(KEY, winner, verdict, n_tried)
    found = TunedSchedules(folder).find(KEY)
    assert found is not None
    return found


class QueueingDevice(Device):
    """The first candidate is at the speed of light at once; the others wait for the GPU, which one of them has."""

    first_id = ""

    async def verify(self, candidate: Candidate, depth: Literal["rank", "screen", "full"]) -> Verdict:
        self.first_id = self.first_id or candidate.id
        if depth == "rank" and candidate.id != self.first_id:
            self.occupied_by = self.occupied_by or candidate.id
            await asyncio.sleep(0.2 if self.occupied_by == candidate.id else 60)
        return await super().verify(candidate, depth)


async def test_candidates_that_wait_are_abandoned_once_one_is_at_the_limit(tmp_path: Path) -> None:
    device = QueueingDevice(78.0, 200.0)
    device.baseline_wait_s, device.n_slots = 1.0, 4
    started = time.monotonic()
    result = await searched(tmp_path, device)
    assert time.monotonic() - started < 30
    assert [depth for _, depth in device.asked] == ["rank", "rank", "full"]  # the one on the GPU went on
    assert result.stopped.startswith("the best is within 5%")
    assert result.winner is not None


class TwoOperations(Device):
    """The forward is at the speed of light, the backward takes `factor` of it; half of the time is the forward's."""

    def __init__(self, factor: float) -> None:
        super().__init__(1.0, 200.0)
        self.baseline_wait_s, self.n_slots, self.factor = 1.0, 1, factor

    async def verify(self, candidate: Candidate, depth: Literal["rank", "screen", "full"]) -> Verdict:
        verdict = await super().verify(candidate, depth)
        (found,) = verdict.times.values()
        half = found.ours.model_copy(update={"time_us": found.ours.time_us / 2})
        floors = [self.floor.model_copy(update={"time_us": half.time_us / factor}) for factor in (1.0, self.factor)]
        both = [found.model_copy(update={"ours": half, "floor": floor}) for floor in floors]
        return verdict.model_copy(update={"times": {"scale": both[0], "scale_backward": both[1]}})


@pytest.mark.parametrize(("factor", "ends"), [(1.04, True), (1.09, False)])
async def test_a_search_ends_at_the_limit_of_each_operation(factor: float, ends: bool, tmp_path: Path) -> None:
    result = await searched(tmp_path, TwoOperations(factor), n_generations=2)
    assert ("within 5%" in result.stopped) == ends


@pytest.mark.parametrize(
    ("floor_us", "compile_us", "n_most", "why"),
    [
        (78.0, 200.0, 4, "the best is within 5% of the speed of light"),
        (40.0, 41.0, 8, "PyTorch itself is within 5% of the speed of light"),
        (1.0, 200.0, 47, "2 generations gained less than the noise"),
    ],
)
async def test_it_ends_where_nothing_is_left_to_gain(
    tmp_path: Path, floor_us: float, compile_us: float, n_most: int, why: str
) -> None:
    result = await searched(tmp_path, Device(floor_us, compile_us))
    assert result.stopped.startswith(why)
    assert result.n_proposed <= n_most


async def test_no_candidate_starts_once_one_was_measured_at_the_limit(tmp_path: Path) -> None:
    device = Device(78.0, 200.0)
    device.baseline_wait_s, device.n_slots = 1.0, 1
    result = await searched(tmp_path, device)
    depths = [depth for _, depth in device.asked]
    assert depths.count("rank") < 4  # one more may have started before the first one's verdict was taken
    assert depths[-1] == "full"
    assert "screen" not in depths
    assert result.stopped.startswith("the best is within 5% of the speed of light")
    assert not result.is_cut_short


async def test_one_measured_generation_without_a_gain_is_enough(tmp_path: Path) -> None:
    measured = await searched(tmp_path / "measured", MeasuringDevice(factor=lambda us: 100.0 / us), 12)
    assert measured.stopped.startswith("1 generation gained less than the noise of 1.0%")
    assert measured.n_proposed == 8
    gaining = await searched(tmp_path / "gaining", MeasuringDevice(factor=lambda us: us), 12)
    assert gaining.n_proposed > 8


async def test_no_generation_begins_once_the_search_has_taken_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_verification, "MAX_SEARCH_S", 0.01)
    result = await searched(tmp_path, MeasuringDevice(factor=lambda us: 1.0 + us % 7, delay_s=0.02))
    assert result.stopped.startswith("1 generation took 0 s")
    assert result.n_proposed == 4
    assert not result.is_cut_short
    estimated = await searched(tmp_path / "estimated", Device(1.0, 200.0))
    assert estimated.stopped.startswith("2 generations gained less")


async def test_a_search_that_is_clearly_ahead_of_pytorch_takes_less_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final_verification, "MAX_AHEAD_S", 0.01)
    for compile_us, is_ahead in ((200.0, True), (5.0, False)):
        device = Device(1.0, compile_us)
        device.baseline_wait_s, device._delay_s = 1.0, 0.02
        result = await searched(tmp_path / str(compile_us), device)
        assert (result.n_proposed == 4) is is_ahead
        assert ("where the best is 1.2x as fast as PyTorch" in result.stopped) is is_ahead


async def test_candidates_are_ranked_and_the_fastest_alone_is_measured_in_full(tmp_path: Path) -> None:
    device = MeasuringDevice(noise=0.5)
    result = await searched(tmp_path, device, 3)
    assert [depth for _, depth in device.asked] == [*["rank"] * 12, "full"]
    assert result.winner is not None
    assert device.asked[-1][0] == result.winner.id


async def test_no_generation_begins_after_the_gpu_was_used_for_long(tmp_path: Path) -> None:
    result = await searched(tmp_path, MeasuringDevice(gpu_s=6.0))
    assert result.stopped.startswith("candidates took 24 s of the GPU")
    assert result.n_proposed == 4


class UntimedDevice(FakeDevice):
    """Measures, and PyTorch's side, which every time stands beside, cannot run."""

    def __init__(self) -> None:
        super().__init__()
        self.baseline_wait_s = 1.0

    async def verify(self, candidate: Candidate, depth: Literal["rank", "screen", "full"]) -> Verdict:
        verdict = await super().verify(candidate, depth)
        notes = ("scale: 1 MiB of device memory", "scale: not timed: eager: RuntimeError: view size")
        return verdict.model_copy(update={"estimate": None, "notes": notes})


async def test_correct_candidates_without_a_time_end_the_search_with_the_reason(tmp_path: Path) -> None:
    """A network whose printed reference raised ended as "nothing was proposed", 10 s of drawing later."""
    device = UntimedDevice()
    result = await searched(tmp_path, device)
    assert result.winner is None
    assert result.reason.endswith("none has a time to be ranked by: scale: not timed: eager: RuntimeError: view size")
    assert result.reason.startswith(f"{len(device.asked)} candidates correct")
    assert len(device.asked) <= 4, "one generation"


class InvalidProgram(Program):
    """Has no valid schedule."""

    def realize(self, schedule: Mapping[str, int | str]) -> Realized:
        return replace(super().realize(schedule), is_valid=False)


async def test_a_generator_without_a_valid_schedule_says_so(tmp_path: Path) -> None:
    result = await searched(tmp_path, FakeDevice(), program=InvalidProgram())
    assert result.reason == "the generator has no valid schedule"


async def test_estimates_are_not_repeated(tmp_path: Path) -> None:
    device = FakeDevice()
    await searched(tmp_path, device, 2)
    assert {depth for _, depth in device.asked} == {"screen", "full"}
    assert len(device.asked) == 9


async def test_what_was_tuned_once_is_reused_with_two_candidates(tmp_path: Path) -> None:
    first = await searched(tmp_path, FakeDevice())
    tuned = remembered(tmp_path, first.winner, first.verdict, 48)
    again = await searched(tmp_path, FakeDevice(), tuned=tuned)
    assert again.winner is not None
    assert first.winner is not None
    assert (again.winner.text, again.n_proposed) == (first.winner.text, 2)
    assert again.stopped.startswith("the schedule was chosen from 48 candidates")


async def test_a_larger_search_begins_from_what_was_tuned_and_goes_on(tmp_path: Path) -> None:
    first = await searched(tmp_path, FakeDevice(), 1)
    tuned = remembered(tmp_path, first.winner, first.verdict, 4)
    assert (await searched(tmp_path, FakeDevice(), 4, tuned)).n_proposed > 4


def test_an_entry_holds_while_the_generator_prints_its_text(tmp_path: Path) -> None:
    text = Program().realize({"speed": 50}).text
    winner = Candidate.model_validate({"text": text, "origin": {"proposer": "generator", "schedule": {"speed": 50}}})
    tuned = remembered(tmp_path, winner, verdict_of(winner), 9)
    assert tuned.holds(Program())
    assert not tuned.holds(Program("// newer\n"))
    assert tuned.is_confirmed_by(f"// task: ../elsewhere/model.py::scale\n{text}", 50.0)
    assert not tuned.is_confirmed_by(text, 60.0)


def test_the_key_is_of_the_computation_and_the_gpu_not_of_the_file() -> None:
    place = {"source": SourceLine(file="b.py", line=99, text="x"), "user_name": "other"}
    nodes = tuple(node.model_copy(update=place) for node in TASK.forward.nodes)
    forward = TASK.forward.model_copy(update={"nodes": nodes})
    moved = TASK.model_copy(update={"forward": forward, "source_file": "b.py", "target": "b.py::g"})
    assert tuned_key(moved, "H200", "estimated") == KEY
    assert tuned_key(TASK, "L4", "estimated") != KEY != tuned_key(TASK, "H200", "measured")


@pytest.mark.parametrize(("limit_s", "n_at_most"), [(0.0, 4), (0.05, 12)])
async def test_a_search_whose_time_is_over_gives_its_best_candidate_the_full_check(
    tmp_path: Path, limit_s: float, n_at_most: int
) -> None:
    device = MeasuringDevice(delay_s=0.02)
    result = await searched(tmp_path, device, limit=TimeLimit(limit_s, time.monotonic()))
    depths = [depth for _, depth in device.asked]
    assert depths[-1] == "full"
    assert 0 < depths.count("rank") <= n_at_most
    assert "screen" not in depths
    assert result.winner is not None
    assert (result.is_cut_short, result.stopped) == (True, f"time limit for candidates ({limit_s:.0f} s)")


class SlowProgram(Program):
    """Rendering takes half a second."""

    n_rendered = 0

    def realize(self, schedule: Mapping[str, int | str]) -> Realized:
        self.n_rendered += 1
        if self.n_rendered > 1:
            time.sleep(0.5)
        return super().realize(schedule)


async def test_drawing_schedules_ends_with_the_time_for_candidates(tmp_path: Path) -> None:
    program = SlowProgram()
    limit = TimeLimit(0.7, time.monotonic())
    result = await searched(tmp_path, MeasuringDevice(), limit=limit, program=program)
    assert program.n_rendered <= 3
    assert result.winner is not None
    assert result.is_cut_short


async def test_a_cancelled_run_draws_no_further_schedules(tmp_path: Path) -> None:
    program = SlowProgram()
    running = asyncio.create_task(searched(tmp_path, MeasuringDevice(), program=program))
    while program.n_rendered < 2:
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    before = program.n_rendered
    await asyncio.sleep(1.2)
    assert program.n_rendered <= before + 1


async def test_a_search_that_ends_before_its_time_is_not_cut_short(tmp_path: Path) -> None:
    result = await searched(tmp_path, MeasuringDevice(), 2, limit=TimeLimit(60.0, time.monotonic()))
    assert not result.is_cut_short


async def test_candidates_under_way_are_abandoned_at_the_end_of_their_time(tmp_path: Path) -> None:
    device = QueueingDevice(1.0, 200.0)  # nothing is near the speed of light
    device.baseline_wait_s, device.n_slots = 1.0, 4
    started = time.monotonic()
    result = await searched(tmp_path, device, limit=TimeLimit(0.5, started))
    assert time.monotonic() - started < 30
    assert [depth for _, depth in device.asked] == ["rank", "rank", "full"]
    assert result.winner is not None
    assert result.is_cut_short


class ProductProgram(Program):
    """The default multiplies in 50 us, a library in 80."""

    def realize(self, schedule: Mapping[str, int | str]) -> Realized:
        chosen = schedule.get("contraction", "tiled")
        knob = Knob("contraction", ("tiled", "library"), "tiled")
        return Realized({"contraction": chosen}, kernel(80.0 if chosen == "library" else 50.0), (knob,))


class CompilingDevice(MeasuringDevice):
    """The first candidate takes longer than the time for candidates to compile."""

    first_id = ""

    async def verify(self, candidate: Candidate, depth: Literal["rank", "screen", "full"]) -> Verdict:
        self.first_id = self.first_id or candidate.id
        if depth == "rank" and candidate.id == self.first_id:
            await asyncio.sleep(1.0)
        return await super().verify(candidate, depth)


async def test_a_library_that_compiles_at_once_does_not_end_the_search_before_the_default_has_a_time(
    tmp_path: Path,
) -> None:
    """Attention by PyTorch, at 0.42x, was the result of a search whose default was abandoned."""
    device, limit = CompilingDevice(), TimeLimit(0.5, time.monotonic())
    result = await searched(tmp_path, device, limit=limit, program=ProductProgram())
    assert result.winner is not None
    assert result.winner.origin.schedule == {"contraction": "tiled"}
    assert [depth for _, depth in device.asked] == ["rank", "full"]
    assert result.is_cut_short


class QuickProgram(Program):
    """Beside the default there are a library and a quick schedule."""

    def realize(self, schedule: Mapping[str, int | str]) -> Realized:
        chosen, us = schedule.get("contraction", "tiled"), {"tiled": 50.0, "library": 80.0, "quick": 60.0}
        knob = Knob("contraction", tuple(us), "tiled")
        return Realized({"contraction": chosen}, kernel(us[str(chosen)]), (knob,))


async def test_a_library_that_waits_for_an_abandoned_default_is_not_the_end_of_the_run(tmp_path: Path) -> None:
    device, limit = CompilingDevice(), TimeLimit(0.5, time.monotonic())
    device.n_slots = 4
    result = await searched(tmp_path, device, limit=limit, program=QuickProgram())
    assert result.winner is not None
    assert result.winner.origin.schedule == {"contraction": "quick"}
    assert result.is_cut_short
