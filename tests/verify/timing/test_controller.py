"""Timing across processes: whose turn it is, what is claimed, and what happens when one of them breaks."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lsp.core.measurement import MissingBaseline, TimedBaseline
from kernel_lsp.verify.timing.operation import NOT_IDLE, RANKING
from kernel_lsp.verify.timing.result import (
    CandidateBroke,
    ImpossibleTime,
    NotTimed,
    Timed,
    WrongWhileTimed,
)
from kernel_lsp.verify.timing.rounds import TimingPlan

from .harness import N_ELEMENTS, PATIENCE_S, TIMES_US, FakeWorker, bench, operation

ALL = ("eager", "compile", "compile reduce-overhead", "compile max-autotune")
GENEROUS_S = 60.0


async def test_a_faster_candidate_is_claimed_faster_than_the_best_baseline(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        comparison = await it.comparison()
    assert comparison.baseline_name == "compile"
    assert comparison.ratio is not None
    assert comparison.ratio.claim == "faster"
    assert comparison.ratio.low <= 60 / 40 <= comparison.ratio.high


async def test_every_baseline_has_a_time_and_a_ratio_of_its_own(tmp_path: Path) -> None:
    async with bench(tmp_path, baselines=ALL) as it:
        comparison = await it.comparison()
    timed = [found for found in comparison.baselines if isinstance(found, TimedBaseline)]
    assert [found.name for found in timed] == list(ALL)
    modes = ("eager", "default", "reduce-overhead", "max-autotune")
    for found, mode in zip(timed, modes, strict=True):
        assert found.measurement.time_us == pytest.approx(TIMES_US[mode], rel=0.02)
        assert found.ratio is not None
        assert found.ratio.value == pytest.approx(TIMES_US[mode] / TIMES_US["ours"], rel=0.03)


async def test_a_candidate_as_fast_as_the_baseline_is_no_different(tmp_path: Path) -> None:
    async with bench(tmp_path, candidate={"times_us": {"ours": 60.0}}) as it:
        comparison = await it.comparison()
    assert comparison.ratio is not None
    assert comparison.ratio.claim == "no difference"


async def test_a_slower_candidate_is_claimed_slower(tmp_path: Path) -> None:
    async with bench(tmp_path, candidate={"times_us": {"ours": 90.0}}) as it:
        comparison = await it.comparison()
    assert comparison.ratio is not None
    assert comparison.ratio.claim == "slower"


@pytest.mark.parametrize(
    ("ours_us", "n_rounds", "claim"),
    [(30.0, 8, "faster"), (90.0, 8, "slower"), (60.0, 8, "no difference"), (58.0, 12, "faster"), (61.0, 12, None)],
)
async def test_what_is_clear_is_not_measured_for_longer(
    tmp_path: Path, ours_us: float, n_rounds: int, claim: str | None
) -> None:
    """Neither a large difference nor none would be another one after more rounds; a small one might."""
    times_us = {"ours": ours_us, "eager": 60.0}
    async with bench(tmp_path, times_us=times_us, spread=0.002, baselines=("eager",)) as it:
        ratio = (await it.comparison()).ratio
    assert ratio is not None
    assert ratio.n_rounds == n_rounds
    assert claim is None or ratio.claim == claim


async def test_a_baseline_far_behind_another_is_left_out_after_four_rounds(tmp_path: Path) -> None:
    async with bench(tmp_path, spread=0.002) as it:
        comparison = await it.comparison()
    ratios = {found.name: found.ratio for found in comparison.baselines if isinstance(found, TimedBaseline)}
    assert ratios["compile"] is not None
    assert ratios["eager"] is not None
    assert ratios["compile"].n_rounds >= 8
    assert ratios["eager"].n_rounds == 4
    assert ratios["eager"].value == pytest.approx(TIMES_US["eager"] / TIMES_US["ours"], rel=0.03)
    assert ratios["eager"].claim == "faster"


@pytest.mark.parametrize("eager_us", [60.0, 62.0])
async def test_baselines_that_are_close_stay_to_the_end(tmp_path: Path, eager_us: float) -> None:
    async with bench(tmp_path, times_us={**TIMES_US, "eager": eager_us}, spread=0.002) as it:
        comparison = await it.comparison()
    ratios = [found.ratio for found in comparison.baselines if isinstance(found, TimedBaseline)]
    assert all(ratio is not None and ratio.n_rounds >= 8 for ratio in ratios)


async def test_of_few_rounds_only_what_is_far_is_claimed(tmp_path: Path) -> None:
    """A baseline that another beat has no noise of its own: 5 % from it is no difference."""
    times_us = {**TIMES_US, "ours": 114.0}
    async with bench(tmp_path, times_us=times_us, spread=0.002) as it:
        comparison = await it.comparison()
    ratios = {found.name: found.ratio for found in comparison.baselines if isinstance(found, TimedBaseline)}
    assert ratios["eager"] is not None
    assert ratios["eager"].n_rounds == 4
    assert ratios["eager"].claim == "no difference"
    assert comparison.baseline_name == "compile"
    assert comparison.ratio is not None
    assert comparison.ratio.claim == "slower"


async def test_no_two_processes_run_blocks_at_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.comparison()
        events = [line.split() for line in it.log() if line.split()[1] in ("start", "end")]
    assert len(events) > 50
    for before, after in zip(events[0::2], events[1::2], strict=True):
        assert before[0] == after[0]
        assert (before[1], after[1]) == ("start", "end")


async def test_each_round_is_its_own_mirror(tmp_path: Path) -> None:
    async with bench(tmp_path, baselines=("eager",)) as it:
        await it.comparison()
        started = [line.split()[2] for line in it.log() if " start " in line and "probe" not in line]
    rounds = [started[at : at + 6] for at in range(0, len(started), 6)]
    assert all(found == found[::-1] for found in rounds)
    assert len({tuple(found) for found in rounds}) > 1, "the order is drawn anew for each round"


async def test_the_same_kernel_against_itself_claims_at_most_one_difference_in_twenty(tmp_path: Path) -> None:
    claims = []
    async with bench(tmp_path, times_us={}, baselines=("eager",)) as it:
        for number in range(20):
            outcome = await it.time(str(number))
            assert isinstance(outcome, Timed)
            assert outcome.comparison.ratio is not None
            claims.append(outcome.comparison.ratio.claim)
    assert claims.count("no difference") >= 19


async def test_the_noise_of_an_a_a_pair_stops_small_claims(tmp_path: Path) -> None:
    """Two sets of buffers differ by more than candidate and baseline do."""
    async with bench(tmp_path, times_us={"ours": 50.0, "eager": 51.0}, spread=0.1, baselines=("eager",)) as it:
        comparison = await it.comparison()
    assert comparison.ratio is not None
    assert comparison.ratio.noise_floor > 0.02
    assert comparison.ratio.claim == "no difference"


async def test_what_a_process_adds_to_each_call_is_no_difference(tmp_path: Path) -> None:
    """The candidate's process takes 0.4 us longer for everything: 4 % of its time, and of nothing but noise."""
    own = {"times_us": {"ours": 10.0}, "offset_us": 0.4}
    async with bench(tmp_path, times_us={"eager": 10.0}, candidate=own, spread=0.001, baselines=("eager",)) as it:
        ratio = (await it.comparison()).ratio
    assert ratio is not None
    assert ratio.high < 0.98
    assert ratio.claim == "no difference"


async def test_two_processes_are_probed_once(tmp_path: Path) -> None:
    """Count them besides the one that warms up eager's process."""
    async with bench(tmp_path, baselines=("eager",)) as it:
        for _ in range(3):
            await it.comparison()
        assert sum(line.endswith(" probe") for line in it.log()) == 2 + len(it.made)


async def test_what_cannot_be_captured_is_timed_on_a_stream_on_both_sides(tmp_path: Path) -> None:
    """A launch on a stream takes 11 us in both processes: beside a graph that was a noise floor of 369 %."""
    stream = {"stream_us": 11.0}
    own = {"times_us": {"ours": 3.0}, "can_capture": False, **stream}
    async with bench(
        tmp_path, times_us={"eager": 63.7}, candidate=own, spread=0.001, baselines=("eager",), **stream
    ) as it:
        comparison = await it.comparison()
    assert (comparison.ours.method, comparison.baseline.method) == ("stream", "stream")  # type: ignore[union-attr]
    assert comparison.ratio is not None
    assert comparison.ratio.noise_floor < 0.2
    assert comparison.ratio.claim == "faster"


async def test_a_baseline_stays_a_graph_beside_a_candidate_that_is_one(tmp_path: Path) -> None:
    async with bench(tmp_path, baselines=("eager",)) as it:
        comparison = await it.comparison()
    assert (comparison.ours.method, comparison.baseline.method) == ("graph", "graph")  # type: ignore[union-attr]


async def test_a_a_pairs_are_measured_twice_a_session(tmp_path: Path) -> None:
    async with bench(tmp_path, baselines=("eager",)) as it:
        for _ in range(4):
            await it.comparison()
        started = {line.split()[2] for line in it.log() if " start ours-again" in line}
    assert len(started) == 2


async def test_both_sides_have_as_many_calls_in_a_sample(tmp_path: Path) -> None:
    async with bench(tmp_path, times_us={"ours": 5.0, "eager": 20.0}, baselines=("eager",)) as it:
        comparison = await it.comparison()
        await it.comparison()
        assert sum(" set_calls " in line for line in it.log()) == 1
    assert (comparison.ours.n_calls_per_sample, comparison.baseline.n_calls_per_sample) == (16, 16)  # type: ignore[union-attr]
    assert comparison.ours.resolution_us == pytest.approx(1.0 / 16)  # type: ignore[union-attr]


async def test_samples_of_a_much_slower_baseline_stay_short(tmp_path: Path) -> None:
    async with bench(tmp_path, times_us={"ours": 5.0, "eager": 900.0}, baselines=("eager",)) as it:
        baseline = (await it.comparison()).baseline
    assert baseline.n_calls_per_sample == 2  # type: ignore[union-attr]


async def test_a_baseline_that_takes_one_call_at_a_time_costs_noise(tmp_path: Path) -> None:
    """3 us around the calls of a sample weigh 60 % of a call of 5 us."""
    own = {"times_us": {"ours": 5.0}, "max_calls": 16}
    async with bench(tmp_path, times_us={"eager": 7.0}, max_calls=1, candidate=own, baselines=("eager",)) as it:
        ratio = (await it.comparison()).ratio
    assert ratio is not None
    assert ratio.claim == "no difference"


async def test_warm_and_operator_times_are_beside_the_cold_one(tmp_path: Path) -> None:
    async with bench(tmp_path, baselines=("eager",)) as it:
        ours = (await it.comparison()).ours
    assert ours.kind == "measured"
    assert ours.warm_us == pytest.approx(32.0)
    assert ours.operator_us == pytest.approx(46.0)
    assert (ours.tf32, ours.cudnn_benchmark, ours.interval) == ("off", "on", "bootstrap")


async def test_clocks_are_in_the_measurement(tmp_path: Path) -> None:
    async with bench(tmp_path, baselines=("eager",)) as it:
        ours = (await it.comparison()).ours
    assert ours.kind == "measured"
    assert (ours.clocks.low_sm_mhz, ours.clocks.highest_power_w) == (1980, 300.0)


async def test_without_nvml_there_are_times_and_a_reason(tmp_path: Path) -> None:
    async with bench(tmp_path, has_no_nvml=True, baselines=("eager",)) as it:
        ours = (await it.comparison()).ours
    assert ours.kind == "measured"
    assert not ours.clocks.is_known
    assert "libnvidia-ml" in ours.clocks.reason


async def test_throttled_rounds_are_left_out_on_both_sides(tmp_path: Path) -> None:
    plan = TimingPlan(min_rounds=12, max_rounds=12)  # as many on a loaded machine
    async with bench(tmp_path, candidate={"throttled_every": 25}, baselines=("eager",), plan=plan) as it:
        ratio = (await it.comparison()).ratio
    assert ratio is not None
    assert 0 < ratio.throttled_share < 0.5
    assert ratio.n_rounds == round(12 * (1 - ratio.throttled_share)) >= 8


async def test_a_gpu_that_is_always_throttled_is_still_timed_and_says_so(tmp_path: Path) -> None:
    async with bench(tmp_path, throttled_every=1, baselines=("eager",)) as it:
        comparison = await it.comparison()
    assert comparison.ratio is not None
    assert (comparison.ratio.throttled_share, comparison.ratio.n_rounds) == (1.0, 12)
    assert comparison.ours.clocks.throttle_reasons == ("software power cap",)  # type: ignore[union-attr]


# --- what is not ready, fails, or is known


async def test_the_first_verdict_need_not_wait_for_compilation(tmp_path: Path) -> None:
    async with bench(tmp_path, slow_modes={"default": 2.0}) as it:
        first = await it.comparison(patience_s=0)
        second = await it.comparison()
    missing = first.baselines[1]
    assert isinstance(missing, MissingBaseline)
    assert not missing.is_final
    assert first.baseline_name == "eager"
    assert isinstance(second.baselines[1], TimedBaseline)
    assert second.baseline_name == "compile"


async def test_who_waited_for_the_baselines_before_has_them_and_waits_no_more(tmp_path: Path) -> None:
    async with bench(tmp_path, slow_modes={"default": 0.5}, patience_s=60.0) as it:
        await it.timer.wait_for_baselines(operation("a", N_ELEMENTS))
        comparison = await it.comparison(patience_s=0)
    assert isinstance(comparison.baselines[1], TimedBaseline)


async def test_who_would_not_wait_may_be_told_to(tmp_path: Path) -> None:
    """A search is as short as its candidates are quick, and its winner is worth the wait."""
    async with bench(tmp_path, slow_modes={"default": 0.5}, patience_s=0.0) as it:
        await it.timer.wait_for_baselines(operation("a", N_ELEMENTS), at_least_s=60.0)
        comparison = await it.comparison(patience_s=0)
    assert isinstance(comparison.baselines[1], TimedBaseline)


async def test_the_wait_for_baselines_ends_with_its_patience_for_all_candidates_together(tmp_path: Path) -> None:
    async with bench(tmp_path, slow_modes={"default": 3600.0}, patience_s=0.2) as it:
        started = time.monotonic()
        for candidate_id in ("a", "b", "c"):
            await it.timer.wait_for_baselines(operation(candidate_id, N_ELEMENTS))
        await it.timer.time_operation(it.worker, operation("a", N_ELEMENTS))
        assert time.monotonic() - started < GENEROUS_S / 2


async def test_after_the_wait_no_baseline_is_waited_for_any_more(tmp_path: Path) -> None:
    async with bench(tmp_path, slow_modes={"default": 3600.0}, patience_s=0.0) as it:
        one = operation("a", N_ELEMENTS)
        assert not await it.timer.has_baselines(one, at_least_s=1.0)
        await it.timer.wait_for_baselines(one, at_least_s=1.0)
        assert await it.timer.has_baselines(one, at_least_s=1.0)


async def test_what_is_being_compiled_stands_still_while_something_is_timed(tmp_path: Path) -> None:
    async with bench(tmp_path, slow_modes={"default": 1.0}) as it:
        await it.comparison(patience_s=0.3)
        await it.comparison()
        lines = [line.split()[1] for line in it.log()]
    blocks = [index for index, what in enumerate(lines) if what in ("start", "end")]
    compiling = [index for index, what in enumerate(lines) if what == "compiling"]
    assert len(compiling) == 100
    assert any(index < blocks[0] for index in compiling)
    for start, end in zip(blocks[0::2], blocks[1::2], strict=True):
        assert end == start + 1, "a block of samples has the machine for itself"
    interrupted = next(at for at, index in enumerate(compiling) if index > blocks[0])
    assert compiling[interrupted] - compiling[interrupted - 1] > len(blocks) / 3, "it waited for a whole timing"


async def test_a_timing_waits_for_what_a_held_process_has_launched(tmp_path: Path) -> None:
    async with bench(tmp_path, slow_modes={"default": 1.0}) as it:
        await it.comparison(patience_s=0.3)
        await it.comparison()
        lines = [line.split()[1] for line in it.log()]
    assert lines.count("wait_until_idle") == 1, "nothing was compiled beside the second timing"
    assert lines.index("compiling") < lines.index("wait_until_idle") < lines.index("start")


async def test_a_timing_does_not_wait_for_eager_that_it_has_stopped(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    async with bench(tmp_path, slow_modes={"default": 1.0, "eager": 1.5}) as it:
        timing = asyncio.create_task(it.comparison())
        while not any("prepare default" in line for line in it.log()):
            await asyncio.sleep(0.01)
        offering = asyncio.create_task(it.timer.offer(operation("b", 2 * N_ELEMENTS)))
        comparison = await asyncio.wait_for(timing, GENEROUS_S)
        await offering
    timed = [found.name for found in comparison.baselines if isinstance(found, TimedBaseline)]
    assert timed == ["eager", "compile"]


async def test_a_mode_that_is_stopped_as_it_becomes_ready_is_not_timed_until_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = FakeWorker.hold

    def hold_behind_its_answer(worker: FakeWorker) -> None:
        while not any(line.endswith("prepared default") for line in (tmp_path / "log").read_text().splitlines()):
            time.sleep(0.01)
        time.sleep(0.1)
        hold(worker)

    monkeypatch.setattr(FakeWorker, "hold", hold_behind_its_answer)
    async with bench(tmp_path, slow_modes={"default": 1.0}) as it:
        first = await asyncio.wait_for(it.comparison(patience_s=0.3), GENEROUS_S / 2)
        second = await it.comparison()
    assert isinstance(first.baselines[1], MissingBaseline)
    assert not first.baselines[1].is_final
    assert isinstance(second.baselines[1], TimedBaseline)


@pytest.mark.parametrize("stays_busy", [False, True])
async def test_a_time_beside_work_that_does_not_end_says_so(stays_busy: bool, tmp_path: Path) -> None:
    async with bench(tmp_path, slow_modes={"default": 1.0}, stays_busy=stays_busy) as it:
        first = await it.comparison(patience_s=0.3)
        last = await it.comparison()
    assert (NOT_IDLE in first.notes) == stays_busy
    assert NOT_IDLE not in last.notes, "nothing was compiled beside it"


async def test_modes_that_noise_may_order_either_way_stay_ready_and_are_measured_together(tmp_path: Path) -> None:
    times_us = {**TIMES_US, "default": 60.0, "reduce-overhead": 46.0, "max-autotune": 45.0}
    async with bench(tmp_path, baselines=ALL, times_us=times_us) as it:
        await it.comparison()
        again = await it.comparison()
    measured = [each.name for each in again.baselines if isinstance(each, TimedBaseline) and each.ratio is not None]
    assert measured == ["eager", "compile reduce-overhead", "compile max-autotune"]


async def test_a_ranking_is_not_timed_again_for_the_same_code(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        n_lines = []
        for code, is_ranking in (("c1", True), ("c1", True), ("c2", True), ("", True), ("", True), ("c1", False)):
            timed = replace(operation("a", N_ELEMENTS), is_ranking=is_ranking, code=code)
            assert isinstance(await it.timer.time_operation(it.worker, timed, patience_s=PATIENCE_S), Timed)
            n_lines.append(len(it.log()))
    was_timed = [after > before for before, after in zip([0, *n_lines[:-1]], n_lines, strict=True)]
    assert was_timed == [True, False, True, True, True, True]


async def test_modes_are_compiled_side_by_side_but_not_those_of_a_large_job(tmp_path: Path) -> None:
    slow = {"default": 1.0, "reduce-overhead": 1.0}
    gpus = {"unknown": {}, "of 141 GiB": {"total_bytes": 141 << 30}}
    cases = (("unknown", 20, True), ("unknown", 30, False), ("of 141 GiB", 30, True), ("of 141 GiB", 31, False))
    for gpu, exponent, is_side_by_side in cases:
        folder, n_elements = tmp_path / f"{gpu} {exponent}", 1 << exponent
        folder.mkdir()
        async with bench(folder, slow_modes=slow, baselines=ALL[:3], facts=gpus[gpu]) as it:
            await it.timer.wait_for_baselines(operation("a", n_elements), at_least_s=60.0)
            lines = [line.split(maxsplit=1)[1] for line in it.log()]
        first, second = (lines.index(f"prepare {mode}") for mode in slow)
        n_between = lines[min(first, second) : max(first, second)].count("compiling")
        assert (n_between < 100) == is_side_by_side, lines


async def test_modes_start_before_there_is_a_job_where_that_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "log").touch()
    async with bench(tmp_path, baselines=ALL[:3], starts_ahead=True) as it:
        while sum(line.endswith("prepare_compiler") for line in it.log()) < 2:  # the deadline of the test is its limit
            await asyncio.sleep(0.01)
        assert len(it.made) == 3
        assert not any(" prepare " in line for line in it.log())
        comparison = await it.comparison(patience_s=60.0)
        assert len(it.made) == 3
    assert {found.name for found in comparison.baselines if isinstance(found, TimedBaseline)} == set(ALL[:3])


async def test_what_is_offered_during_a_compilation_is_compiled_too(tmp_path: Path) -> None:
    async with bench(tmp_path, slow_modes={"default": 0.3, "reduce-overhead": 0.3}, baselines=ALL) as it:
        for n_elements in (1 << 20, 1 << 21):
            await it.time(n_elements=n_elements, patience_s=0.1)
        last = [await it.time(n_elements=n_elements) for n_elements in (1 << 20, 1 << 21)]
    for outcome in last:
        assert isinstance(outcome, Timed)
        assert all(isinstance(found, TimedBaseline) for found in outcome.comparison.baselines)


async def test_a_compile_failure_is_a_result_with_its_reason(tmp_path: Path) -> None:
    async with bench(tmp_path, failing_modes={"default": "BackendCompilerFailed: no"}) as it:
        comparison = await it.comparison()
    assert comparison.baselines[1] == MissingBaseline(name="compile", reason="BackendCompilerFailed: no", is_final=True)
    assert comparison.baseline_name == "eager"


async def test_a_compile_failure_is_remembered_between_sessions(tmp_path: Path) -> None:
    for _ in range(2):
        async with bench(tmp_path, failing_modes={"default": "BackendCompilerFailed: no"}) as it:
            comparison = await it.comparison()
            n_tries = sum("prepare default" in line for line in it.log())
    assert n_tries == 1
    assert isinstance(comparison.baselines[1], MissingBaseline)


async def test_a_process_that_dies_while_compiling_is_tried_again_in_the_next_session(tmp_path: Path) -> None:
    for _ in range(2):
        async with bench(tmp_path, dying_modes=["default"]) as it:
            comparison = await it.comparison()
            n_tries = sum("prepare default" in line for line in it.log())
    assert n_tries == 2
    assert "ended during" in comparison.baselines[1].reason  # type: ignore[union-attr]


async def test_a_mode_without_memory_beside_others_is_prepared_again_alone(tmp_path: Path) -> None:
    slow = {"default": 0.6, "reduce-overhead": 0.1}
    async with bench(tmp_path, crowded_modes=["reduce-overhead"], slow_modes=slow, baselines=ALL[:3]) as it:
        comparison = await it.comparison()
        lines = [line.split(maxsplit=1)[1] for line in it.log()]
    assert isinstance(comparison.baselines[2], TimedBaseline)
    first, again = (at for at, line in enumerate(lines) if line == "prepare reduce-overhead")
    assert lines.index("prepare default") < again
    assert lines[first:].index("compiling") < again - first
    assert lines[again:].count("compiling") == 10, "another mode was compiled beside it"


async def test_too_little_memory_is_not_remembered_between_sessions(tmp_path: Path) -> None:
    async with bench(tmp_path, crowded_modes=["default"], n_crowded=2) as it:
        missing = (await it.comparison()).baselines[1]
    async with bench(tmp_path, crowded_modes=["default"], n_crowded=2) as it:
        again = (await it.comparison()).baselines[1]
    assert isinstance(missing, MissingBaseline)
    assert (missing.is_final, "out of memory" in missing.reason) == (True, True)
    assert isinstance(again, TimedBaseline)


async def test_times_of_slower_modes_come_from_the_cache_in_the_next_session(tmp_path: Path) -> None:
    async with bench(tmp_path, baselines=ALL) as it:
        await it.comparison()
    (tmp_path / "log").unlink()
    async with bench(tmp_path, baselines=ALL) as it:
        comparison = await it.comparison()
        prepared = {line.split()[-1] for line in it.log() if " prepare " in line}
    assert prepared == {"eager", "max-autotune"}, "only the one to compare with is prepared again"
    earlier = comparison.baselines[1]
    assert isinstance(earlier, TimedBaseline)
    assert earlier.ratio is None, "what was not measured in turn has no claim"
    assert comparison.baselines[3].ratio is not None  # type: ignore[union-attr]


@pytest.mark.parametrize("content", [b"", b"{", b'{"format": 1}', b"\xff\xfe", b"[]"])
async def test_a_corrupt_cache_is_as_good_as_none(tmp_path: Path, content: bytes) -> None:
    async with bench(tmp_path) as it:
        await it.comparison()
    for kept in (tmp_path / "cache" / "baselines").iterdir():
        kept.write_bytes(content)
    async with bench(tmp_path) as it:
        comparison = await it.comparison()
    assert isinstance(comparison.baselines[1], TimedBaseline)


async def test_a_cache_that_cannot_be_written_costs_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    async with bench(tmp_path) as it:
        assert (await it.comparison()).baseline_name == "compile"


async def test_processes_of_slower_modes_end_once_all_are_timed(tmp_path: Path) -> None:
    async with bench(tmp_path, baselines=ALL) as it:
        await it.comparison()
        assert [worker.is_alive for worker in it.made] == [True, False, False, True]


async def test_all_processes_end_with_the_timer(tmp_path: Path) -> None:
    async with bench(tmp_path, slow_modes={"default": 60.0}) as it:
        await it.comparison(patience_s=0)
    assert not any(worker.is_alive for worker in it.made)


# --- what breaks


@pytest.mark.parametrize("fault", ["die_at_block", "crash_at_block"])
async def test_a_candidate_that_breaks_while_timed_is_an_outcome(tmp_path: Path, fault: str) -> None:
    async with bench(tmp_path, candidate={fault: 5}) as it:
        assert isinstance(await it.time(), CandidateBroke)


async def test_a_candidate_that_hangs_is_an_outcome_within_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernel_lsp.verify.timing.rounds.BLOCK_DEADLINE_S", 1.0)
    async with bench(tmp_path, candidate={"hang_at_block": 5}) as it:
        assert isinstance(await asyncio.wait_for(it.time(), GENEROUS_S), CandidateBroke)


async def test_a_baseline_that_breaks_while_timed_is_left_out(tmp_path: Path) -> None:
    async with bench(tmp_path, dies_timing=["default"]) as it:
        comparison = await it.comparison()
    assert comparison.baseline_name == "eager"
    assert isinstance(comparison.baselines[1], MissingBaseline)
    assert comparison.baselines[1].is_final


async def test_without_any_baseline_there_is_a_reason(tmp_path: Path) -> None:
    async with bench(tmp_path, failing_modes={"eager": "OutOfMemoryError: no"}, baselines=("eager",)) as it:
        outcome = await it.time()
    assert outcome == NotTimed("eager: OutOfMemoryError: no")


async def test_a_cancelled_timing_leaves_no_process(tmp_path: Path) -> None:
    async with bench(tmp_path, baselines=("eager",), plan=TimingPlan(min_rounds=10**6, max_rounds=10**6)) as it:
        timing = asyncio.create_task(it.time())
        await asyncio.sleep(1.0)
        timing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await timing
    assert not any(worker.is_alive for worker in it.made)


@pytest.mark.parametrize(
    ("report", "word"),
    [
        ({"changed_inputs": ["x"]}, "changed their inputs: x"),
        ({"overrun": ["out"]}, "outside of: out"),
        ({"n_checked": 24, "n_unequal": 3, "relative_difference": 0.5}, "3 of 24 timed calls"),
        ({"n_checked": 24, "n_unequal": 24, "relative_difference": float("inf")}, "24 of 24"),
        ({"n_checked": 24, "n_unequal": 3, "relative_difference": float("nan")}, "3 of 24"),
    ],
)
async def test_timed_calls_that_do_other_work_are_found(tmp_path: Path, report: dict[str, object], word: str) -> None:
    async with bench(tmp_path, candidate={"report": report}) as it:
        outcome = await it.time()
    assert isinstance(outcome, WrongWhileTimed)
    assert word in outcome.message


async def test_atomic_additions_in_another_order_are_no_fault(tmp_path: Path) -> None:
    report = {"n_checked": 24, "n_unequal": 20, "relative_difference": 1e-6}
    async with bench(tmp_path, candidate={"report": report}) as it:
        assert isinstance(await it.time(), Timed)


async def test_a_time_below_the_floor_is_an_error_and_no_win(tmp_path: Path) -> None:
    """4 MB cannot be read in 0.5 us."""
    async with bench(tmp_path, candidate={"times_us": {"ours": 0.5}}) as it:
        outcome = await it.time()
    assert isinstance(outcome, ImpossibleTime)
    assert "no correct kernel takes less than" in outcome.message


async def test_the_floor_is_in_the_comparison(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        floor = (await it.comparison()).floor
    assert floor is not None
    assert floor.time_us == pytest.approx(2 * 4 * (1 << 20) / 4.3e12 * 1e6)
    assert floor.impossible_below_us < floor.time_us


async def test_an_unknown_gpu_has_no_floor_and_says_so(tmp_path: Path) -> None:
    async with bench(tmp_path, gpu="Unheard-of 9000") as it:
        comparison = await it.comparison()
    assert comparison.floor is None
    assert comparison.notes == ("no speed of light (roofline bound): no figures are known for Unheard-of 9000",)


async def test_what_was_offered_before_is_not_prepared_again(tmp_path: Path) -> None:
    async with bench(tmp_path, baselines=("eager",)) as it:
        await it.timer.offer(operation("a", N_ELEMENTS))
        await it.comparison()
        assert sum(line.endswith("prepare eager") for line in it.log()) == 1


async def test_a_candidate_that_is_given_up_leaves_the_baseline_to_the_next(tmp_path: Path) -> None:
    """Its own worker is lost with it; PyTorch's is not."""
    async with bench(tmp_path, baselines=("eager",)) as it:
        offering = asyncio.create_task(it.timer.offer(operation("a", N_ELEMENTS)))
        await asyncio.sleep(0.01)
        offering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await offering
        assert isinstance(await it.time(), Timed)


async def test_a_peer_has_a_time_and_a_ratio_and_is_never_the_best_of_pytorch(tmp_path: Path) -> None:
    place = "/lib/peers.py::liger_relu"
    times_us = {**TIMES_US, f"peer:{place}": 30.0}
    async with bench(tmp_path, baselines=ALL, peers=(place,), times_us=times_us) as it:
        comparison = await it.comparison()
    peer = comparison.baselines[-1]
    assert isinstance(peer, TimedBaseline)
    assert (peer.name, peer.ratio and peer.ratio.claim) == ("liger_relu", "slower")
    assert comparison.baseline_name in ALL


async def test_a_ranked_candidate_takes_few_rounds_beside_one_baseline_that_has_a_time(tmp_path: Path) -> None:
    async with bench(tmp_path, baselines=ALL) as it:
        ranked = replace(operation("a", N_ELEMENTS), is_ranking=True)
        full = await it.timer.time_operation(it.worker, ranked, patience_s=PATIENCE_S)
        short = await it.timer.time_operation(it.worker, ranked)
        assert not any("ours-again" in line for line in it.log()), "a ranking claims nothing"
    assert isinstance(full, Timed)
    assert isinstance(short, Timed)
    assert short.comparison.ours.n_samples * 2 <= full.comparison.ours.n_samples
    timed = [found for found in short.comparison.baselines if isinstance(found, TimedBaseline)]
    assert [found.name for found in timed if found.ratio is not None] == ["compile max-autotune"]
    assert [found.name for found in timed] == list(ALL)


async def test_the_first_candidate_is_ranked_beside_eager_while_modes_are_compiled(tmp_path: Path) -> None:
    async with bench(tmp_path, slow_modes={"default": 1.0}) as it:
        ranked = replace(operation("a", N_ELEMENTS), is_ranking=True)
        first = await it.timer.time_operation(it.worker, ranked)
        full = await it.comparison()
        last = await it.timer.time_operation(it.worker, ranked)
    assert isinstance(first, Timed)
    assert isinstance(last, Timed)
    assert first.comparison.baseline_name == "eager"
    assert first.comparison.ours.n_samples * 2 <= full.ours.n_samples
    assert [type(each) for each in full.baselines] == [TimedBaseline, TimedBaseline]
    assert last.comparison.baseline_name == "compile"


async def test_a_call_of_milliseconds_is_a_block_of_its_own_and_still_gives_a_claim(tmp_path: Path) -> None:
    times_us = {"ours": 20_000.0, "eager": 30_000.0}
    async with bench(tmp_path, baselines=ALL[:1], times_us=times_us, spread=0.002) as it:
        comparison = await it.comparison()
        ranked = replace(operation("b", N_ELEMENTS), is_ranking=True)
        short = await it.timer.time_operation(it.worker, ranked)
        n_warm = {int(line.split()[-1]) for line in it.log() if " start " in line}
    assert comparison.ours.n_samples <= 2 * TimingPlan().max_rounds
    assert comparison.ratio is not None
    assert comparison.ratio.claim == "faster"
    assert n_warm == {0, 1}, "a second warm sample says nothing more"
    assert isinstance(short, Timed)
    assert short.comparison.ours.n_samples == 2 * RANKING.max_rounds
