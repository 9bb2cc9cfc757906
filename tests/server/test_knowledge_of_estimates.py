"""Check which estimates hold, and which are made anew when settings change. Without an engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.server import handlers
from kernel_lsp.server.analysis.analysis_client import Known
from kernel_lsp.server.analysis.analysis_worker import analyse
from kernel_lsp.server.documents.documents import Documents
from kernel_lsp.server.handlers import renew_estimates
from kernel_lsp.server.knowledge import Knowledge, KnownEstimate, NoEstimate
from kernel_lsp.server.settings import Trust, are_alike

from .samples import SCALE, run_of_scale, target_estimate

FILE = Path("/w/model.py")
URI = FILE.as_uri()
H200, A100 = Settings(target_gpu="H200"), Settings(target_gpu="A100 80GB")


class World:
    """A server with one estimated target; `now` are the settings that hold."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: Settings, trust: bool = True) -> None:
        documents = Documents("utf-16")
        documents.open(URI, "python", 1, SCALE)
        self.knowledge = Knowledge()
        self.knowledge.learn_estimate(URI, "scale", KnownEstimate(target_estimate(FILE), "d", 0, H200))
        self.started: list[str] = []
        monkeypatch.setattr(handlers, "start_estimate", lambda *about, is_quiet: self.started.append(about[2]))
        server: Any = SimpleNamespace(
            documents=documents,
            knowledge=self.knowledge,
            settings_for=lambda _: now,
            trust=Trust(trust),
            analyses=SimpleNamespace(latest=lambda _: Known(analyse("python", str(FILE), SCALE))),
        )
        renew_estimates(server)

    @property
    def is_known(self) -> bool:
        return self.knowledge.estimate(URI, "scale") is not None


def test_for_another_gpu_it_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, A100)
    assert (world.is_known, world.started) == (False, ["scale"])


@pytest.mark.parametrize("change", [{"inlay_hints": True}, {"generations": 9}, {"device": "cpu"}])
def test_what_it_does_not_depend_on_leaves_it(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    world = World(monkeypatch, H200.model_copy(update=change))
    assert (world.is_known, world.started) == (True, [])


def test_nothing_starts_where_that_may_not_be(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, A100, trust=False)
    assert (world.is_known, world.started) == (False, [])


def test_nothing_starts_for_who_wants_no_estimates(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, A100.model_copy(update={"estimate_on_hover": False}))
    assert (world.is_known, world.started) == (False, [])


@pytest.mark.parametrize("change", [{"python": Path("/p")}, {"capture_deadline_s": 1.0}, {"sandbox": "off"}])
def test_what_may_decide_whether_there_is_one_counts(change: dict[str, Any]) -> None:
    assert not are_alike(H200, H200.model_copy(update=change))


def test_an_estimate_ends_what_was_said_of_there_being_none() -> None:
    knowledge = Knowledge()
    knowledge.learn_no_estimate(URI, "scale", NoEstimate("no such GPU", "d", A100))
    knowledge.learn_estimate(URI, "scale", KnownEstimate(target_estimate(FILE), "d", 0, H200))
    assert knowledge.settings_of_estimates() == ((URI, "scale", H200),)


def test_a_reason_for_none_is_forgotten_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    knowledge = Knowledge()
    knowledge.learn_no_estimate(URI, "scale", NoEstimate("no such GPU", "d", A100))
    knowledge.forget_estimate(URI, "scale")
    assert knowledge.settings_of_estimates() == ()


def test_a_run_is_found_through_a_link_to_its_folder(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    knowledge = Knowledge()
    knowledge.learn_runs(tmp_path, (run_of_scale(tmp_path / "real" / "model.py"),))
    for name in ("real", "link"):
        assert knowledge.last_result(tmp_path / name / "model.py", "scale") is not None
    assert knowledge.last_result(tmp_path / "other" / "model.py", "scale") is None
    assert knowledge.last_result(None, "scale") is None
