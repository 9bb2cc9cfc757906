"""A plan may call an input what the target calls it."""

from __future__ import annotations

from kernel_lsp.plan.input_names import with_input_names
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.plan.printer import print_plan

PLAN = """\
// kernel-lsp: 1
// op: turn(x: f32[B, D], {cos}: f32[B, D], {pow}: float) -> (out: f32[B, D])
// where: {pow} > 0
// scratch: t: f32[max({pow}, 1)]
// launch[{pow} < 2]: turn<<<{pow} * B, 256, {pow}>>>(x, {cos}, t, out, {pow} + 1)
// library: aten::mul(x, [{cos}, {pow}]) -> (out)
// op: turn_backward(grad_out: f32[B, D], {cos}: f32[B, D]) -> (grad_{cos}: f32[B, D])
// fill: grad_{cos} = 0
"""
INPUTS = frozenset({"x", "cos_", "pow_", "grad_out"})


def plan(cos: str, pow_: str):
    return parse_or_raise(PLAN.format(cos=cos, pow=pow_), "kernel.cu")


def test_every_place_has_the_tasks_name() -> None:
    assert with_input_names(plan("cos", "pow"), INPUTS) == plan("cos_", "pow_")


def test_a_plan_with_the_tasks_names_is_itself() -> None:
    written = plan("cos_", "pow_")
    assert with_input_names(written, INPUTS) is written


def test_a_name_that_the_task_has_not_stays() -> None:
    assert "sin" in print_plan(with_input_names(plan("sin", "pow"), INPUTS))


def test_lines_stay_where_they_were() -> None:
    found, written = with_input_names(plan("cos", "pow"), INPUTS), plan("cos", "pow")
    assert [step.span for step in found.forward.steps] == [step.span for step in written.forward.steps]
