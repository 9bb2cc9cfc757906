"""The ranking of recorded targets by share times headroom."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.core.recording import Speedup, rank_hot_spots
from kernel_lsp.source.recorded import read_recording, recording_file, write_recording
from tests.record.programs import recording_of

SEEN = {"inputs": ("x=f32[4]",)}


def check(speedups: dict[str, Speedup], *expected: tuple[str, float]) -> None:
    recording = recording_of(m__a={**SEEN, "share": 0.5}, m__b={**SEEN, "share": 0.3})
    spots = rank_hot_spots(recording, speedups)
    assert [(spot.target, spot.gain) for spot in spots] == [(name, pytest.approx(gain)) for name, gain in expected]


def test_without_a_speedup_the_share_is_the_most_that_can_be_saved() -> None:
    check({}, ("m.py::a", 0.5), ("m.py::b", 0.3))


def test_a_small_speedup_of_a_large_share_comes_after_a_large_one_of_a_small_share() -> None:
    twice, tenth = Speedup(ratio=10.0, kind="measured"), Speedup(ratio=1.25, kind="estimated")
    check({"m.py::a": tenth, "m.py::b": twice}, ("m.py::b", 0.27), ("m.py::a", 0.1))


def test_a_slower_kernel_saves_nothing() -> None:
    check({"m.py::a": Speedup(ratio=0.5, kind="measured")}, ("m.py::b", 0.3), ("m.py::a", 0.0))


def test_what_another_program_recorded_stays_with_its_source(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    write_recording(tmp_path, recording_of(model__Net={"inputs": ("x=f32[4]",)}, model__old={"inputs": ("x=f32[2]",)}))
    served = recording_of(model__Net={"inputs": ("x=f32[8]",), "share": 0.5}, model__new={"inputs": ("x=f32[1]",)})
    write_recording(tmp_path, served.model_copy(update={"command": ("python", "serve.py")}))
    found = read_recording(tmp_path)
    assert found is not None
    assert found.command == ("python", "serve.py")
    net, old, new = (found.targets[f"model.py::{name}"] for name in ("Net", "old", "new"))
    assert (net.share, net.source, new.source) == (0.5, None, None)
    assert [(each.inputs, each.source and each.source.command) for each in net.configurations] == [
        ("x=f32[8]", None),
        ("x=f32[4]", ("python", "train.py")),
    ]
    assert old.source is not None
    assert old.source.command == ("python", "train.py")


def test_a_program_that_is_recorded_again_replaces_its_own_entries_alone(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    write_recording(tmp_path, recording_of(model__gone={"inputs": ("x=f32[4]",)}, moved__f={"inputs": ("x=f32[4]",)}))
    served = recording_of(model__Net={"inputs": ("x=f32[8]",)}).model_copy(update={"command": ("python", "serve.py")})
    write_recording(tmp_path, served)
    write_recording(tmp_path, recording_of(model__Net={"inputs": ("x=f32[4]",)}))
    found = read_recording(tmp_path)
    assert found is not None
    assert found.targets.keys() == {"model.py::Net"}, "neither of a removed file"
    assert [each.inputs for each in found.targets["model.py::Net"].configurations] == ["x=f32[4]", "x=f32[8]"]


def test_the_most_frequent_configuration_comes_first_whichever_program_called(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    write_recording(tmp_path, recording_of(model__Net={"inputs": ("x=f32[8, 32, 64]",)}))
    once = recording_of(model__Net={"inputs": ("x=f32[4]",)}).targets["model.py::Net"]
    once = once.model_copy(update={"configurations": (once.configurations[0].model_copy(update={"n_calls": 1}),)})
    tests = recording_of().model_copy(update={"command": ("pytest",), "targets": {"model.py::Net": once}})
    write_recording(tmp_path, tests)
    found = read_recording(tmp_path)
    assert found is not None
    assert [each.inputs for each in found.targets["model.py::Net"].configurations] == ["x=f32[8, 32, 64]", "x=f32[4]"]
    assert rank_hot_spots(found, {})[0].inputs == "x=f32[4]", "of the program that its share and calls are of"


def test_an_invalid_recording_is_replaced(tmp_path: Path) -> None:
    recording_file(tmp_path).parent.mkdir()
    recording_file(tmp_path).write_text("{")
    write_recording(tmp_path, recording_of(model__Net={"inputs": ("x=f32[8]",)}))
    assert read_recording(tmp_path) is not None
