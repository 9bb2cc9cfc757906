"""Means of what a norm has centered: from the sums of lines, without another pass over the elements."""

from __future__ import annotations

import numpy as np
import pytest

from tests.generate.harness import check, plan_text, run, tensor

GROUP_NORM = """
class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(2, 6)
        nn.init.normal_(self.norm.weight); nn.init.normal_(self.norm.bias)
    def forward(self, x): return {result}
"""


@pytest.mark.parametrize(
    "result",
    [
        "self.norm(x).mean(dim=[1, 2, 3])",
        "self.norm(x).mean()",
        "(self.norm(x) * 2 - x.mean(dim=[2, 3], keepdim=True)).mean(dim=[1, 3])",
    ],
)
def test_the_mean_of_a_group_norm_reads_sums_of_lines(result: str) -> None:
    text = GROUP_NORM.format(result=result)
    inputs = [tensor("x", 3, 6, 5, 8)]
    assert "line_sum" in check(text, symbol="M", inputs=inputs, families=("normal", "large")).text


@pytest.mark.parametrize("result", ["self.norm(x).relu().mean(dim=[1, 2, 3])", "self.norm(x).mean(dim=1)"])
def test_what_is_not_affine_along_a_line_is_added_up_by_elements(result: str) -> None:
    program = plan_text(GROUP_NORM.format(result=result), symbol="M", inputs=[tensor("x", 3, 6, 5, 8)])
    assert "line_sum" not in program.render({})


@pytest.mark.parametrize(
    "result",
    [
        "y.mean(dim=[2, 3])",
        "y.mean(dim=[1, 2, 3])",
        "(y, y.mean(dim=[2, 3]))",
        "(y.relu(), y.mean(dim=[1, 2, 3]))",
        "F.adaptive_avg_pool2d(y, 1).flatten(1).softmax(-1)",
    ],
)
@pytest.mark.parametrize("side", [32, 64])
def test_blocks_that_share_a_row_add_up_its_lines(side: int, result: str) -> None:
    inputs = [tensor("x", 2, 8, side, side), tensor("w", 8), tensor("b", 8)]
    check(
        f"def f(x, w, b):\n    y = F.group_norm(x, 4, w, b)\n    return {result}", inputs=inputs, families=("normal",)
    )


@pytest.mark.parametrize(("operator", "factor"), [("*", np.inf), ("/", 0.0)])
@pytest.mark.parametrize("axes", ["[2, 3]", "[1, 2, 3]"])
def test_infinities_of_both_signs_add_up_to_nan(axes: str, operator: str, factor: float) -> None:
    text = f"def f(x, w): return (F.group_norm(x, 2) {operator} w[:, None, None]).mean(dim={axes})"
    checked = check(text, inputs=[tensor("x", 3, 6, 5, 8), tensor("w", 6)])
    assert "line_sum" in checked.text
    x = np.random.default_rng(0).standard_normal((3, 6, 5, 8)).astype(np.float32)
    w = np.array([1, factor, 1, 1, 1, 1], np.float32)
    (result,) = run(checked, {"x": x, "w": w}).values()
    expected = [[False, True, False, False, False, False]] * 3 if axes == "[2, 3]" else [True] * 3
    assert np.isnan(result).tolist() == expected
