"""The task of a kernel whose target declares no inputs: of recorded ones, those that the plan was written for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kernel_lsp.core.task import TensorInput
from kernel_lsp.errors import UserError
from kernel_lsp.plan.parser import parse
from kernel_lsp.verify.session.check_kernel import find_planned_task

MODEL = "import torch\n\n\ndef scale(x):\n    return x * 2\n"
KERNEL = (
    "// kernel-lsp: 1\n// task: model.py::scale\n// op: scale(x: f32[B, T, D]) -> (out: f32[B, T, D])\n"
    "// launch: scale<<<B, 32>>>(x, out)\n__global__ void scale(const float* x, float* out) {}\n"
)


def workspace(folder: Path, *inputs: str, model: str = MODEL) -> Path:
    configurations = [
        {"inputs": each, "init": "", "mode": "", "grad": False, "n_calls": len(inputs) - place}
        for place, each in enumerate(inputs)
    ]
    target = {"share": 0.5, "forward_us": 1.0, "backward_us": 0.0, "n_calls": 9, "is_module": False}
    recorded = {
        "version": 1, "command": ["python", "run.py"], "date": "2026-01-01T00:00:00+00:00", "device": "cpu",
        "torch": "2.0", "seconds": 1.0, "n_steps": 9, "step_us": 2.0,
        "targets": {"model.py::scale": {**target, "configurations": configurations}},
    }  # fmt: skip
    (folder / ".kernel-lsp").mkdir()
    (folder / ".kernel-lsp" / "recorded.json").write_text(json.dumps(recorded), encoding="utf-8")
    (folder / "model.py").write_text(model, encoding="utf-8")
    (folder / "scale.cu").write_text(KERNEL, encoding="utf-8")
    return folder / "scale.cu"


def shapes_of(kernel: Path) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """Return the shape that the kernel is checked at, and those of the other configurations."""
    plan = parse(kernel.read_text(encoding="utf-8")).plan
    assert plan is not None
    source = find_planned_task(kernel, plan, None, kernel.parent)
    all_inputs = [source.inputs or (), *(each.inputs for each in source.configurations)]
    first, *others = [each.shape for inputs in all_inputs for each in inputs if isinstance(each, TensorInput)]
    return first, others


def test_the_most_frequent_inputs_that_fit_are_taken(tmp_path: Path) -> None:
    kernel = workspace(tmp_path, "x=f32[8, 64]", "x=f16[2, 8, 64]", "x=f32[2, 8, 64]", "x=f32[4, 8, 64]")
    assert shapes_of(kernel) == ((2, 8, 64), [(8, 64), (2, 8, 64), (4, 8, 64)])


def test_a_recording_of_another_program_is_named_as_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        shapes_of(workspace(tmp_path, "x=f32[8, 64]"))
    assert "recorded inputs of 'scale'" in refused.value.message
    assert "record the run" in (refused.value.next_step or "")


def test_inputs_that_the_text_declares_stay(tmp_path: Path) -> None:
    declared = MODEL.replace("def scale", "# kernel-lsp: x=f32[16, 64]\ndef scale")
    assert shapes_of(workspace(tmp_path, "x=f32[2, 8, 64]", model=declared))[0] == (16, 64)
