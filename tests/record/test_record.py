"""`kernel-lsp record` on programs as users have them: what it notes, and that the programs notice nothing."""

from __future__ import annotations

import os
import signal
import sys
import time
import venv
from pathlib import Path

import pytest

from kernel_lsp.cli.record import main
from kernel_lsp.core.recording import Recording
from kernel_lsp.core.task import ConstantInput, Construction
from kernel_lsp.errors import EnvironmentProblem, TargetError
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.source.recorded import read_recording, write_recording
from tests.record.programs import (
    ALIKE,
    CONFIGURED,
    ENDLESS,
    INFER,
    INTERRUPTED,
    KEYWORDS,
    LAYOUTS,
    LITERALS,
    LONG,
    NESTED,
    NOTEBOOK,
    RAISES,
    TESTS,
    TRAIN,
    Ran,
    edit,
    finish,
    recording_of,
    run,
    start,
    workspace,
)

PYTHON = ("--", sys.executable)


def check_same(folder: Path, *arguments: str) -> Ran:
    """Run a program with and without the recorder: status and stdout must be the same."""
    plain = run(folder, *arguments, is_recorded=False)
    ran = run(folder, "--", *arguments)
    assert (ran.status, ran.stdout) == (plain.status, plain.stdout), ran.stderr
    return ran


def test_a_training_is_recorded_with_its_backward_and_computes_the_same_bits(tmp_path: Path) -> None:
    ran = check_same(workspace(tmp_path, train=TRAIN), sys.executable, "train.py")
    assert ran.configurations("model.py::RMSNorm") == [("x=f32[8, 16, 32]", 35), ("x=f32[3, 16, 32]", 5)]
    assert ran.configurations("model.py::Net")[0][0] == "tokens=i64[8, 16] in [0, 50)"
    assert ran.recording is not None
    norm = ran.recording.targets["model.py::RMSNorm"]
    assert (ran.recording.n_steps, norm.n_calls, norm.configurations[0].init) == (40, 40, "dim=32, eps=1e-05")
    assert norm.backward_us > 0
    assert 0 < ran.share("model.py::RMSNorm") < ran.share("model.py::Net") < 1


def test_a_script_of_functions_is_recorded_and_no_hook_is_left(tmp_path: Path) -> None:
    ran = check_same(workspace(tmp_path, infer=INFER), sys.executable, "infer.py")
    assert ran.configurations("infer.py::scale") == [("x=f32[4, 16], by=3.0", 20)]
    assert ran.configurations("infer.py::Gate") == [("x=f32[4, 16], gate=f32[4, 16]", 10)]
    assert ran.recording is not None
    assert ran.recording.targets["infer.py::scale"].configurations[0].layouts == {"x": "strides (1, 4)"}
    assert not ran.recording.targets["infer.py::Gate"].configurations[0].grad


def test_a_module_in_a_class_is_recorded(tmp_path: Path) -> None:
    ran = check_same(workspace(tmp_path, nested=NESTED), sys.executable, "nested.py")
    assert ran.recording is not None
    assert ran.configurations("nested.py::Net.Block") == [("x=f32[4, 8]", 3)]
    source = read_target("nested.py::Net.Block", tmp_path)
    assert (source.kind, source.init_arguments, source.inputs_are_recorded) == ("module", {"width": 8}, True)


def test_modules_of_a_dataclass_are_recorded_as_a_pragma_says_them(tmp_path: Path) -> None:
    ran = check_same(workspace(tmp_path, configured=CONFIGURED), sys.executable, "configured.py")
    assert ran.recording is not None
    configurations = ran.recording.targets["configured.py::Scale"].configurations
    assert [(each.init, each.n_calls) for each in configurations] == [
        ("config=Sizes(width=4)", 5),
        ("config=types.SimpleNamespace(width=4, norm=Norm(eps=0.5))", 4),
        ("config=Computing(width=4, norm=Norm())", 3),
        ("config=Config(width=4, norm=Norm(eps=0.001))", 2),
        ("", 2),  # what refers to itself, or has a long tuple
        ("config=Config(width=4, norm=Norm())", 1),
    ]
    source = read_target("configured.py::Scale", tmp_path)
    assert source.init_arguments == {"config": Construction(call="Sizes(width=4)")}
    assert {"config": Construction(call="Config(width=4, norm=Norm())")} in [
        each.init_arguments for each in source.configurations
    ]


def test_what_a_configuration_keeps_beside_its_fields_is_recorded_and_set(tmp_path: Path) -> None:
    """Those of transformers have the kind of attention so, which is chosen after they are made."""
    ran = check_same(workspace(tmp_path, keywords=KEYWORDS), sys.executable, "keywords.py")
    assert ran.recording is not None
    (found,) = ran.recording.targets["keywords.py::Attention"].configurations
    assert found.init == "config=Config(width=4, labels=3, _fast=True)"


def test_literals_and_classes_are_recorded_as_a_pragma_says_them(tmp_path: Path) -> None:
    ran = check_same(workspace(tmp_path, literals=LITERALS), sys.executable, "literals.py")
    assert ran.configurations("literals.py::resize") == [
        ("x=f32[1, 2, 4, 4], size=(8, 8), mode='bilinear'", 3),
        ("x=f32[1, 2, 4, 4], size=(2, 2)", 3),
    ]
    assert ran.recording is not None
    stack, small = ran.recording.targets["literals.py::Stack"].configurations
    norm = "functools.partial(torch.nn.LayerNorm, eps=0.001)"
    options = "options={'p': 0.5}, gate=plain, bias=False, skip=(1,), kind='b'"
    assert stack.init == f"widths=[4, 4], norm={norm}, act=torch.nn.ReLU, {options}"
    assert (stack.inputs, small.inputs) == ("x=f32[2, 4], scales=[2.0, 3]", "x=f32[2, 4], scales=[2.0]")
    assert (stack.opaque, small.opaque) == ((), ("gate",))
    source = read_target("literals.py::Stack", tmp_path)
    assert source.init_arguments is not None
    assert source.init_arguments["norm"] == Construction(call=norm)
    assert source.inputs is not None
    assert source.inputs[1] == ConstantInput(name="scales", literal="[2.0, 3]")


def test_calls_that_pass_without_a_description_are_counted(tmp_path: Path) -> None:
    ran = check_same(workspace(tmp_path, long=LONG), sys.executable, "long.py")
    assert ran.recording is not None
    counts = {key: target.n_calls for key, target in ran.recording.targets.items()}
    n_norms = counts["model.py::RMSNorm"]
    assert (counts["model.py::Net"], n_norms % 300) == (300, 0)
    assert counts["model.py::rms_norm"] == 3700 + n_norms
    shapes = dict(ran.configurations("model.py::rms_norm"))
    assert (shapes["x=f32[8, 4], weight=f32[4]"], shapes["x=f32[2, 4], weight=f32[4]"]) == (3000, 700)
    assert ran.recording.n_steps == 3700 + 300


def test_tensors_of_other_layouts_do_not_stop_the_program(tmp_path: Path) -> None:
    ran = check_same(workspace(tmp_path, layouts=LAYOUTS), sys.executable, "layouts.py")
    assert ran.stdout.splitlines()[-1] == "6.0"
    assert ran.configurations("layouts.py::Double") == [("x=f32[3, 3]", 201)]


def test_calls_of_one_shape_are_told_apart_however_many_there_are(tmp_path: Path) -> None:
    ran = run(workspace(tmp_path, alike=ALIKE), *PYTHON, "alike.py")
    assert sorted(ran.configurations("alike.py::clip")) == [
        ("x=f32[4, 8], low=-1.0", 900),
        ("x=f32[4, 8], low=0.0, high=2.0", 300),
        ("x=f64[4, 8], low=-1.0", 300),
        ("x=f64[4, 8], low=0.0, high=2.0", 100),
    ]
    assert ran.recording is not None
    norms = ran.recording.targets["alike.py::Norm"].configurations
    assert sorted((norm.init, norm.inputs, norm.n_calls) for norm in norms) == [
        ("eps=1e-05", "x=f32[4, 8]", 300),
        ("eps=1e-05", "x=f64[4, 8]", 100),
        ("eps=1e-06", "x=f32[4, 8]", 600),
        ("eps=1e-06", "x=f64[4, 8]", 200),
    ]


EXPORTED = """
import torch

def act(x):
    return x * torch.sigmoid(x)

class Net(torch.nn.Module):
    def forward(self, x):
        return act(x)

x = torch.randn(8, 4)
with torch.no_grad():
    for _ in range(1500):
        act(x)
sizes = ({0: torch.export.Dim("n", min=2, max=64)},)
print(torch.export.export(Net(), (x,), dynamic_shapes=sizes, strict=False).module()(torch.ones(3, 4)).shape)
"""


def test_a_capture_keeps_its_sizes_symbolic_in_a_function_seen_often(tmp_path: Path) -> None:
    ran = check_same(workspace(tmp_path, exported=EXPORTED), sys.executable, "exported.py")
    assert "torch.Size([3, 4])" in ran.stdout
    assert ran.configurations("exported.py::act") == [("x=f32[8, 4]", 1500)]


@pytest.mark.parametrize("definition", ["def late(x): return x + 1", "if True:\n    def late(x): return x + 1"])
def test_a_function_that_the_script_defines_after_its_first_step_is_recorded(tmp_path: Path, definition: str) -> None:
    text = (
        f"import torch\nfrom model import Scale\nx = torch.ones(4)\nscale = Scale()\nscale(x), scale(x)\n{definition}\n"
    )
    ran = run(workspace(tmp_path, late=text + "for _ in range(9):\n    late(scale(x))\n"), *PYTHON, "late.py")
    assert ran.configurations("late.py::late")[0][0] == "x=f32[4]"


def test_a_function_that_is_called_once_right_below_its_definition_is_recorded(tmp_path: Path) -> None:
    text = "import torch\n\ndef once(x):\n    return x + 1\n\nonce(torch.ones(4))\n"
    ran = run(workspace(tmp_path, once=text), *PYTHON, "once.py")
    assert ran.configurations("once.py::once") == [("x=f32[4]", 1)]


def test_a_package_that_is_installed_as_a_link_to_the_workspace_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    folder, installed = (
        workspace(tmp_path / "own", package="def scale(x):\n    return x * 2\n"),
        tmp_path / "site-packages",
    )
    installed.mkdir()
    (installed / "linked.py").symlink_to(folder / "package.py")
    text = f"import sys\nsys.path.insert(0, {str(installed)!r})\nimport torch, linked\nlinked.scale(torch.ones(3))\n"
    (folder / "script.py").write_text(text)
    ran = run(folder, *PYTHON, "script.py")
    assert ran.configurations("package.py::scale") == [("x=f32[3]", 1)]


def test_pytest_is_recorded_and_its_status_kept(tmp_path: Path) -> None:
    folder = workspace(tmp_path, test_model=TESTS)
    ran = run(folder, "--", sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_model.py")
    assert ran.status == 1
    assert ran.configurations("model.py::RMSNorm") == [("x=f32[4, 8]", 1), ("x=f32[2, 16]", 1)]
    assert ran.share("model.py::Scale") > 0.0, "called in the last step alone, which no other one ends"


def test_cells_of_a_notebook_are_recorded_by_the_modules_that_they_call(tmp_path: Path) -> None:
    ran = check_same(workspace(tmp_path), sys.executable, "-c", NOTEBOOK)
    assert ran.configurations("model.py::rms_norm") == [("x=f32[4, 8], weight=f32[8]", 5)]


def test_a_program_that_raises_keeps_its_status_and_what_was_recorded(tmp_path: Path) -> None:
    ran = check_same(workspace(tmp_path, raises=RAISES), sys.executable, "raises.py")
    assert "RuntimeError" in ran.stderr
    assert ran.status == 1
    assert ran.configurations("model.py::rms_norm") == [("x=f32[4, 8], weight=f32[8]", 1)], "not the call that raised"


@pytest.mark.parametrize("limit", [("--steps", "200"), ("--seconds", "2")])
def test_a_limit_ends_the_program_cleanly(tmp_path: Path, limit: tuple[str, str]) -> None:
    ran = run(workspace(tmp_path, endless=ENDLESS), *limit, *PYTHON, "endless.py")
    assert (ran.status, ran.stdout) == (0, "cleaned up\n"), ran.stderr
    assert "KeyboardInterrupt" not in ran.stderr
    assert ran.configurations("model.py::rms_norm")[0][0] == "x=f32[64, 64], weight=f32[64]"


def test_a_limit_that_meets_the_programs_end_prints_no_traceback(tmp_path: Path) -> None:
    ran = run(workspace(tmp_path, interrupted=INTERRUPTED), "--steps", "3", *PYTHON, "interrupted.py")
    assert ran.status == 0
    assert "Interrupt" not in ran.stderr
    assert ran.configurations("model.py::rms_norm")[0][0] == "x=f32[4, 8], weight=f32[8]"


def test_an_interrupt_keeps_what_was_recorded(tmp_path: Path) -> None:
    process = start(workspace(tmp_path, endless=ENDLESS), *PYTHON, "endless.py")
    while not (tmp_path / "called").exists():
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    ran = finish(process, tmp_path)
    assert (ran.status, ran.stdout) == (130, "cleaned up\n"), ran.stderr
    assert ran.configurations("model.py::rms_norm")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PYTHON, "-c", "import sys; sys.exit(7)"], "the program never imported torch"),
        ([*PYTHON, "-I", "-c", "import sys; sys.exit(7)"], "-I, -E and -S keep the recorder out"),
        ([*PYTHON, "-c", "import sys, torch; sys.exit(7)"], "no function or module of the workspace was called"),
    ],
)
def test_a_program_without_calls_gets_a_clear_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    ran = run(workspace(tmp_path), *arguments)
    assert (ran.status, ran.recording) == (7, None)
    assert message in ran.stderr


def test_an_interpreter_without_torch_gets_a_clear_line(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    ran = run(workspace(tmp_path), "--", python, "-c", "import torch")
    assert ran.status == 1
    assert f"nothing recorded: torch is not installed for {python}" in ran.stderr


def test_a_program_that_does_not_exist_gets_a_clear_line(tmp_path: Path) -> None:
    ran = run(workspace(tmp_path), "--", "./train.py")
    assert ran.status == 2
    assert "next: start it with an interpreter: python ./train.py" in ran.stderr


# --- below: the file


@pytest.mark.parametrize("changes", [{"share": 2}, {"n_calls": -1}, {"other": 1}, {"configurations": [{}] * 99}])
def test_an_invalid_recording_names_file_line_and_next_step(tmp_path: Path, changes: dict[str, object]) -> None:
    file = write_recording(tmp_path, recording_of(model__RMSNorm={"inputs": ("x=f32[4, 8]",)}))
    edit(file, **changes)
    with pytest.raises(TargetError) as raised:
        read_recording(tmp_path)
    assert raised.value.file == str(file)
    assert (raised.value.line or 0) > 10
    assert "kernel-lsp record" in raised.value.next_step


def test_a_workspace_that_cannot_be_written_is_named_before_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    program = [sys.executable, "-c", "open('ran', 'w')"]
    monkeypatch.setattr("os.access", lambda *_: False)  # as for a read-only disk: root may write everywhere
    assert main(program, None, None, show=False, as_json=False) == 2
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".kernel-lsp").touch()
    assert main(program, None, None, show=False, as_json=False) == 2
    said = capsys.readouterr().err
    assert said.count("the recording cannot be written") == said.count("make it writable") == 2
    assert not (tmp_path / "ran").exists()
    nothing = Recording(
        version=1, command=(), date="", device="cpu", torch="2", seconds=0, n_steps=0, step_us=0, targets={}
    )
    with pytest.raises(EnvironmentProblem, match="cannot be written"):
        write_recording(tmp_path, nothing)


STRUCTURED = """
import torch
from torch import nn


def turned(x, rotary, window, cache):
    return x * rotary[0] + rotary[1] if cache is None else x


class Net(nn.Module):
    def __init__(self, sizes, kind, labels, width=4):
        super().__init__()

    def forward(self, x, rotary, ids):
        return turned(x, rotary, (4, 0), None) + ids[0]


net = Net((4, 8), None, {0: "no", 1: "yes"})  # as configurations of transformers have
for _ in range(6):
    x, ids = torch.ones(2, 4), [torch.arange(4), 1]
    net(x, (x, x), ids)
    net(x, (x, x[:1]), ids)
"""


def test_tuples_lists_and_none_are_recorded_as_a_pragma_says_them(tmp_path: Path) -> None:
    ran = check_same(workspace(tmp_path, structured=STRUCTURED), sys.executable, "structured.py")
    whole = "x=f32[2, 4], rotary=(f32[2, 4], f32[2, 4]), window=(4, 0), cache=None"
    part = "x=f32[2, 4], rotary=(f32[2, 4], f32[1, 4]), window=(4, 0), cache=None"
    assert sorted(ran.configurations("structured.py::turned")) == sorted([(whole, 6), (part, 6)])
    source = read_target("structured.py::Net", tmp_path)
    assert source.init_arguments == {
        "sizes": Construction(call="(4, 8)"),
        "kind": Construction(call="None"),
        "labels": Construction(call="{0: 'no', 1: 'yes'}"),
        "width": 4,
    }
    assert [each.literal for each in source.inputs or () if isinstance(each, ConstantInput)] == [
        "(rotary_0, rotary_1)",
        "[ids_0, 1]",
    ]
    ids = [each.tensors[0] for each in source.inputs or () if isinstance(each, ConstantInput)][1]
    assert ids.integer_range == (0, 4)
