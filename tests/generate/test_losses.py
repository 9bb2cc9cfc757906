"""Losses, forward and backward."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.generate.harness import check, plan_text, run, tensor


@pytest.mark.parametrize(
    "call",
    [
        "F.mse_loss(x, y)",
        "F.l1_loss(x, y)",
        "F.smooth_l1_loss(x, y)",
        "F.huber_loss(x, y, delta=0.5)",
        "F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction='batchmean')",
        "F.binary_cross_entropy_with_logits(x, torch.sigmoid(y))",
        "torch.clamp(1 - x * y, min=0).mean()",
        "F.cosine_similarity(x, y, dim=1).mean()",
        "F.triplet_margin_loss(x, y, x * y)",
        "F.soft_margin_loss(x, torch.sign(y.detach()))",
    ],
)
def test_losses_of_two_tensors(call: str) -> None:
    check(f"def f(x, y): return {call}", inputs=[tensor("x", 9, 50), tensor("y", 9, 50)], backward=True)


@pytest.mark.parametrize("n_classes", [10, 300])
def test_cross_entropy_forward_and_backward(n_classes: int) -> None:
    inputs = [tensor("logits", 17, n_classes), tensor("labels", 17, dtype="i64", within=(0, n_classes))]
    check("def f(logits, labels): return F.cross_entropy(logits, labels)", inputs=inputs, backward=True)


def test_cross_entropy_with_smoothing_and_ignored_labels() -> None:
    inputs = [tensor("logits", 17, 30), tensor("labels", 17, dtype="i64", within=(0, 30))]
    text = "def f(logits, labels): return F.cross_entropy(logits, labels, ignore_index=3, label_smoothing=0.1)"
    check(text, inputs=inputs, backward=True)


def test_negative_log_likelihood_without_reduction() -> None:
    inputs = [tensor("x", 17, 30), tensor("labels", 17, dtype="i64", within=(0, 30))]
    check("def f(x, labels): return F.nll_loss(x, labels, reduction='none')", inputs=inputs)


def test_what_depends_on_rows_alone_is_not_stored_for_each_element() -> None:
    checked = check(
        "def f(x, t): return F.cross_entropy(x, t, label_smoothing=0.1)",
        inputs=[tensor("x", 6, 300), tensor("t", 6, dtype="i64", within=(0, 300))],
        backward=True,
    )
    assert checked.plan.backward is not None
    assert not checked.plan.backward.scratch


def test_a_sum_over_all_is_added_up_row_by_row_beside_the_softmax_that_it_reads() -> None:
    text = f"def f(x, y): return {KL_DIVERGENCE}"
    checked = check(text, inputs=[tensor("x", 140, 80), tensor("y", 140, 80)], backward=True)
    assert checked.n_kernels == 2


def test_packs_of_a_part_of_a_sum_over_all_divide_the_part() -> None:
    way = {"f.sum.split": 8, "f_sum_parts.vector": 4}
    inputs = [tensor("x", 4, 1032), tensor("y", 4, 1032)]
    checked = check(f"def f(x, y): return {KL_DIVERGENCE}", inputs=inputs, schedule=way, sizes=({}, {"B": 3}, {"B": 8}))
    assert "pack < part_length / 4" in checked.text
    assert "// where: ceil_div(B * D, 8) % 4 == 0" in checked.text


def test_sums_over_parts_of_the_same_rows_share_one_pass_by_packs() -> None:
    """A dice loss of (16, 8, 512, 512) took 132 us on an H200 in five launches, whose loads were single elements."""
    checked = check(
        "def f(x, t): return 1 - ((x * t).sum((2, 3)) / (torch.sigmoid(x).sum((2, 3)) + t.sum((2, 3)))).mean()",
        inputs=[tensor("x", 2, 3, 96, 132), tensor("t", 2, 3, 96, 132)],
        schedule={"f_sum_parts_3.vector": 4},
        sizes=({}, {"B": 1}),
    )
    assert checked.n_kernels == 3
    assert checked.text.count("packs<4>(x + ") == checked.text.count("packs<4>(t + ") == 1
    assert "// where: H * W % 4 == 0" in checked.text


def test_a_loss_with_a_z_term_computes_each_exponential_once() -> None:
    checked = check(
        "def f(x, t): return F.cross_entropy(x, t) + 1e-4 * torch.logsumexp(x, -1).pow(2).mean()",
        inputs=[tensor("x", 6, 300), tensor("t", 6, dtype="i64", within=(0, 300))],
        backward=True,
        schedule={"f.keeps": 0},
    )
    backward = checked.text[checked.text.index("f_backward(\n") :]
    assert backward.count("expf(") == 3  # of an element in two passes, and of an infinite maximum
    assert backward.count("block_max") + backward.count("warp_max") == 1


def test_sums_that_share_a_maximum_keep_their_values_where_it_is_infinite() -> None:
    checked = check("def f(x): return torch.logsumexp(x, -1), torch.softmax(x, -1)", inputs=[tensor("x", 4, 40)])
    x = np.zeros((4, 40), np.float32)
    x[1, 3], x[2], x[3, 5] = np.inf, -np.inf, np.nan
    found = run(checked, {"x": x})
    np.testing.assert_allclose(found["out_0"], [np.log(40), np.inf, -np.inf, np.nan], rtol=1e-6)
    assert np.isnan(found["out_1"]).all(axis=1).tolist() == [False, True, True, True]


KL_DIVERGENCE = "F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction='batchmean')"
JS_DIVERGENCE = """
def f(x, y):
    p, q = F.log_softmax(x, -1), F.log_softmax(y, -1)
    mean = torch.log(0.5 * (p.exp() + q.exp()))
    return 0.5 * ((p.exp() * (p - mean)).sum(-1) + (q.exp() * (q - mean)).sum(-1)).mean()
"""


ROW_DIVERGENCES = {"JS": JS_DIVERGENCE.replace(".mean()", ""), "KL": f"def f(x, y): return {KL_DIVERGENCE}"}
ROW_DIVERGENCES["KL"] = ROW_DIVERGENCES["KL"].replace("'batchmean')", "'none').sum(-1)")


@pytest.mark.parametrize(("name", "tolerance"), [("JS", 5e-7), ("KL", 1.5e-6)])
@pytest.mark.parametrize("way", [{}, {"f.cached": 1, "f.online": 0, "f.blocks": 4, "f.threads": 256}])
def test_divergences_of_near_rows_do_not_have_the_rounding_of_the_logarithms_of_sums(
    name: str, tolerance: float, way: dict[str, int]
) -> None:
    """Errors of single rows, relative L2: 4.6e-6 and 2.6e-6 with these logarithms, 2.3e-7 and 1.7e-6 of PyTorch."""
    checked = check(ROW_DIVERGENCES[name], inputs=[tensor("x", 32, 1032), tensor("y", 32, 1032)], schedule=way)
    generator = np.random.default_rng(0)
    x, y = (generator.random((32, 1032), np.float32) for _ in "xy")
    p, q = (np.exp(row) / np.exp(row).sum(-1, keepdims=True) for row in (x.astype(float), y.astype(float)))
    mean = (p + q) / 2
    expected = {
        "JS": (p * np.log(p / mean) + q * np.log(q / mean)).sum(-1) / 2,
        "KL": (q * np.log(q / p)).sum(-1),
    }[name]
    error = run(checked, {"x": x, "y": y})["out"] - expected
    assert np.linalg.norm(error) < tolerance * np.linalg.norm(expected)


@pytest.mark.parametrize("way", [{}, {"f.vector": 4}, {"f.blocks": 4, "f.threads": 32}])
def test_a_divergence_is_a_number_where_a_row_has_both_ends_of_f32(way: dict[str, int]) -> None:
    """The distance of the one from the other is infinite, and its weight 0."""
    checked = check(ROW_DIVERGENCES["KL"], inputs=[tensor("x", 4, 1032), tensor("y", 4, 1032)], schedule=way)
    x, y = np.zeros((4, 1032), np.float32), np.zeros((4, 1032), np.float32)
    y[0, :516], y[0, 1031], y[1], y[1, 1031], y[2, 0] = -3e38, 3e38, -3e38, 3e38, -3e38
    expected = [np.log(1032), np.log(1032), np.log(1032 / 1031), 0]
    np.testing.assert_allclose(run(checked, {"x": x, "y": y})["out"], expected, rtol=1e-3, atol=1e-6)


def test_a_divergence_from_a_mixture_of_far_rows_is_as_in_pytorch() -> None:
    checked = check(
        ROW_DIVERGENCES["JS"], inputs=[tensor("x", 6, 40), tensor("y", 6, 40)], families=("normal", "large")
    )
    x, y = np.zeros((6, 40), np.float32), np.zeros((6, 40), np.float32)
    x[1, :20] = -200  # shares of 0 in one row alone
    x[2, 3], x[3, 3], y[4, 3] = -np.inf, np.inf, np.nan
    x[5], y[5] = -1000, 1000
    found = run(checked, {"x": x, "y": y})["out"]
    apart = 0.5 * np.log(4 / 3) + 0.25 * np.log(2 / 3) + 0.25 * np.log(2)
    np.testing.assert_allclose(found, [0, apart, np.nan, np.nan, np.nan, 0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("text", [f"def f(x, y): return {KL_DIVERGENCE}", JS_DIVERGENCE])
def test_gradients_of_a_divergence_of_equal_rows_may_have_the_rounding_of_their_terms(text: str) -> None:
    inputs = [tensor("x", 4, 1032), tensor("y", 4, 1032)]
    check(text, inputs=inputs, backward=True, families=("zeros", "constant_rows", "one_hot"))


def test_gradients_of_a_divergence_store_nothing_between_their_sums_and_their_results() -> None:
    checked = check(JS_DIVERGENCE, inputs=[tensor("x", 5, 300), tensor("y", 5, 300)], backward=True)
    assert checked.plan.backward is not None
    assert not checked.plan.backward.scratch


@pytest.mark.parametrize("blocks", [1, 4])
def test_exponentials_of_rows_on_chip_are_computed_once(blocks: int) -> None:
    way = {"cached": 1, "online": 0, "blocks": blocks, "threads": 256, "vector": 4}
    kernels = ("f_total", "f_backward")
    schedule = {f"{kernel}.{what}": value for kernel in kernels for what, value in way.items()}
    inputs = [tensor("x", 3, 2052), tensor("y", 3, 2052)]
    checked = check(JS_DIVERGENCE, inputs=inputs, schedule=schedule, backward=True, families=("normal", "large"))
    assert ("kept_factor" in checked.text) == (blocks > 1)
    for kernel in kernels:
        body = re.split(rf"__global__ .*\b{kernel}\(", checked.text)[1].split("__global__")[0]
        assert len(re.findall(r"^ {12,}.*\bexpf\(", body, re.MULTILINE)) == 2


def test_a_norm_of_costly_values_keeps_them_where_blocks_share_a_row() -> None:
    way = {"cached": 1, "online": 0, "blocks": 4, "threads": 256, "vector": 4}
    text = "def f(x, b): return F.layer_norm(F.gelu(x + b), (2052,))"
    inputs = [tensor("x", 3, 2052), tensor("b", 2052)]
    schedule = {f"f.{what}": value for what, value in way.items()}
    checked = check(text, inputs=inputs, schedule=schedule, families=("normal", "large"))
    assert checked.text.count("[v] = gelu(") == 1
    assert "parts_squares<4" in checked.text, "one exchange for both"


@pytest.mark.parametrize("blocks", [1, 4])
def test_a_softmax_of_costly_values_keeps_them_where_blocks_share_a_row(blocks: int) -> None:
    way = {"cached": 1, "online": 0, "blocks": blocks, "threads": 256, "vector": 4}
    text = "def f(x, b): return torch.softmax(F.gelu(x + b), -1)"
    inputs = [tensor("x", 3, 2052), tensor("b", 2052)]
    schedule = {f"f.{what}": value for what, value in way.items()}
    checked = check(text, inputs=inputs, schedule=schedule, families=("normal", "large"))
    assert ("kept_factor" in checked.text) == (blocks > 1)
    assert checked.text.count("= gelu(") == checked.text.count("= expf(k") == 1


def test_sums_of_many_long_rows_have_small_blocks() -> None:
    text = "def f(x, y): return F.kl_div(x.log(), y, reduction='batchmean')"
    inputs = [tensor(name, 16384, 16384) for name in ("x", "y")]
    assert "<<<B, 256>>>(x, y, " in plan_text(text, inputs=inputs).render({})


@pytest.mark.parametrize(
    "chosen",
    [
        "z.gather(1, y[:, None]).squeeze(1)",
        "z[torch.arange(z.shape[0], device=z.device), y]",
        "torch.take_along_dim(z, y[:, None], 1)[:, 0]",
    ],
)
def test_gradients_of_a_chosen_logit_are_part_of_the_softmax_gradient(chosen: str) -> None:
    """A zeroed tensor with one atomic update per row was stored, and read again."""
    text = f"def f(z, y): return (z.logsumexp(-1) - {chosen}).mean()"
    inputs = [tensor("z", 6, 70), tensor("y", 6, dtype="i64", within=(0, 70))]
    checked = check(text, inputs=inputs, backward=True)
    assert "atomicAdd" not in checked.text
    assert "scatter_add_base" not in checked.text
    assert len([line for line in checked.text.split("// op: f_backward")[1].splitlines() if "// launch" in line]) == 1


def test_one_update_per_row_adds_to_what_is_there() -> None:
    put = "x.index_put((torch.arange(6), y[:, 0]), v[:, 0], accumulate=True)"
    text = f"def f(x, y, v): return x.scatter_add(1, y, v), {put}"
    inputs = [tensor("x", 6, 9), tensor("y", 6, 1, dtype="i64", within=(0, 9)), tensor("v", 6, 1)]
    assert "atomicAdd" not in check(text, inputs=inputs).text
