"""fast_p, geometric means and speedups by group of baselines."""

from __future__ import annotations

from typing import Any

import pytest

from kernel_lsp.core.benchmark import BenchEntry, BenchTime, bench_report, speedups


def time(ours_us: float, **baselines_us: float) -> BenchTime:
    return BenchTime(operation="f", kind="measured", gpu="H200", ours_us=ours_us, baselines_us=baselines_us)


def entry(status: Any = "verified", **ratios: float) -> BenchEntry:
    found: dict[Any, float] = dict(ratios)
    times = (time(1.0, eager=1.0),) if ratios else ()
    return BenchEntry(target="t", status=status, detail="", times=times, speedups=found)


def test_speedups_are_of_all_operations_together() -> None:
    found = speedups([time(10, eager=20, compile=15), time(30, eager=100, compile=25)])
    assert found == {"eager": 3.0, "compile": 1.0, "best": (15 + 25) / 40}


def test_the_best_is_the_fastest_per_operation() -> None:
    found = speedups([time(10, eager=20, compile=30), time(10, eager=40, compile=20)])
    assert found["best"] == 2.0


def test_of_several_compile_modes_the_fastest_counts() -> None:
    times = BenchTime(
        operation="f",
        kind="measured",
        gpu="H200",
        ours_us=10,
        baselines_us={"eager": 50, "compile": 30, "compile max-autotune": 20},
    )
    assert speedups([times]) == {"eager": 5.0, "compile": 2.0, "best": 2.0}


def test_a_baseline_that_lacks_one_operation_has_no_speedup() -> None:
    assert speedups([time(10, eager=20, compile=15), time(30, eager=100)]).keys() == {"eager", "best"}
    assert speedups([]) == {}


def test_fast_p_is_of_all_tasks_and_the_mean_of_those_compared() -> None:
    report = bench_report([entry(eager=2.0), entry(eager=0.5), entry("none"), entry("refused")])
    (score,) = report.scores
    assert {fast.p: fast.share for fast in score.fast} == {
        0.0: 0.5, 0.5: 0.25, 0.8: 0.25, 1.0: 0.25, 1.2: 0.25, 1.5: 0.25, 2.0: 0.0, 5.0: 0.0,
    }  # fmt: skip
    assert score.geomean == pytest.approx(1.0)
    assert (score.n_tasks, score.n_compared) == (4, 2)


def test_what_is_not_verified_is_not_fast() -> None:
    report = bench_report([entry("none", eager=9.0)])
    assert report.scores == ()


def test_the_best_is_shown_beside_compile_alone() -> None:
    assert [s.baseline for s in bench_report([entry(eager=2.0, best=2.0)]).scores] == ["eager"]
    both = bench_report([entry(eager=2.0, compile=1.5, best=1.5)])
    assert [s.baseline for s in both.scores] == ["eager", "compile", "best"]


def test_estimates_and_measurements_are_told_apart() -> None:
    estimated = entry(eager=2.0)
    estimated = estimated.model_copy(update={"times": (time(1, eager=2).model_copy(update={"kind": "estimated"}),)})
    assert bench_report([entry(eager=2.0)]).kind == "measured"
    assert bench_report([estimated, entry("refused")]).kind == "estimated"
    assert bench_report([estimated, entry(eager=2.0)]).kind == "mixed"
    assert bench_report([entry("refused")]).kind == "none"
