"""Check the words of a time: nothing is said that was not measured."""

from __future__ import annotations

import json
from typing import Any

from kernel_lsp.core.event import RunFinished
from kernel_lsp.core.measurement import (
    ClockSummary,
    Comparison,
    Estimate,
    Measurement,
    MissingBaseline,
    Ratio,
    TimedBaseline,
    TimeFloor,
)
from kernel_lsp.core.recommendation import detail_lines, headline, one_line


def measured(time_us: float, **changes: Any) -> Measurement:
    return Measurement(
        time_us=time_us,
        low_us=0.99 * time_us,
        high_us=1.01 * time_us,
        n_samples=96,
        gpu="NVIDIA H200",
        driver="580.0",
        torch_version="2.11.0",
        cache="cold",
        shapes={"x": (64, 256)},
        dtypes={"x": "f32"},
        date="2026-11-21",
        **changes,
    )


def timed(name: str, time_us: float, claim: str = "faster", **changes: Any) -> TimedBaseline:
    value = time_us / 40
    ratio = Ratio(
        value=value,
        low=value - 0.02,
        high=value + 0.02,
        noise_floor=0.015,
        claim=claim,
        n_rounds=12,
        **changes,  # type: ignore[arg-type]
    )
    return TimedBaseline(name=name, measurement=measured(time_us), ratio=ratio)


def comparison(*baselines: Any, ours: Measurement | None = None, **changes: Any) -> Comparison:
    best = min((b for b in baselines if b.kind == "timed"), key=lambda b: b.measurement.time_us)
    return Comparison(
        baseline_name=best.name,
        baseline=best.measurement,
        ours=ours or measured(40.0),
        ratio=best.ratio,
        baselines=baselines,
        **changes,
    )


def test_the_headline_has_eager_and_the_best_of_the_others() -> None:
    found = comparison(timed("eager", 108), timed("compile", 60), timed("compile max-autotune", 52))
    assert headline(found) == "2.7x vs eager, 1.3x vs compile max-autotune"


def test_a_small_difference_has_the_digits_it_needs() -> None:
    assert headline(comparison(timed("eager", 41.6))) == "1.04x vs eager"


def test_no_difference_is_never_a_factor() -> None:
    assert headline(comparison(timed("eager", 40.4, "no difference"))) == "no different from eager"


def test_a_noise_floor_that_decides_is_shown() -> None:
    found = timed("eager", 180, "no difference")
    assert found.ratio is not None
    unclear = found.ratio.model_copy(update={"value": 4.5, "low": 4.53, "high": 4.59, "noise_floor": 3.69})
    shown = headline(comparison(found.model_copy(update={"ratio": unclear})))
    assert shown == "no different from eager (4.5x, below the noise floor of 369.0%)"


def test_a_time_of_another_day_says_so() -> None:
    earlier = timed("compile", 60).model_copy(update={"ratio": None})
    assert headline(comparison(timed("eager", 108), earlier)) == "2.7x vs eager, 1.5x vs compile (of 2026-11-21)"
    assert any("no claim" in line for line in detail_lines(comparison(timed("eager", 108), earlier)))


def test_what_is_missing_has_its_reason() -> None:
    missing = MissingBaseline(name="compile", reason="being compiled", is_final=False)
    said = "compile: no time, being compiled; with baseline_wait_s = 60 a timing waits for it"
    assert said in detail_lines(comparison(timed("eager", 108), missing))


def test_a_failed_baseline_is_not_worth_waiting_for() -> None:
    missing = MissingBaseline(name="compile", reason="BackendCompilerFailed", is_final=True)
    assert "compile: no time, BackendCompilerFailed" in detail_lines(comparison(timed("eager", 108), missing))


def test_every_baseline_has_its_interval_and_claim() -> None:
    lines = detail_lines(comparison(timed("eager", 108), timed("compile", 38, "slower")))
    assert "eager 108 us [107, 109]: 2.7x [2.68, 2.72], faster (noise 1.5%, 12 rounds)" in lines
    assert any(line.startswith("compile 38 us") and "slower" in line for line in lines)


def test_warm_and_operator_times_are_told_apart() -> None:
    ours = measured(40.0, warm_us=31.0, operator_us=46.0)
    first = detail_lines(comparison(timed("eager", 108), ours=ours))[0]
    assert first == "device 40 us with a cold L2, 31 us with a warm one, 46 us per call from Python"


def test_a_time_under_the_resolution_says_nothing_and_says_that() -> None:
    ours = measured(0.9, resolution_us=1.3)
    assert "says nothing" in detail_lines(comparison(timed("eager", 108), ours=ours))[0]


def test_the_floor_and_its_basis_are_said() -> None:
    floor = TimeFloor(time_us=20.0, impossible_below_us=15.0, basis="86 MB at 4.3 TB/s (measured)")
    lines = detail_lines(comparison(timed("eager", 108), floor=floor))
    assert "speed of light (roofline bound) 20 us: 86 MB at 4.3 TB/s (measured); this takes 2 times that" in lines


def test_throttling_and_switches_are_said() -> None:
    clocks = ClockSummary(is_known=True, low_sm_mhz=1700, high_sm_mhz=1980, throttle_reasons=("software power cap",))
    ours = measured(40.0, tf32="off", cudnn_benchmark="on", clocks=clocks)
    state = detail_lines(comparison(timed("eager", 108, throttled_share=0.25), ours=ours))[-1]
    for word in ("TF32 off", "cuDNN benchmark on", "SM 1700 to 1980 MHz", "software power cap", "25% of the rounds"):
        assert word in state


def test_unknown_clocks_have_a_reason() -> None:
    ours = measured(40.0, clocks=ClockSummary(reason="NVML: no"))
    assert "clocks not known: NVML: no" in detail_lines(comparison(timed("eager", 108), ours=ours))[-1]


def test_an_estimate_has_a_headline_and_no_details() -> None:
    def estimate(time_us: float) -> Estimate:
        return Estimate(
            time_us=time_us, low_us=time_us, high_us=time_us, gpu="H200", bound="memory", bytes_moved=0,
            n_operations=0, n_launches=1, shapes={}, dtypes={}, date="2026-11-21", method="roofline",
        )  # fmt: skip

    found = Comparison(baseline_name="eager", baseline=estimate(30), ours=estimate(10))
    assert one_line(found).endswith(": 3x vs eager (estimated on H200, 2026-11-21, memory-bound)")
    assert detail_lines(found) == []


OLD_MEASUREMENT = {
    "kind": "measured", "time_us": 10.0, "low_us": 9.0, "high_us": 11.0, "n_samples": 60, "gpu": "NVIDIA H200",
    "driver": "580.0", "torch_version": "2.11.0", "cache": "cold", "shapes": {"x": [4]}, "dtypes": {"x": "f32"},
    "date": "2026-11-20",
}  # fmt: skip


def test_events_of_an_older_archive_are_still_read() -> None:
    event = {
        "kind": "run_finished", "run_id": "r", "candidate_id": "c", "reason": "", "n_proposed": 1, "n_built": 1,
        "n_correct": 1,
        "comparisons": {"f": {"baseline_name": "eager", "baseline": OLD_MEASUREMENT, "ours": OLD_MEASUREMENT}},
    }  # fmt: skip
    found = RunFinished.model_validate_json(json.dumps(event)).comparisons["f"]
    assert found.speedup == 1.0
    assert headline(found) == "1x vs eager"
    assert (
        one_line(found)
        == "10 us [9, 11] against eager 10 us [9, 11]: 1x vs eager (measured on NVIDIA H200, 2026-11-20)"
    )


def test_a_comparison_survives_the_archive() -> None:
    missing = MissingBaseline(name="compile", reason="no", is_final=True)
    found = comparison(timed("eager", 108), missing)
    assert Comparison.model_validate_json(found.model_dump_json()) == found
