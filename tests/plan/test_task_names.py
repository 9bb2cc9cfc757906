"""A plan may call an input what the target calls it, and a result what it likes."""

from __future__ import annotations

from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.plan.printer import print_plan
from kernel_lsp.plan.renaming import with_task_names
from tests.verify.copies import TASK

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
GRAPH = TASK.forward
TURN = TASK.model_copy(
    update={
        "arguments": tuple(TASK.arguments[0].model_copy(update={"name": name}) for name in ("x", "cos_", "pow_")),
        "backward": GRAPH.model_copy(
            update={"inputs": ("grad_out", "x", "cos_"), "input_types": GRAPH.input_types * 3}
        ),
    }
)


def plan(cos: str, pow_: str):
    return parse_or_raise(PLAN.format(cos=cos, pow=pow_), "kernel.cu")


def test_every_place_has_the_tasks_name() -> None:
    assert with_task_names(plan("cos", "pow"), TURN) == plan("cos_", "pow_")


def test_a_plan_with_the_tasks_names_is_itself() -> None:
    written = plan("cos_", "pow_")
    assert with_task_names(written, TURN) is written


def test_a_name_that_the_task_has_not_stays() -> None:
    assert "sin" in print_plan(with_task_names(plan("sin", "pow"), TURN))


def test_lines_stay_where_they_were() -> None:
    found, written = with_task_names(plan("cos", "pow"), TURN), plan("cos", "pow")
    assert [step.span for step in found.forward.steps] == [step.span for step in written.forward.steps]


def renamed(*pairs: tuple[str, str]) -> str:
    text = PLAN.format(cos="cos_", pow="pow_")
    for old, new in pairs:
        text = text.replace(old, new)
    return text


def test_a_result_and_its_gradient_have_the_tasks_name() -> None:
    own = parse_or_raise(renamed(("(out)", "(y)"), ("(out:", "(y:"), (" out,", " y,"), ("grad_out", "grad_y")), "k.cu")
    assert with_task_names(own, TURN) == plan("cos_", "pow_")


def test_a_result_stays_where_the_tasks_name_is_taken() -> None:
    taken = renamed(("(out)", "(y)"), ("(out:", "(y:"), (" out,", " y,"), ("grad_out", "grad_y"), ("t:", "out:"))
    own = parse_or_raise(taken, "k.cu")
    assert with_task_names(own, TURN) is own


def test_a_forward_alone_keeps_its_names() -> None:
    own = parse_or_raise("// kernel-lsp: 1\n// op: f(x: f32[B]) -> (y: f32[B])\n// fill: y = 0\n", "k.cu")
    assert with_task_names(own, TURN) is own
