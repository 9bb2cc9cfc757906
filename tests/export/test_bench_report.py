"""A benchmark's page and table: estimates are called so, claims count beside ratios, nothing loads."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kernel_lsp.cli.bench import _outcome
from kernel_lsp.core.benchmark import BenchEntry, BenchReport, bench_report, bench_time, speedups
from kernel_lsp.core.measurement import (
    Comparison,
    Estimate,
    Measurement,
    MissingBaseline,
    Ratio,
    TimedBaseline,
    TimeFloor,
)
from kernel_lsp.core.recommendation import Recommendation
from kernel_lsp.export.bench_page import BEGIN, END, markdown, render_bench_page, write_docs

FLOOR = TimeFloor(time_us=5.0, impossible_below_us=4.0, basis="bytes")
SHARED: dict[str, Any] = {"gpu": "H200", "shapes": {}, "dtypes": {}, "date": "2026-01-01"}


def measured(time_us: float) -> Measurement:
    facts = {"n_samples": 9, "driver": "d", "torch_version": "2", "cache": "cold"}
    return Measurement(time_us=time_us, low_us=time_us, high_us=time_us, **facts, **SHARED)


def baseline(name: str, time_us: float, claim: Any) -> TimedBaseline:
    noise_floor = 0.02 if name == "compile" else 0.6
    ratio = Ratio(value=time_us / 10, low=1, high=2, noise_floor=noise_floor, claim=claim, n_rounds=9)
    return TimedBaseline(name=name, measurement=measured(time_us), ratio=ratio)


def entry(target: str, comparison: Comparison) -> BenchEntry:
    times = (bench_time("f", comparison),)
    claimed = speedups(times, by_claim=True)
    values = {"speedups": speedups(times), "claimed": claimed, "elapsed_s": 3.0, "first_kernel_s": 2.0}
    return BenchEntry(target=target, status="verified", detail="", times=times, **values)


def on_a_gpu() -> BenchReport:
    found = (
        baseline("eager", 20, "faster"), baseline("compile", 10.1, "no difference"), baseline("liger_f", 9, "slower")
    )  # fmt: skip
    ours = measured(10.0)
    return bench_report([entry("<norm>", Comparison(
        baseline_name="compile", baseline=found[1].measurement, ours=ours, ratio=found[1].ratio, baselines=found,
        floor=FLOOR))])  # fmt: skip


def estimated() -> BenchReport:
    facts: dict[str, Any] = {"bound": "memory", "bytes_moved": 1, "n_operations": 1, "n_launches": 1, "method": "m"}
    ours, eager = (Estimate(time_us=t, low_us=t, high_us=t, **facts, **SHARED) for t in (10.0, 20.0))
    return bench_report([entry("norm", Comparison(baseline_name="eager", baseline=eager, ours=ours, floor=FLOOR))])


def test_no_difference_counts_as_one_beside_the_plain_ratio() -> None:
    scores = {score.baseline: score for score in on_a_gpu().scores}
    assert (scores["compile"].geomean, scores["compile"].geomean_claimed) == (1.01, 1.0)
    assert scores["best"].geomean_claimed == 1.0
    assert scores["peers"].geomean == 0.9
    text = markdown(on_a_gpu())
    assert "against best (measured, 1 of 1 compared, 1 at least as fast)" in text
    assert "against peers (measured, 1 of 1 compared, 0 at least as fast)" in text


def test_a_row_has_the_interval_every_group_the_claim_its_noise_and_the_share() -> None:
    text = markdown(on_a_gpu())
    assert "| 10 to 10 | 2.00x | 1.01x | 0.90x | no difference | 2.0% | 50% | 2 | 3 |  | measured on H200 |" in text


def test_estimates_are_called_so_in_every_table() -> None:
    assert "All times are estimated" in markdown(estimated())
    page = render_bench_page(estimated())
    assert page.count("(estimated)") >= 4
    assert "All times are estimated" in page


def test_the_page_has_every_plot_escapes_names_and_loads_nothing() -> None:
    page = render_bench_page(on_a_gpu())
    assert page.count("<polyline") == 5
    assert "<norm>" not in page.replace("\\u003cnorm>", "")
    assert not re.search(r"(src|href)=|https?://", page)


def test_docs_keep_what_is_around_the_marks(tmp_path: Path) -> None:
    page = tmp_path / "benchmark.md"
    page.write_text(f"# Mine\n\n{BEGIN}\nold\n{END}\nbelow\n")
    write_docs(page, estimated())
    text = page.read_text()
    assert text.startswith("# Mine\n")
    assert text.endswith(f"{END}\nbelow\n")
    assert "old" not in text
    write_docs(page, estimated())
    assert page.read_text() == text


def test_a_row_says_that_its_search_was_cut_short_and_how_long_it_took() -> None:
    (whole,) = on_a_gpu().entries
    text = markdown(bench_report([whole.model_copy(update={"cut_short": "time limit for candidates (55 s)"})]))
    assert "| verified, cut short |" in text
    assert "- <norm>: cut short: time limit for candidates (55 s)" in text
    assert "first correct kernel with a time: 2.0 in the median, 2.0 at most" in text
    failed = whole.model_copy(update={"status": "failed", "detail": "time limit of 9 s", "times": ()})
    page = render_bench_page(bench_report([failed]))
    assert "<li>&lt;norm&gt;: time limit of 9 s</li>" in page
    assert "to its result: 3.0 in the median" in text
    stages = [{"search": 4.0, "full check": 1.0}, {"search": 8.0, "full check": 3.0}, {"search": 16.0}]
    timed = markdown(bench_report([whole.model_copy(update={"stages_s": each}) for each in stages]))
    assert "- seconds of a search: 8.0 in the median, 16.0 at most" in timed
    assert "- seconds of a full check: 2.0 in the median, 3.0 at most" in timed


def test_a_claim_names_the_modes_that_it_lacks() -> None:
    (whole,) = on_a_gpu().entries
    (time,) = whole.times
    assert time.comparison is not None
    late = (MissingBaseline(name="compile max-autotune", reason="being compiled", is_final=False),)
    failed = (MissingBaseline(name="compile reduce-overhead", reason="an error of PyTorch", is_final=True),)
    comparison = time.comparison.model_copy(update={"baselines": (*time.comparison.baselines, *late, *failed)})
    rest = whole.model_copy(update={"times": (time.model_copy(update={"comparison": comparison}),)})
    text = markdown(bench_report([rest, whole]))
    assert "| no difference; no time of compile max-autotune |" in text
    scores = [line for line in text.splitlines() if line.startswith("- against ")]
    partial = [line.split()[2] for line in scores if "1 without a time of every mode of torch.compile" in line]
    assert partial == ["compile", "best"]


def test_progress_says_what_a_speedup_is_against() -> None:
    (whole,) = on_a_gpu().entries
    assert "x vs PyTorch, " in _outcome(whole)
    advice = Recommendation(
        action="measure",
        ratio=2.0,
        against="eager",
        kind="measured",
        why="no time of torch.compile",
        remedy="",
        is_complete=False,
    )
    assert "x vs eager only, " in _outcome(whole.model_copy(update={"recommendation": advice}))
