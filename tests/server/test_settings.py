"""Settings, trust and progress without a process."""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.core.event import (
    CandidateEvaluated,
    Event,
    GenerationStarted,
    ModelCalled,
    NewBest,
    RunStarted,
    TaskCaptured,
)
from kernel_lsp.engine.messages import JobQueued, JobStarted
from kernel_lsp.errors import SettingError
from kernel_lsp.server.jobs.progress import Tracker
from kernel_lsp.server.settings import EditorSettings, Trust, overrides_of


def test_the_editor_s_names_are_camel_case() -> None:
    assert overrides_of({"targetGpu": "A100", "checkOnSave": False}) == {"target_gpu": "A100", "check_on_save": False}


def test_what_is_no_setting_of_ours_is_left_alone() -> None:
    assert overrides_of({"trace": {"server": "verbose"}, "device": None}) == {}


def test_the_editor_s_values_are_on_top(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kernel-lsp]\ntarget-gpu = 'L4'\ngenerations = 7\n")
    settings = EditorSettings({"targetGpu": "A100"}).of(tmp_path)
    assert (settings.target_gpu, settings.generations) == ("A100", 7)


def test_the_innermost_folder_s_values_hold(tmp_path: Path) -> None:
    settings = EditorSettings({"generations": 1})
    settings.set_for(tmp_path, {"generations": 2})
    settings.set_for(tmp_path / "inner", {"generations": 3})
    assert settings.of(tmp_path / "inner" / "deep").generations == 3
    assert settings.of(tmp_path / "other").generations == 2
    settings.forget(tmp_path / "inner")
    assert settings.of(tmp_path / "inner" / "deep").generations == 2


def test_new_values_hold_at_once(tmp_path: Path) -> None:
    settings = EditorSettings({"generations": 1})
    assert settings.of(tmp_path).generations == 1
    settings.set_everywhere({"generations": 5})
    assert settings.of(tmp_path).generations == 5


def test_a_pyproject_that_says_something_else_is_told(tmp_path: Path) -> None:
    told: list[str] = []
    path = tmp_path / "pyproject.toml"
    path.write_text("[tool.kernel-lsp]\ntarget-gpu = 'L4'\n")
    settings = EditorSettings({}, lambda: told.append("changed"))
    assert settings.of(tmp_path).target_gpu == "L4"
    assert not told
    path.write_text("[tool.kernel-lsp]\ntarget-gpu = 'A100'\n")
    os.utime(path, (1, 1))
    assert settings.of(tmp_path).target_gpu == "A100"
    assert told == ["changed"]


def test_a_pyproject_that_is_only_written_again_is_not(tmp_path: Path) -> None:
    told: list[str] = []
    path = tmp_path / "pyproject.toml"
    path.write_text("[tool.kernel-lsp]\ntarget-gpu = 'L4'\n")
    settings = EditorSettings({}, lambda: told.append("changed"))
    settings.of(tmp_path)
    os.utime(path, (1, 1))
    settings.of(tmp_path)
    assert not told


def test_a_wrong_value_names_the_editor(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as refused:
        EditorSettings({"generations": "many"}).of(tmp_path)
    assert "the editor's settings (kernelLsp.*)" in str(refused.value)


class InHand:
    """Hold, for a task that asks for settings, something such as a document."""


def ask_in_vain(settings: EditorSettings, directory: Path) -> weakref.ref[InHand]:
    in_hand = InHand()
    with suppress(SettingError):
        settings.of(directory)
    return weakref.ref(in_hand)


def test_nothing_of_who_asks_is_kept_with_a_wrong_value(tmp_path: Path) -> None:
    settings = EditorSettings({"generations": "many"})
    assert [ask_in_vain(settings, tmp_path)() for _ in range(3)] == [None] * 3


def test_a_wrong_value_does_not_grow_with_how_often_it_was_asked_for(tmp_path: Path) -> None:
    settings = EditorSettings({"generations": "many"})
    depths = []
    for _ in range(5):
        with pytest.raises(SettingError) as refused:
            settings.of(tmp_path)
        depths.append(len(refused.traceback))
    assert depths == depths[:1] * 5
    assert all(read.error is not None and read.error.__traceback__ is None for read in settings._read.values())


@pytest.mark.parametrize(
    ("trust", "commands", "background"),
    [
        (Trust(True), True, True),
        (Trust(False), False, False),
        (Trust(None), True, False),
        (Trust(None, has_been_asked=True), True, True),
        (Trust(False, has_been_asked=True), False, False),
    ],
)
def test_trust_decides_what_may_run(trust: Trust, commands: bool, background: bool) -> None:
    assert (trust.allows_commands, trust.allows_background_work) == (commands, background)


# --- progress


def evaluated(depth: Any = "screen") -> CandidateEvaluated:
    return CandidateEvaluated(
        candidate_id="x", generation=0, depth=depth, outcome="correct", message="", score_us=1.0, score_kind="estimated"
    )


def check(events: list[Event | JobQueued | JobStarted], percentage: int, message: str) -> None:
    tracker = Tracker()
    for event in events:
        tracker.hear(event)
    assert (tracker.percentage, tracker.message) == (percentage, message)


STARTED = RunStarted(run_id="r", target="t", device="d", target_gpu="H200")
CAPTURED = TaskCaptured(name="f", summary="", n_nodes=1, n_nodes_backward=0, configurations=())
BEST = NewBest(candidate_id="x", score_us=6.5, score_kind="estimated")


def generation(number: int, n_proposals: int = 4) -> GenerationStarted:
    return GenerationStarted(generation=number, n_generations=2, n_proposals=n_proposals)


def test_a_waiting_job_says_for_how_many() -> None:
    check([JobQueued(n_before=2)], 0, "waits for 2 other jobs")


def test_a_capture_is_the_first_part() -> None:
    check([JobStarted(), STARTED, CAPTURED], 5, "captured f")


def test_the_search_counts_generations_and_candidates() -> None:
    check([generation(1), evaluated(), evaluated()], 68, "generation 2/2, 2/4, cost $0.00")


def test_the_best_so_far_is_named() -> None:
    check([generation(0), evaluated(), BEST], 15, "generation 1/2, 1/4, best 6.5 us (estimated), cost $0.00")


def test_what_the_models_cost_so_far_is_said() -> None:
    asked = ModelCalled(
        slot=0,
        purpose="propose",
        model="m",
        outcome="replied",
        n_prompt_tokens=1,
        n_reply_tokens=1,
        cost_usd=0.25,
        run_cost_usd=1.5,
        n_run_calls=6,
    )
    check([generation(0), asked], 5, "generation 1/2, 0/4, cost $1.50")


def test_the_full_check_is_the_last_part() -> None:
    check([generation(1), evaluated("full")], 99, "full check: correct, cost $0.00")


def test_the_percentage_never_falls() -> None:
    check([generation(1), evaluated(), generation(0)], 58, "generation 1/2, 0/4, cost $0.00")


def test_a_generation_without_proposals_divides_by_nothing() -> None:
    check([generation(0, 0), evaluated()], 47, "generation 1/2, 1/1, cost $0.00")


# --- settings that change


def with_pyproject(folder: Path, text: str) -> tuple[EditorSettings, list[str]]:
    told: list[str] = []
    (folder / "pyproject.toml").write_text(text)
    settings = EditorSettings({}, lambda: told.append("changed"))
    settings.latest(folder)
    return settings, told


def test_looking_finds_a_changed_file_of_any_folder_asked_for(tmp_path: Path) -> None:
    settings, told = with_pyproject(tmp_path, "[tool.kernel-lsp]\ntarget-gpu = 'L4'\n")
    (tmp_path / "inner").mkdir()
    settings.of(tmp_path / "inner")
    (tmp_path / "inner" / "pyproject.toml").write_text("[tool.kernel-lsp]\ntarget-gpu = 'T4'\n")
    settings.look()
    assert told == ["changed"]
    settings.look()
    assert told == ["changed"]


def test_a_file_that_is_gone_is_a_change_too(tmp_path: Path) -> None:
    settings, told = with_pyproject(tmp_path, "[tool.kernel-lsp]\ngenerations = 9\n")
    (tmp_path / "pyproject.toml").unlink()
    settings.look()
    assert told == ["changed"]
    assert settings.of(tmp_path).generations == Settings().generations


def test_while_a_file_is_half_written_what_held_before_holds(tmp_path: Path) -> None:
    settings, told = with_pyproject(tmp_path, "[tool.kernel-lsp]\ntarget-gpu = 'L4'\n")
    (tmp_path / "pyproject.toml").write_text("[tool.kernel-lsp]\ntarget-gpu = ")
    settings.look()
    assert not told
    assert settings.latest(tmp_path).target_gpu == "L4"
    with pytest.raises(SettingError):
        settings.of(tmp_path)


def test_new_values_of_the_client_are_a_change_when_they_say_something_else(tmp_path: Path) -> None:
    settings, told = with_pyproject(tmp_path, "")
    settings.set_everywhere({"generations": Settings().generations})
    settings.look()
    assert not told
    settings.set_everywhere({"generations": 99})
    settings.look()
    assert told == ["changed"]
