"""A dim that the task holds is promised at its size alone."""

from __future__ import annotations

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import Graph, GraphOutput, Task, TensorType
from kernel_lsp.plan.parser import parse
from kernel_lsp.plan.renaming import fixed_dims, with_fixed_dims
from tests.verify.copies import TASK


def task_of(*shape: str) -> Task:
    type_ = TensorType(dtype=DType.F32, shape=shape)
    output = GraphOutput(name="out", node="x", type=type_)
    return TASK.model_copy(update={"forward": Graph(inputs=("x",), input_types=(type_,), nodes=(), outputs=(output,))})


def where(plan_shape: str, *shape: str, contract: str = "") -> list[str]:
    text = f"// kernel-lsp: 1\n// op: f(x: f32[{plan_shape}]) -> (out: f32[{plan_shape}])\n{contract}"
    plan = parse(f"{text}// launch: k<<<1, 32>>>(x, out)\n\n__global__ void k(const float* x, float* out) {{}}").plan
    assert plan is not None
    return [str(condition.expression) for condition in with_fixed_dims(plan, task_of(*shape)).forward.where]


@pytest.mark.parametrize(
    ("plan_shape", "shape", "expected"),
    [
        ("B, D", ("B", "320"), ["D == 320"]),
        ("B, D", ("4", "320"), ["B == 4", "D == 320"]),
        ("B, D", ("B", "D"), []),
        ("B, 320", ("B", "320"), []),
    ],
)
def test_what_the_task_holds_is_a_condition(plan_shape: str, shape: tuple[str, ...], expected: list[str]) -> None:
    assert where(plan_shape, *shape) == expected


def test_a_condition_that_is_there_is_not_said_twice() -> None:
    assert where("B, D", "B", "320", contract="// where: D == 320\n") == ["D == 320"]


def test_sizes_are_told() -> None:
    plan = parse("// kernel-lsp: 1\n// op: f(x: f32[B, D]) -> (out: f32[B, D])\n// fill: out = 0\n").plan
    assert plan is not None
    assert fixed_dims(plan.forward, task_of("B", "7").forward) == {"D": 7}
