"""An estimate that is under way when the settings change is not taken for one with the settings of now."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.engine.messages import EstimateTarget, Problem, Reply
from kernel_lsp.server.documents.documents import Documents
from kernel_lsp.server.documents.places import Notebooks
from kernel_lsp.server.jobs import job_results
from kernel_lsp.server.jobs.job_results import job_ended
from kernel_lsp.server.jobs.jobs import Job
from kernel_lsp.server.knowledge import Knowledge, NoEstimate
from kernel_lsp.server.settings import Trust

from .samples import SCALE, target_estimate

FILE = Path("/w/model.py")
URI = FILE.as_uri()
RAISED = Problem(kind="internal", message="it raises")


class World:
    """State that the end of a job reads, and the estimates that it starts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, trust: Trust) -> None:
        self.settings = Settings(target_gpu="H200")
        self.started: list[str] = []
        documents = Documents("utf-16")
        documents.open(URI, "python", 1, SCALE)
        self.server: Any = SimpleNamespace(
            documents=documents,
            knowledge=Knowledge(),
            notebooks=Notebooks(documents),
            settings_for=lambda _: self.settings,
            trust=trust,
            knowledge_changed=lambda _: None,
        )
        monkeypatch.setattr(job_results, "start_estimate", self._start)

    async def end(self, error: Problem | None = None) -> None:
        """The end of an estimate that began when the H200 was the GPU to estimate for."""
        request = EstimateTarget(id="1", directory=FILE.parent, target="model.py::scale")
        nobody: Any = None  # to tell of progress
        job = Job(request, "Estimate", URI, FILE.parent, nobody, nobody, symbol="scale", is_quiet=True)
        job.settings = Settings(target_gpu="H200")
        result = target_estimate(FILE).model_dump(mode="json") if error is None else None
        await job_ended(self.server, job, Reply(id="1", result=result, error=error))

    def _start(self, _server: object, _document: object, symbol: str, *, is_quiet: bool) -> str:
        assert is_quiet
        self.started.append(symbol)
        return "2"


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch, Trust(True))


async def test_with_the_same_settings_it_is_known(world: World) -> None:
    await world.end()
    assert world.server.knowledge.estimate(URI, "scale") is not None
    assert world.started == []


async def test_for_the_gpu_before_it_is_made_again(world: World) -> None:
    world.settings = Settings(target_gpu="A100")
    await world.end()
    assert world.server.knowledge.estimate(URI, "scale") is None
    assert world.started == ["scale"]


async def test_what_went_wrong_for_the_gpu_before_is_no_reason_now(world: World) -> None:
    world.settings = Settings(target_gpu="A100")
    await world.end(RAISED)
    assert world.server.knowledge._no_estimates == {}
    assert world.started == ["scale"]


async def test_with_the_same_settings_what_went_wrong_is_remembered(world: World) -> None:
    await world.end(RAISED)
    assert world.server.knowledge._no_estimates == {(URI, "scale"): NoEstimate("it raises", "")}
    assert world.started == []


async def test_what_to_do_is_remembered_with_what_went_wrong(world: World) -> None:
    await world.end(Problem(kind="user", message="no figures are known for it", next_step="did you mean L4?"))
    (why,) = world.server.knowledge._no_estimates.values()
    assert why.reason == "no figures are known for it. Next: did you mean L4?"


async def test_a_cancelled_one_is_not_made_again(world: World) -> None:
    world.settings = Settings(target_gpu="A100")
    await world.end(Problem(kind="cancelled", message="cancelled"))
    assert world.started == []


async def test_a_closed_document_s_is_not_made_again(world: World) -> None:
    world.settings = Settings(target_gpu="A100")
    world.server.documents.close(URI)
    await world.end()
    assert world.started == []


async def test_in_a_workspace_that_is_trusted_no_more_nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, Trust(False))
    world.settings = Settings(target_gpu="A100")
    await world.end()
    assert world.server.knowledge.estimate(URI, "scale") is None
    assert world.started == []
