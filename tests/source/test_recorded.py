"""The inputs of a target that a recorded run tells."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.core.task import ScalarInput, TargetSource, TensorInput
from kernel_lsp.errors import TargetError
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.source.recorded import write_recording
from tests.record.programs import MODEL, recording_of, workspace

BIG, SMALL = "x=f32[8, 32], weight=f32[32]", "x=f32[3, 32], weight=f32[32]"


def read(folder: Path, symbol: str, *inputs: str, text: str = MODEL, init: str | None = None) -> TargetSource:
    """Read a target of a workspace that has a recording of it."""
    (workspace(folder) / "model.py").write_text(text)
    write_recording(folder, recording_of(**{f"model__{symbol}": {"inputs": inputs, "init": init}}))
    return read_target(f"model.py::{symbol}", folder)


def check(source: TargetSource, *shapes: tuple[int, ...]) -> None:
    """The first inputs' shapes, the target's own first."""
    every = [source.inputs or (), *(configuration.inputs for configuration in source.configurations)]
    assert [inputs[0].shape for inputs in every if isinstance(inputs[0], TensorInput)] == list(shapes)


def test_the_most_frequent_inputs_come_first_and_the_others_are_configurations(tmp_path: Path) -> None:
    check(read(tmp_path, "rms_norm", BIG, SMALL), (8, 32), (3, 32))


def test_a_pragma_comes_before_a_recording(tmp_path: Path) -> None:
    text = MODEL.replace("def rms_norm", "# kernel-lsp: x=f32[B=3, 32], weight=f32[32]\ndef rms_norm")
    check(read(tmp_path, "rms_norm", BIG, SMALL, text=text), (3, 32), (8, 32))


def test_a_module_is_constructed_as_in_the_recorded_run(tmp_path: Path) -> None:
    source = read(tmp_path, "RMSNorm", "x=f32[8, 32]", init="dim=32, eps=0.1")
    assert source.init_arguments == {"dim": 32, "eps": 0.1}


def test_a_constructor_of_another_file_or_of_defaults_alone_has_the_recorded_arguments(tmp_path: Path) -> None:
    """Recorded inputs belong to them: `class Linear(nn.Linear)` was constructed without any."""
    head = "import torch\nfrom torch import nn\n"
    forward = "    def forward(self, x):\n        return x\n"
    own = "    def __init__(self, d=64):\n        super().__init__()\n"
    for init, text in {
        "in_features=32, out_features=8": f"{head}class Mine(nn.Linear):\n{forward}",
        "d=32": f"{head}class Mine(nn.Module):\n{own}{forward}",
    }.items():
        source = read(tmp_path, "Mine", "x=f32[8, 32]", text=text, init=init)
        assert source.init_arguments == {name: int(value) for name, value in (p.split("=") for p in init.split(", "))}


def test_what_no_longer_fits_the_code_is_left_out(tmp_path: Path) -> None:
    check(read(tmp_path, "rms_norm", "y=f32[8, 32]", SMALL, "x=f32[", "x=f32[2, 2]"), (3, 32))


def test_a_recorded_call_that_no_pragma_states_says_which_argument_it_is(tmp_path: Path) -> None:
    """It said that the shapes were unknown, and to record the program, which had been done."""
    read(tmp_path, "rms_norm", BIG)
    recording = recording_of(model__rms_norm={"inputs": (BIG,)})
    target = recording.targets["model.py::rms_norm"]
    unstated = target.configurations[0].model_copy(update={"opaque": ("cache",)})
    targets = {"model.py::rms_norm": target.model_copy(update={"configurations": (unstated,)})}
    write_recording(tmp_path, recording.model_copy(update={"targets": targets}))
    with pytest.raises(TargetError, match="recorded, but a pragma cannot state 'cache'"):
        read_target("model.py::rms_norm", tmp_path)


def test_a_float_that_some_calls_give_is_an_argument_of_all(tmp_path: Path) -> None:
    text = "def clip(x, limit: float = 2.0, slope=0.5):\n    return x * limit + slope\n"
    source = read(tmp_path, "clip", "x=f32[8]", "x=f32[8], limit=3.0", "x=f32[8], limit=2.0", text=text)
    every = [source.inputs or (), *(configuration.inputs for configuration in source.configurations)]
    values = [{each.name: each.value for each in inputs if isinstance(each, ScalarInput)} for inputs in every]
    assert values == [{"limit": 2.0}, {"limit": 3.0}]
