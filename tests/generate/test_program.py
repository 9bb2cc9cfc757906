"""The program as a whole: its knobs, its determinism, and what it says where it cannot help."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import Launch
from kernel_lsp.core.task import TensorInput
from kernel_lsp.errors import TargetError
from kernel_lsp.generate.lowering.table import supported_operators
from kernel_lsp.generate.program import plan_program
from kernel_lsp.plan.parser import parse_or_raise
from tests.generate.harness import check_program, plan_text, tensor
from tests.worker.capturing import capture_text

PLAN_BOUND_S = 20
"""Maximum seconds of this process to plan 16 layers, without their capture; written out, they took minutes."""
MLP = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 48), nn.Linear(48, 32)
    def forward(self, x): return x + self.down(F.gelu(self.up(self.norm(x))))
"""


def test_any_valid_schedule_is_right() -> None:
    program = plan_text(MLP, symbol="M", inputs=[tensor("x", 3, 5, 32)], backward=True)
    choose = random.Random(5)
    while True:
        schedule = {knob.name: choose.choice(knob.values) for knob in program.knobs if choose.random() < 0.5}
        if program.is_valid(schedule):
            check_program(program, schedule=schedule)
            return


def test_a_schedule_whose_contract_excludes_the_captured_sizes_is_invalid() -> None:
    program = plan_text(MLP, symbol="M", inputs=[tensor("x", 3, 5, 32)], backward=True)
    schedule = {
        f"m_backward_grad_up_bias.{knob}": value for knob, value in (("cached", 1), ("threads", 2), ("rows", 128))
    }
    assert "where: B * T <= 8" in program.render(schedule)
    assert not program.is_valid(schedule)


def test_one_schedule_gives_one_text() -> None:
    first = plan_text(MLP, symbol="M", inputs=[tensor("x", 3, 5, 32)], backward=True, variants=True)
    second = plan_program(capture_text(MLP, "M", inputs=[tensor("x", 3, 5, 32)], backward=True), gpu=None)
    for knob in first.knobs[::24]:  # what one rendering leaves behind would change the next
        second.render({knob.name: knob.values[-1]})
    strip = lambda text: text.split("\n", 2)[2]  # noqa: E731  the task's file differs
    assert strip(first.render({})) == strip(second.render({}))


def test_a_schedule_after_others_gives_what_a_new_program_gives() -> None:
    """Kernels that schedules have in common are rendered once, by what they chose and what they are called."""
    task = capture_text(MLP, "M", inputs=[tensor("x", 3, 5, 32)], backward=True)
    used, choose = plan_program(task, gpu=None), random.Random(3)
    texts = set()
    for _ in range(12):
        schedule = {knob.name: choose.choice(knob.values) for knob in used.knobs if choose.random() < 0.1}
        found = used.realize(schedule)
        assert found == plan_program(task, gpu=None).realize(schedule)
        texts.add(found.text)
    assert len(texts) > 8


def test_defaults_are_a_valid_schedule() -> None:
    program = plan_text(MLP, symbol="M", inputs=[tensor("x", 3, 5, 32)])
    schedule = program.realize({}).schedule
    assert program.is_valid(schedule)
    assert program.render(schedule) == program.render({})
    assert not program.is_valid({next(iter(schedule)): 12345})
    assert not program.is_valid({"no_such_knob": 1})


def test_an_operator_without_a_rule_names_itself_and_the_users_line() -> None:
    task = capture_text("def f(x):\n    y = x * 2\n    return torch.logdet(y)", "f", inputs=[tensor("x", 4, 4)])
    with pytest.raises(TargetError, match=r"aten\._linalg_slogdet") as raised:
        plan_program(task)
    assert raised.value.line is not None
    assert "torch.logdet" in Path(task.source_file).read_text().splitlines()[raised.value.line - 1]
    assert raised.value.next_step


def test_every_part_three_family_has_rules() -> None:
    families = "add gelu sum mean _softmax native_layer_norm native_group_norm embedding gather cat convolution mm "
    families += "max_pool2d_with_indices avg_pool2d convolution_backward native_batch_norm cumsum scatter_add"
    missing = [name for name in families.split() if f"aten.{name}" not in supported_operators()]
    assert not missing


def test_the_description_counts_kernels() -> None:
    program = plan_text("def f(x): return x.softmax(-1)", inputs=[tensor("x", 4, 8)])
    assert program.describe() == "1 ATen call in 1 kernel (f)"


def test_library_steps_are_labelled() -> None:
    program = plan_text("def f(a, b): return torch.relu(a @ b)", inputs=[tensor("a", 9, 20), tensor("b", 20, 7)])
    knob = next(knob for knob in program.knobs if knob.name.endswith(".contraction"))
    assert "library" in knob.values
    checked = check_program(program, schedule={knob.name: "library"})
    assert "library: aten::matmul(a, b)" in checked.text


def test_the_gradient_of_a_weight_by_the_library_reads_what_lies_in_memory() -> None:
    inputs = [tensor("x", 2, 8, 16, dtype="bf16"), tensor("w", 32, 16, dtype="bf16")]
    program = plan_text("def f(x, w): return F.linear(x, w).relu()", inputs=inputs, backward=True)
    knobs = [knob.name for knob in program.knobs if knob.name.endswith(".contraction")]
    checked = check_program(program, schedule=dict.fromkeys(knobs, "library"))
    assert "library: aten::tensordot(chosen, x, [0, 1], [0, 1]) -> (grad_w)" in checked.text


def test_zero_dim_tensors() -> None:
    program = plan_text("def f(x, y): return (x * y).sum() + y", inputs=[tensor("x", 5), tensor("y")])
    check_program(program, schedule={})


def test_the_document_lists_every_operator() -> None:
    document = (Path(__file__).parents[2] / "docs" / "generator.md").read_text()
    listed = document.split("<!-- operators -->")[1].split()
    assert listed == [name.removeprefix("aten.") for name in supported_operators()]


def test_a_deep_residual_chain_is_planned_in_seconds() -> None:
    """Its definitions, written out, grow exponentially with its depth."""
    text = """
        def f(x):
            for _ in range(16):
                x = x + F.layer_norm(F.gelu(x) * x, (8,))
            return x
    """
    started = time.process_time()
    program = plan_text(text, inputs=[tensor("x", 4, 8)])
    assert len(program.task.forward.nodes) > 16
    assert time.process_time() - started < PLAN_BOUND_S


def test_layers_that_differ_in_names_share_a_kernel() -> None:
    text = """
        def f(x, first, second, third):
            x = F.layer_norm(x @ first, (16,))
            x = F.layer_norm(x @ second, (16,))
            return torch.sigmoid(x @ third)
    """
    inputs = [tensor("x", 8, 16), *(tensor(name, 16, 16) for name in ("first", "second", "third"))]
    program = plan_text(text, inputs=inputs)
    apart = {"f.launches": "each"}
    rendered = program.render(apart)
    launched = [step.kernel for step in parse_or_raise(rendered, "f.cu").forward.steps if isinstance(step, Launch)]
    assert rendered.count("__global__") == len(set(launched)) < len(launched)
    assert launched.count("f_x_2") == 2
    check_program(program, schedule=apart)


def test_kernels_that_differ_in_a_function_stay_apart() -> None:
    text = """
        def f(x, y):
            return torch.sigmoid(x.sum(-1)), torch.tanh(y.sum(-1))
    """
    program = plan_text(text, inputs=[tensor("x", 8, 16), tensor("y", 8, 16)])
    apart = {"f.launches": "each"}
    assert program.render(apart).count("__global__") == 2
    check_program(program, schedule=apart)


TAKEN_NAMES = {
    "a product": ("def f(a, b): return a @ b", (("n", "k"), ("k", "m"))),
    "rows": ("def f(a): return a.softmax(-1)", (("row", "col"),)),
    "elements": ("def f(a): return (a * 2.0).t() + 1.0", (("i", "u"),)),
    "windows": ("def f(a): return F.max_pool2d(a, 3, 1, 1, return_indices=True)", (("row", "line", "piece", "v"),)),
    "a scan": ("def f(a): return a.cumsum(-1)", (("row", "lane"),)),
    "attention": (
        "def f(a, b, c): return F.scaled_dot_product_attention(a, b, c)",
        (("batch", "head", "n", "m"), ("batch", "head", "key", "m"), ("batch", "head", "key", "m")),
    ),
}


@pytest.mark.parametrize("name", TAKEN_NAMES)
def test_dims_may_have_the_names_of_a_templates_variables(name: str) -> None:
    text, dims = TAKEN_NAMES[name]
    sizes = {
        "n": 20,
        "k": 24,
        "m": 16,
        "row": 6,
        "col": 40,
        "i": 8,
        "u": 12,
        "lane": 70,
        "batch": 2,
        "head": 3,
        "key": 24,
        "line": 2,
        "piece": 8,
        "v": 16,
    }
    inputs = [
        TensorInput(name=letter, dtype=DType.F32, shape=tuple(sizes[d] for d in own), dim_names=own)
        for letter, own in zip("abc", dims, strict=False)
    ]
    program = plan_text(text, inputs=inputs)
    ways = {knob.name: "tensor_cores" for knob in program.knobs if "tensor_cores" in knob.values}
    for schedule in ({}, ways, {"f.box": "1x1x2x4", "f.packs": 1}):
        check_program(program, schedule=schedule)
