"""Sums of a contraction's results: one factor is summed before the products, and the result is the same."""

from __future__ import annotations

import numpy as np
import pytest

from tests.generate.harness import check, plan_text, run, tensor

TRANSITION = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(8), nn.Conv2d(8, 16, 1, bias={bias})
        nn.init.normal_(self.norm.weight); nn.init.normal_(self.norm.bias)
    def forward(self, x): return F.avg_pool2d(self.conv(self.norm(x).relu()), {pool})
"""


def is_summed_first(text: str) -> bool:
    return any(line.startswith(("// scratch: pooled", "// scratch: sum")) for line in text.splitlines())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    "pool",
    [
        "2",
        "3, 2",
        "2, padding=1",
        "2, padding=1, count_include_pad=False",
        "2, ceil_mode=True",
        "(4, 2), divisor_override=5",
    ],
)
def test_an_average_pool_behind_a_pointwise_convolution_pools_its_input(pool: str, bias: bool) -> None:
    text = TRANSITION.format(bias=bias, pool=pool)
    checked = check(text, symbol="M", inputs=[tensor("x", 3, 8, 10, 12)], sizes=({}, {"B": 2, "H": 13, "W": 9}))
    assert "pooled: f32[B, 8, " in checked.text


CONVOLUTIONS = [
    "F.conv2d(x, w, b).mean(dim=[2, 3])",
    "F.conv2d(x, w, padding=1).mean(dim=(2, 3), keepdim=True)",
    "F.conv2d(x, w, b, stride=2, padding=2).sum(dim=[2, 3])",
    "F.conv2d(x, w, dilation=2).mean(dim=[3])",
    "F.adaptive_avg_pool2d(3 - F.conv2d(x, w, b) / 2, 1)",
    "F.conv2d(x, w, b).mean(dim=[0, 2, 3])",
    "(F.conv2d(x, w, b) * b[:, None, None]).mean(dim=(2, 3))",
    "F.conv2d(x, w, b).mean()",
    "F.conv2d(x, w, b).mean(dim=1)",
    "F.conv_transpose2d(x, w.transpose(0, 1), b).mean(dim=[2, 3])",
    "F.conv_transpose2d(x, w.transpose(0, 1), b, stride=2, padding=1, output_padding=1).mean(dim=[2, 3])",
    "F.conv_transpose2d(x, w.transpose(0, 1), b, stride=3, dilation=2).mean(dim=[2, 3])",
    "F.conv_transpose2d(x, w.transpose(0, 1), padding=1).mean(dim=2)",
]


@pytest.mark.parametrize("result", CONVOLUTIONS)
def test_a_mean_behind_a_convolution_needs_sums_of_its_input(result: str) -> None:
    inputs = [tensor("x", 2, 4, 9, 8), tensor("w", 8, 4, 3, 3), tensor("b", 8)]
    program = plan_text(f"def f(x, w, b): return {result}", inputs=inputs)
    text = check(f"def f(x, w, b): return {result}", inputs=inputs, families=("normal", "large")).text
    assert is_summed_first(text), program.describe()


def test_a_mean_behind_a_convolution_of_groups() -> None:
    text = "def f(x, w): return F.conv2d(x, w, groups=2, padding=1).mean(dim=[2, 3])"
    assert is_summed_first(check(text, inputs=[tensor("x", 2, 8, 9, 8), tensor("w", 8, 4, 3, 3)]).text)


@pytest.mark.parametrize(
    "result",
    [
        "(F.linear(x, w) / 2).sum(dim=1, keepdim=True) * 1.5",
        "F.linear(x, w, b).sum(dim=-1)",
        "(F.linear(x, w, b) - c).mean(dim=1, keepdim=True)",
        "-F.linear(x, w, b).mean(dim=0)",
        "(2 * F.linear(x, w, b)).sum()",
        "F.avg_pool1d(F.linear(x, w, b).unsqueeze(1), 4).squeeze(1)",
        "(x @ w.T + x.sum(dim=1, keepdim=True)).sum(dim=1)",
    ],
)
def test_a_sum_over_features_sums_the_weight(result: str) -> None:
    inputs = [tensor("x", 12, 40), tensor("w", 24, 40), tensor("b", 24), tensor("c", 24)]
    assert is_summed_first(check(f"def f(x, w, b, c): return {result}", inputs=inputs).text)


@pytest.mark.parametrize(
    "result",
    [
        "y.relu().sum(dim=1)",
        "(y * c).sum(dim=1)",
        "(y.sum(dim=1), y)",
        "y.amax(dim=1)",
        "(y - y.mean(dim=1, keepdim=True)).relu()",
        "(y * y.sigmoid()).sum(dim=1)",
        "(y + y.tanh()).sum(dim=1)",
    ],
)
def test_other_sums_have_the_products_first(result: str) -> None:
    inputs = [tensor("x", 12, 40), tensor("w", 24, 40), tensor("c", 24)]
    text = f"def f(x, w, c):\n    y = x @ w.T\n    return {result}"
    assert not any(line.startswith("// scratch: sum: f32[40]") for line in check(text, inputs=inputs).text.splitlines())


def test_attention_and_its_mean_are_not_taken_apart() -> None:
    text = "def f(q, k, v): return F.scaled_dot_product_attention(q, k, v).mean(dim=2)"
    program = plan_text(text, inputs=[tensor(name, 2, 3, 32, 16) for name in "qkv"])
    assert any(knob.name.endswith(".attention") for knob in program.knobs)


def test_gradients_have_the_form_of_pytorch() -> None:
    inputs = [tensor("x", 12, 40), tensor("w", 24, 40)]
    checked = check("def f(x, w): return (x @ w.T).sum(dim=1)", inputs=inputs, backward=True)
    assert not is_summed_first(checked.text)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("where", ["x", "w"])
def test_what_is_not_finite_reaches_the_results_of_pytorch(where: str, value: float) -> None:
    checked = check("def f(x, w): return (x @ w.T).sum(dim=1)", inputs=[tensor("x", 6, 40), tensor("w", 8, 40)])
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal((6, 40)).astype(np.float32), "w": rng.standard_normal((8, 40)).astype(np.float32)}
    given["x"][2, 7], given[where][3, 7] = 0, value
    (result,) = run(checked, given).values()
    with np.errstate(invalid="ignore"):
        expected = (given["x"] @ given["w"].T).sum(axis=1)
    assert np.isfinite(result).tolist() == np.isfinite(expected).tolist()
    assert np.isnan(result[np.isnan(expected) & np.isnan(value)]).all()
