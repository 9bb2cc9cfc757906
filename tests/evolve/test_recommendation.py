"""The recommendation of a run: which times make it say to keep PyTorch, to measure first, or to apply."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.measurement import (
    Comparison,
    Estimate,
    EstimatedBaseline,
    Measurement,
    MissingBaseline,
    Ratio,
    TimedBaseline,
    TimeFloor,
)
from kernel_lsp.core.recommendation import Recommendation, recommend
from kernel_lsp.core.task import Task
from kernel_lsp.evolve.run.final_verification import SearchResult
from kernel_lsp.evolve.run.optimize import RunHandle
from kernel_lsp.evolve.run.request import OptimizeRequest

from .world import kernel, verdict_of

OURS_US = 40.0
WAITS = MissingBaseline(name="compile max-autotune", reason="being compiled", is_final=False)
FAILED = MissingBaseline(name="compile", reason="BackendCompilerFailed", is_final=True)
SHAPES: dict[str, Any] = {"shapes": {}, "dtypes": {}, "gpu": "NVIDIA H200", "date": "2026-11-23"}


def measured(time_us: float, **changes: Any) -> Measurement:
    about = {"n_samples": 9, "driver": "580", "torch_version": "2.13", "cache": "cold", **SHAPES, **changes}
    return Measurement(time_us=time_us, low_us=time_us, high_us=time_us, **about)


def estimate(time_us: float) -> Estimate:
    about = {"bound": "memory", "bytes_moved": 1, "n_operations": 1, "n_launches": 1, "method": "roofline", **SHAPES}
    return Estimate(time_us=time_us, low_us=time_us, high_us=time_us, **about)


def timed(name: str, factor: float, claim: str | None) -> TimedBaseline:
    ratio = Ratio.model_construct(value=factor, claim=claim) if claim is not None else None
    return TimedBaseline.model_construct(name=name, measurement=measured(factor * OURS_US), ratio=ratio)


def comparison(*baselines: Any, ours: Measurement | None = None) -> Comparison:
    best = min((each for each in baselines if each.kind == "timed"), key=lambda each: each.time_us)
    return Comparison.model_construct(
        baseline_name=best.name, baseline=best.measurement, ours=ours or measured(OURS_US), ratio=best.ratio,
        baselines=baselines, floor=None,
    )  # fmt: skip


def estimated(**factors: float) -> Comparison:
    found = [EstimatedBaseline(name=name, estimate=estimate(each * OURS_US)) for name, each in factors.items()]
    best = min(found, key=lambda each: each.time_us)
    return Comparison(baseline_name=best.name, baseline=best.estimate, ours=estimate(OURS_US), baselines=tuple(found))


EAGER, SLOWER = timed("eager", 2.0, "faster"), timed("compile", 0.84, "slower")
COMPILE = timed("compile", 1.3, "faster")
TABLE = [
    (comparison(EAGER, COMPILE), "apply", ""),
    (comparison(EAGER, SLOWER), "keep", "keep torch.compile: 0.84x"),
    (comparison(timed("eager", 0.7, "slower"), COMPILE), "keep", "keep eager: 0.7x"),
    (comparison(EAGER, timed("compile", 1.01, "no difference")), "keep", "keep torch.compile: 1.01x"),
    (comparison(timed("compile", 2.38, "no difference"), timed("compile max-autotune", 2.36, "faster")), "apply", ""),
    (comparison(EAGER, timed("compile", 0.8, None)), "keep", "keep torch.compile: 0.8x"),
    (comparison(EAGER, timed("compile", 1.4, None)), "measure", "measure first: 1.4x"),
    (comparison(EAGER), "measure", "measure first: 2x vs eager only"),
    (comparison(EAGER, WAITS), "measure", "measure first: 2x vs eager only"),
    (comparison(EAGER, COMPILE, WAITS), "measure", "measure first: 1.3x vs compile only"),
    (comparison(EAGER, SLOWER, WAITS), "keep", "keep torch.compile: 0.84x vs compile only"),
    (comparison(EAGER, FAILED), "apply", ""),
    (comparison(EAGER, COMPILE, ours=measured(OURS_US, resolution_us=50.0)), "measure", "measure first: 1.3x"),
    (estimated(eager=3.0, compile=2.0), "apply", ""),
    (estimated(eager=3.0, compile=1.04), "measure", "measure first: 1.04x"),
    (estimated(eager=3.0, compile=0.5), "keep", "keep torch.compile: 0.5x"),
    (estimated(eager=3.0), "measure", "measure first: 3x vs eager only"),
]


@pytest.mark.parametrize(("found", "action", "headline"), TABLE)
def test_times_decide_what_is_recommended(found: Comparison, action: str, headline: str) -> None:
    check(recommend({"f": found}), action, headline)


def test_the_least_favourable_operation_decides_and_is_named() -> None:
    found = recommend({"f": comparison(EAGER, COMPILE), "f_backward": comparison(EAGER, SLOWER)})
    check(found, "keep", "keep torch.compile: 0.84x")
    assert found is not None
    assert found.operation == "f_backward"


def test_advice_to_keep_pytorch_says_what_bounds_the_kernel() -> None:
    floor = TimeFloor(time_us=OURS_US / 1.6, impossible_below_us=1.0, basis="134 MB at 4.3 TB/s (measured)")
    kept = recommend({"f": comparison(EAGER, SLOWER).model_copy(update={"floor": floor})})
    assert kept is not None
    expected = (
        "slower than torch.compile, at 1.6 times the speed of light (roofline bound): 134 MB at 4.3 TB/s (measured)"
    )
    assert kept.why == expected
    applied = recommend({"f": comparison(EAGER, COMPILE).model_copy(update={"floor": floor})})
    assert applied is not None
    assert "speed of light" not in applied.why


def test_without_times_nothing_is_recommended() -> None:
    assert recommend({}) is None


def check(found: Recommendation | None, action: str, headline: str) -> None:
    """The recommendation, and that it says what would help wherever it is not the kernel."""
    assert found is not None
    assert (found.action, found.headline) == (action, headline)
    assert bool(found.remedy) == (action != "apply")
    assert Recommendation.model_validate_json(found.model_dump_json()) == found


@pytest.mark.parametrize(("found", "applies_anyway", "n_files"), [
    (comparison(EAGER, SLOWER), False, 0), (comparison(EAGER, SLOWER), True, 1), (comparison(EAGER, COMPILE), False, 1),
])  # fmt: skip
def test_a_kernel_that_is_not_recommended_is_written_on_demand_alone(
    found: Comparison, applies_anyway: bool, n_files: int, tmp_path: Path
) -> None:
    request = OptimizeRequest.model_construct(target="model.py::f")
    handle = RunHandle(request, Settings(), tmp_path, applies_anyway=applies_anyway)
    handle.write = lambda *_, **__: [tmp_path / "f.cu"]
    winner = Candidate(text=kernel(1), origin=Origin(proposer="generator", description=""))
    verdict = verdict_of(winner).model_copy(update={"times": {"f": found}})
    result = SearchResult(winner, verdict, "", 1, 1, 1)
    assert len(handle._write(Task.model_construct(name="f"), result, tmp_path)) == n_files


@pytest.mark.parametrize(
    ("times", "remedy"),
    [
        (comparison(EAGER, SLOWER), "`kernel-lsp profile KERNEL.cu` shows where its time goes"),
        (estimated(eager=2.0, compile=0.5), "measure on a GPU"),
    ],
)
def test_a_run_that_asked_models_is_not_told_to(times: Comparison, remedy: str) -> None:
    before, after = recommend({"f": times}), recommend({"f": times}, asked_models=True)
    assert before is not None
    assert after is not None
    assert "`--model`" in before.remedy
    assert after.remedy == remedy
    assert after.model_copy(update={"remedy": before.remedy}) == before
