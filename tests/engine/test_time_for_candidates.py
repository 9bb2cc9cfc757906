"""An editor's run without a GPU spends a bounded time on candidates, whose times are estimates."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.core.event import RunFinished
from kernel_lsp.engine import work
from kernel_lsp.engine.messages import Optimize

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
