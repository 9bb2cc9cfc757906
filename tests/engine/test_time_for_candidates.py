"""An editor's run without a GPU spends a bounded time on candidates, whose times are estimates."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kernel_lsp.core.event import CandidateEvaluated, CandidateVerified, RunFinished
from kernel_lsp.engine import work
from kernel_lsp.engine.messages import EstimateTarget, Optimize
from kernel_lsp.engine.runner import AWAITED_NICENESS, NICENESS, Priority

MODEL = "import torch\n\n# kernel-lsp: x=f32[64, 128]\ndef scale(x: torch.Tensor):\n    return torch.relu(x) * 2.0\n"


async def test_a_run_on_the_executor_ends_with_its_best_candidate_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    monkeypatch.setattr(work, "ESTIMATED_S", 0.0)
    request = Optimize(id="1", directory=tmp_path, target="model.py::scale", settings={"device": "cpu"})
    told: list[object] = []

    async def ask(*_: object) -> str:
        raise AssertionError

    result = await work._run(request, work.handle_of(request), told.append, ask)
    (finished,) = [event for event in told if isinstance(event, RunFinished)]
    assert finished.stopped == "time limit for candidates (0 s)"
    assert result.files


@pytest.mark.parametrize("is_taken", [True, False])
async def test_a_verified_kernel_can_be_taken_while_the_search_goes_on(tmp_path: Path, *, is_taken: bool) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    settings: dict[str, object] = {"device": "cpu", "generations": 3, "proposals": 2, "early_stop": "off"}
    request = Optimize(id="1", directory=tmp_path, target="model.py::scale", settings=settings)
    handle, told, taken = work.handle_of(request), [], asyncio.Event()
    handle.taken = taken

    async def ask(*_: object) -> str:
        raise AssertionError

    def tell(event: object) -> None:
        told.append(event)
        if is_taken and isinstance(event, CandidateVerified):
            taken.set()

    result = await work._run(request, handle, tell, ask)
    (verified,) = [event for event in told if isinstance(event, CandidateVerified)]
    (finished,) = [event for event in told if isinstance(event, RunFinished)]
    after = [event for event in told[told.index(verified) :] if isinstance(event, CandidateEvaluated)]
    assert result.files
    assert verified.advice == (result.summary.recommendation.headline if result.summary.recommendation else "")
    if is_taken:
        assert finished.candidate_id == verified.candidate_id
        assert finished.stopped == "the verified kernel was taken"
        assert len(after) < 3, "at most what was under way, and its own full check from before"
    else:
        best = min(event.score_us for event in told if isinstance(event, CandidateEvaluated) and event.score_us)
        assert finished.n_proposed > 2, "the search went on"
        scores = {event.candidate_id: event.score_us for event in after if event.depth == "full"}
        assert scores[finished.candidate_id] <= best * 1.02


@pytest.mark.parametrize(
    ("awaited", "steps"), [(True, [AWAITED_NICENESS, NICENESS - AWAITED_NICENESS]), (False, [NICENESS])]
)
async def test_a_run_steps_back_once_its_kernel_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, awaited: bool, steps: list[int]
) -> None:
    taken: list[int] = []
    monkeypatch.setattr("kernel_lsp.engine.runner.step_back", taken.append)
    optimize = Optimize(id="1", directory=tmp_path, target="model.py::scale")
    estimate = EstimateTarget(id="1", directory=tmp_path, target="model.py::scale")
    priority = Priority()
    priority.begin(optimize if awaited else estimate)
    assert taken == steps[:1]
    priority.lower()
    priority.lower()
    assert taken == steps
