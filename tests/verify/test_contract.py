"""A plan that is not the task's is told what differs, before anything is compiled."""

from __future__ import annotations

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import Graph, GraphOutput, Task, TaskTensor, TensorType
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.verify.model.resolved_kernel import check_contract

TYPE = TensorType(dtype=DType.F32, shape=("B", "D"))
TASK = Task(
    name="turn",
    target="model.py::turn",
    kind="function",
    source_file="model.py",
    source_line=1,
    symbols=(),
    arguments=tuple(TaskTensor(name=name, type=TYPE, role="input") for name in ("x", "cos_")),
    forward=Graph(
        inputs=("x", "cos_"),
        input_types=(TYPE, TYPE),
        nodes=(),
        outputs=(GraphOutput(name="out", node="x", type=TYPE),),
    ),
    reference_source="",
    configurations=(),
    torch_version="2",
)


def problems(signature: str) -> list[str]:
    plan = parse_or_raise(f"// kernel-lsp: 1\n// op: {signature}\n// launch: k<<<B, 32>>>(x, out)\n", "turn.cu")
    return [finding.message for finding in check_contract(plan, TASK, operation_names=("turn",))]


def test_a_plan_with_the_tasks_inputs_and_outputs_has_no_problem() -> None:
    assert problems("turn(x: f32[B, D], cos_: f32[B, D]) -> (out: f32[B, D])") == []


@pytest.mark.parametrize(
    ("signature", "said"),
    [
        ("other(x: f32[B, D]) -> (out: f32[B, D])", "the task needs `op: turn(...)`; the plan has other"),
        ("turn(x: f32[B, D], angle: f32[B, D]) -> (out: f32[B, D])", "turn: 'angle' is no input of the task: x, cos_"),
        ("turn(x: f16[B, D]) -> (out: f32[B, D])", "turn: 'x' is f16, and the task has f32"),
        ("turn(x: f32[B]) -> (out: f32[B, 8])", "turn: 'x' has 1 dims, and the task has 2: [B, D]"),
        ("turn(x: f32[B, D]) -> (out: f32[B, D], more: f32[B])", "turn: 2 results, and the task has 1: (out)"),
        ("turn(x: f32[B, D], cos_: float) -> (out: f32[B, D])", "turn: 'cos_' is a tensor, not a number"),
    ],
)
def test_what_differs_is_said(signature: str, said: str) -> None:
    assert problems(signature) == [said]
