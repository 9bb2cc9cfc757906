"""A generated forward keeps values of rows for its backward, and the backward takes results of the forward."""

from __future__ import annotations

import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import Launch, LaunchPlan, LibraryStep
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.plan.renaming import given_by_forward

from .harness import check, plan_text, tensor

CROSS_ENTROPY = "def f(logits, labels): return F.cross_entropy(logits, labels)"
NORM = """def f(x, residual, weight):
    total = x + residual
    return total * torch.rsqrt(total.pow(2).mean(-1, keepdim=True) + 1e-6) * weight, total
"""
LINEAR = "def f(x, weight, labels): return F.cross_entropy(F.linear(x, weight), labels)"


def labels(n_rows: int, n_classes: int) -> dict[str, object]:
    return tensor("labels", n_rows, dtype="i64", within=(0, n_classes))


def rows_and_weight(dtype: str = "f32", n_rows: int = 300) -> list[dict[str, object]]:
    x, residual = (tensor(name, n_rows, 64, dtype=dtype) for name in ("x", "residual"))
    return [x, residual, tensor("weight", 64, dtype=dtype)]


def given(plan: LaunchPlan) -> list[str]:
    return [parameter.name for parameter in given_by_forward(plan)]


def taken(plan: LaunchPlan) -> set[str]:
    """Return what the launches of the backward take."""
    assert plan.backward is not None
    return {str(argument) for step in plan.backward.steps if isinstance(step, Launch) for argument in step.arguments}


def gradients(text: str) -> str:
    """Return the code of the backward's kernel."""
    return text[text.index(" f_backward(\n") :]


def plan_at(text: str, inputs: list[dict[str, object]], level: int) -> LaunchPlan:
    program = plan_text(text, inputs=inputs, backward=True)
    return parse_or_raise(program.render({f"{program.task.name}.keeps": level}), "kernel.cu")


def test_a_cross_entropy_keeps_the_sums_of_its_softmax_and_the_number_of_rows() -> None:
    inputs = [tensor("logits", 17, 300), labels(17, 300)]
    checked = check(CROSS_ENTROPY, inputs=inputs, backward=True, sizes=({}, {"B": 5}), families=("normal", "one_hot"))
    assert given(checked.plan) == ["peak", "log_sum", "converted"]
    assert [len(kept.dims) for kept in checked.plan.forward.kept] == [1, 1, 0]
    assert "logf(" not in gradients(checked.text)
    forward = checked.text[checked.text.index(" f_chosen(") : checked.text.index(" f_backward(")]
    assert "= peak[row];" not in forward
    assert "nan_max(" not in gradients(checked.text)


def test_a_schedule_may_keep_nothing() -> None:
    inputs = [tensor("logits", 17, 300), labels(17, 300)]
    checked = check(CROSS_ENTROPY, inputs=inputs, backward=True, schedule={"f.keeps": 0})
    assert checked.plan.forward.kept == ()
    assert given(checked.plan) == []


def test_a_result_is_taken_in_place_of_two_inputs_and_columns_are_summed_beside_its_rows() -> None:
    checked = check(NORM, inputs=rows_and_weight(), backward=True)
    assert "total" in given(checked.plan)
    assert taken(checked.plan).isdisjoint({"x", "residual"})
    assert checked.plan.backward is not None
    assert len(checked.plan.backward.steps) == 2


def test_sums_of_what_is_rounded_later_are_found_again() -> None:
    """The deviation of constant rows is 0; that of the rounded value from the mean of the exact one is not."""
    text = """def f(x, residual, weight, bias):
    total = x + residual
    return F.layer_norm(total, weight.shape, weight, bias, 1e-5), total
"""
    inputs = [*rows_and_weight("bf16", 40), tensor("bias", 64, dtype="bf16")]
    checked = check(text, inputs=inputs, backward=True, families=("normal", "constant_rows"))
    assert len(given(checked.plan)) == 1
    assert checked.plan.forward.kept == ()


def test_a_softmax_is_taken_as_it_was_returned() -> None:
    checked = check("def f(x): return torch.softmax(x, -1)", inputs=[tensor("x", 9, 300)], backward=True)
    assert given(checked.plan) == ["out"]
    assert "x" not in taken(checked.plan)
    assert "expf(" not in gradients(checked.text)


@pytest.mark.parametrize(("activation", "is_taken"), [("relu", False), ("sigmoid", True)])
def test_a_normalized_result_of_few_operations_is_found_again(activation: str, *, is_taken: bool) -> None:
    checked = check(
        f"def f(x, weight, bias): return F.batch_norm(x, None, None, weight, bias, training=True).{activation}()",
        inputs=[tensor("x", 6, 5, 8, 8), tensor("weight", 5), tensor("bias", 5)],
        backward=True,
    )
    assert ("out" in taken(checked.plan)) == is_taken
    assert {"mean", "rstd"} <= taken(checked.plan)


def test_a_product_is_taken_where_it_is_a_result() -> None:
    inputs = [tensor("x", 33, 40), tensor("weight", 24, 40), tensor("bias", 24)]
    text = "def f(x, weight, bias): return torch.relu(F.linear(x, weight, bias))"
    checked = check(text, inputs=inputs, backward=True)
    assert given(checked.plan) == ["out"]


def test_two_equal_values_are_kept_once() -> None:
    text = """def f(logits, labels):
    return F.cross_entropy(logits, labels) + 1e-4 * torch.logsumexp(logits, -1).pow(2).mean()
"""
    checked = check(text, inputs=[tensor("logits", 17, 300), labels(17, 300)], backward=True)
    names = given(checked.plan)
    assert len(names) == len(set(names)) == 4


@pytest.mark.parametrize("n_columns", [4, 300])
def test_what_is_as_large_as_the_input_is_not_kept(n_columns: int) -> None:
    inputs = [tensor("logits", 17, n_columns), labels(17, n_columns)]
    plan = plan_at(CROSS_ENTROPY, inputs, 1)
    assert ("peak" in given(plan)) is (n_columns == 300)


def test_products_are_kept_where_the_schedule_says_so() -> None:
    inputs = [tensor("x", 32, 64), tensor("weight", 300, 64), labels(32, 300)]
    assert "mm" not in given(plan_at(LINEAR, inputs, 1))
    checked = check(LINEAR, inputs=inputs, backward=True, schedule={"f.keeps": 2})
    assert "mm" in given(checked.plan)


@pytest.mark.parametrize(
    ("dtype", "n_terms", "is_kept"),
    [("f32", 64, False), ("f32", 256, True), ("bf16", 256, False), ("bf16", 1024, True)],
)
def test_products_of_many_terms_are_kept_by_default(dtype: str, n_terms: int, *, is_kept: bool) -> None:
    x, weight = tensor("x", 500, n_terms, dtype=dtype), tensor("weight", 300, n_terms, dtype=dtype)
    inputs = [x, weight, labels(500, 300)]
    plan = parse_or_raise(plan_text(LINEAR, inputs=inputs, backward=True).render({}), "kernel.cu")
    assert ("mm" in given(plan)) is is_kept


@pytest.mark.parametrize(("activation", "names"), [("relu", ["relu_"]), ("gelu", ["gelu_", "mm"])])
def test_what_lies_between_two_products_is_kept(activation: str, names: list[str]) -> None:
    """The forward writes it to memory for the second product, which a backward read again and again."""
    text = f"def f(x, a, b): return F.{activation}(x @ a) @ b"
    inputs = [tensor("x", 64, 40), tensor("a", 40, 48), tensor("b", 48, 32)]
    checked = check(text, inputs=inputs, backward=True, schedule={"f.keeps": 2})
    assert sorted(given(checked.plan)) == names
    assert checked.plan.forward.scratch == ()


def test_what_a_library_step_makes_is_kept_without_a_copy() -> None:
    x, weight = tensor("x", 32, 64, dtype="bf16"), tensor("weight", 300, 64, dtype="bf16")
    program = plan_text(LINEAR, inputs=[x, weight, labels(32, 300)], backward=True)
    text = program.render({"f.keeps": 2, "f.mm.contraction": "library"})
    plan = parse_or_raise(text, "kernel.cu")
    (step,) = (step for step in plan.forward.steps if isinstance(step, LibraryStep))
    assert step.results == ("mm",)
    assert "mm" in given(plan)


MLP = "def f(x, a, p, b, q): return F.linear(F.gelu(F.linear(x, a, p)), b, q)"
CONTRASTIVE = """
def f(x, y):
    scores = F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).t() / 0.07
    return F.cross_entropy(scores, torch.arange(x.shape[0], device=x.device))
"""


def test_linear_layers_of_16_bits_are_one_call_with_their_bias_and_keep_its_result() -> None:
    """They kept the product in f32, which a kernel converted, and added the bias to a product that was rounded."""
    sizes = {"x": (512, 512), "a": (1024, 512), "p": (1024,), "b": (512, 1024), "q": (512,)}
    inputs = [tensor(name, *shape, dtype="bf16") for name, shape in sizes.items()]
    plan = parse_or_raise(plan_text(MLP, inputs=inputs, backward=True).render({}), "kernel.cu")
    first, second = (step for step in plan.forward.steps if isinstance(step, LibraryStep))
    assert (first.arguments, second.arguments[1:]) == (("x", "a", "p"), ("b", "q"))
    assert second.results == ("out",)
    assert given(plan) == list(first.results)
    small = [tensor(name, *(extent // 16 for extent in shape), dtype="bf16") for name, shape in sizes.items()]
    ways = {"f.addmm.contraction": "library", "f.addmm_2.contraction": "library", "f.keeps": 2}
    check(MLP, inputs=small, backward=True, schedule=ways)


def test_a_product_by_the_library_is_kept_beside_norms_of_its_factors() -> None:
    """It lies in memory anyway; the gradients found it again, since it is made of norms that are kept in 16 bits."""
    inputs = [tensor(name, 2048, 256, dtype="bf16") for name in ("x", "y")]
    plan = parse_or_raise(plan_text(CONTRASTIVE, inputs=inputs, backward=True).render({}), "kernel.cu")
    assert "mm" in given(plan)
    assert sum(isinstance(step, LibraryStep) for step in plan.backward.steps) == 2


def test_an_attention_keeps_one_value_a_query() -> None:
    """Its kernels are found in the sums of a softmax, which are not kept one by one."""
    inputs = [tensor(name, 2, 2, 32, 16) for name in ("q", "k", "v")]
    program = plan_text("def f(q, k, v): return F.scaled_dot_product_attention(q, k, v)", inputs=inputs, backward=True)
    (kept,) = parse_or_raise(program.render({}), "kernel.cu").forward.kept
    assert len(kept.dims) == 3


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        ("F.max_pool2d(x, 2)", (2, 3, 9, 12)),
        ("F.max_pool2d(x, 2)", (2, 3, 8, 7)),
        ("F.max_pool1d(x, 4)", (2, 3, 19)),
        ("F.max_pool2d(x, 3, 2, 1)", (2, 3, 9, 12)),
        ("F.max_pool2d(x, (3, 5), 1, (1, 2))", (2, 3, 8, 7)),
        ("F.max_pool2d(x, 2, 3, 1)", (2, 3, 9, 11)),
    ],
)
def test_a_pooling_keeps_the_place_of_each_maximum_in_a_byte(call: str, shape: tuple[int, ...]) -> None:
    families = ("normal", "small_integers", "tied_rows", "special_nan", "minus_inf_rows")
    inputs, sizes = [tensor("x", *shape)], ({}, {"B": 1, "C": 5})
    checked = check(f"def f(x): return {call}", inputs=inputs, backward=True, families=families, sizes=sizes)
    assert given(checked.plan) == ["chosen"]
    assert checked.plan.forward.kept[0].dtype == DType.U8
    assert "x" not in taken(checked.plan)


def test_places_in_windows_are_kept_with_the_loops_of_another_graph_before_them() -> None:
    text = "def f(y, x): return F.avg_pool2d(y, 3), F.max_pool2d(x, 2)"
    checked = check(text, inputs=[tensor("y", 2, 3, 9, 9), tensor("x", 2, 3, 8, 8)], backward=True)
    assert given(checked.plan) == ["chosen"]


@pytest.mark.parametrize(
    "call",
    ["F.max_pool2d(x, 3, dilation=2)", "F.max_pool2d(x, 17, 1, 8)", "F.max_pool2d(x.relu(), 2)", "F.avg_pool2d(x, 2)"],
)
def test_places_are_not_kept_that_no_byte_numbers_or_of_windows_that_are_computed(call: str) -> None:
    program = plan_text(f"def f(x): return {call}", inputs=[tensor("x", 2, 3, 16, 16)], backward=True)
    assert given(parse_or_raise(program.realize({}).text, "kernel.cu")) == []
