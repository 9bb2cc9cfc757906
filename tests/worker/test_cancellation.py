"""Results whose terms cancel: their tolerance follows the size of the terms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel_lsp.verify.oracle.case_store import read_expectations
from kernel_lsp.verify.oracle.compare import BACKWARD_FACTOR, compare, is_within_budget
from tests.worker.capturing import capture_text, capture_text_once, make_case, tensor
from tests.worker.test_cases import load, output_of

KL = "F.kl_div(F.log_softmax(x, -1), F.softmax(y, -1), reduction='batchmean')"
SHAPES = {"x": (4, 32), "y": (4, 32)}
UNIT = 2.0**-24


def response(code: str, family: str, folder: Path, *, operation: str = "forward", result: str = "out") -> float:
    """Return the largest response of the result to a rounding."""
    inputs = [tensor(name, *shape) for name, shape in SHAPES.items() if name in code]
    capture_text(
        f"def f({', '.join(each.name for each in inputs)}):\n    return {code}", "f", inputs=inputs, backward=True
    )
    shapes = {each.name: SHAPES[each.name] for each in inputs}
    gradient = {"grad_out": ()} if operation == "backward" else {}
    return output_of(make_case(operation, {**shapes, **gradient}, family, folder), result).rounding.response_max


@pytest.mark.parametrize("result", ["grad_x", "grad_y"])
@pytest.mark.parametrize(
    "code",
    [
        KL,
        "(torch.softmax(x, -1) - torch.softmax(y, -1)).square().sum()",
        "(F.log_softmax(x, -1) - F.log_softmax(y, -1)).square().sum()",
        "F.cosine_similarity(torch.exp(x), torch.exp(y), -1).mean()",
        "((x - x.amax(-1, True)).exp() / (x - x.amax(-1, True)).exp().sum(-1, True) - y.softmax(-1)).square().sum()",
    ],
)
def test_gradients_of_equal_rows_have_the_rounding_of_their_terms(code: str, result: str, tmp_path: Path) -> None:
    """PyTorch's f32 has none for several of these: its terms are the same bits."""
    assert response(code, "zeros", tmp_path, operation="backward", result=result) > UNIT / 1000


@pytest.mark.parametrize(
    ("code", "family"),
    [
        ("torch.softmax(x, -1).sum() - 1.0", "zeros"),
        (KL, "zeros"),
        ("torch.exp(x) - torch.exp(x).mean(-1, keepdim=True)", "zeros"),
        ("torch.relu(torch.exp(x) - torch.exp(x).mean(-1, keepdim=True))", "zeros"),
        (
            "torch.exp(x).var(-1, correction=0) + (torch.exp(x).square().mean(-1) - torch.exp(x).mean(-1).square())",
            "zeros",
        ),
        ("torch.softmax(x, -1).sum(-1) - 1.0", "normal"),
    ],
)
def test_differences_of_what_is_computed_have_it(code: str, family: str, tmp_path: Path) -> None:
    assert response(code, family, tmp_path) > UNIT / 2


@pytest.mark.parametrize(
    "code",
    [
        "torch.relu(x)",
        "x - x.mean(-1, keepdim=True)",
        "torch.floor(torch.exp(x))",
        "x + (torch.exp(x) == 1.0).float()",
        "x + (torch.exp(x) * 3.0).int().float()",
        "torch.exp(x) * (torch.exp(x) >= torch.exp(x).amax(-1, keepdim=True)) - 1.0",
        "torch.sign(torch.exp(x) - 1.0)",
        "torch.sgn(torch.exp(x) - 1.0)",
        "x + (1.0 - torch.ones_like(x)) * -1e9",
    ],
)
def test_exact_zeros_and_choices_have_none(code: str, tmp_path: Path) -> None:
    assert response(code, "zeros", tmp_path) <= 64 * UNIT


@pytest.mark.parametrize(
    "code", ["torch.div(torch.exp(x), 0.125, rounding_mode='floor')", "torch.where(torch.exp(x) - 1.0 > 0, x + 1e6, x)"]
)
def test_thresholds_have_none_on_few_numbers(code: str, tmp_path: Path) -> None:
    assert response(code, "negative_zeros", tmp_path) < 1.0


@pytest.mark.parametrize("family", ["zeros", "one_hot", "negative_zeros"])
def test_signs_of_equal_predictions_are_zero(family: str, tmp_path: Path) -> None:
    """A kernel with a sign of one there passed."""
    code = "F.l1_loss(torch.sigmoid(x), torch.sigmoid(y))"
    assert response(code, family, tmp_path, operation="backward", result="grad_x") < UNIT


@pytest.mark.parametrize(
    "code",
    [
        "torch.exp((torch.exp(x) - 1.0) * 1e9)",
        "(torch.exp(x) - 1.0) / (torch.exp(x) - 1.0).abs().clamp_min(1e-12)",
    ],
)
def test_what_is_no_multiple_of_the_roundings_is_no_tolerance(code: str, tmp_path: Path) -> None:
    """The case accepted anything: a kernel that writes zeros passed it."""
    assert response(code, "zeros", tmp_path) < 1e-3


def test_large_multiples_of_a_rounding_are_the_error_of_right_kernels(tmp_path: Path) -> None:
    assert response("(torch.exp(x) - 1.0) * 1e9", "zeros", tmp_path) > 1.0


def test_results_that_do_not_cancel_keep_their_response(tmp_path: Path) -> None:
    assert response("torch.softmax(x, -1)", "normal", tmp_path) < 2 * UNIT


@pytest.mark.parametrize(("row_factor", "is_accepted"), [(1.0, True), (1.001, False), (0.0, False)])
def test_gradients_of_one_hot_weights_are_two_products_that_cancel(
    row_factor: float, is_accepted: bool, tmp_path: Path
) -> None:
    """PyTorch's formula gives 0, as for grouped heads in f32 on a GPU; fused kernels subtract two rounded products."""
    shapes = {"q": (2, 2, 8, 16), "k": (2, 2, 16, 16), "v": (2, 2, 16, 16)}
    text = """
    def f(q, k, v):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    """
    capture_text_once(text, "f", inputs=[tensor(name, *shape) for name, shape in shapes.items()], backward=True)
    case = make_case("backward", {**shapes, "grad_out": (2, 2, 8, 16)}, "large", tmp_path)
    q, k, v, gradient = (load(case.inputs, name) for name in ("q", "k", "v", "grad_out"))
    scores = np.where(np.tri(8, 16, dtype=bool), q @ k.swapaxes(-1, -2) / np.float32(4), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    assert set(np.unique(weights)) == {0, 1}
    of_row = (gradient * (weights @ v)).sum(-1, keepdims=True) * np.float32(row_factor)
    of_scores = weights * (gradient @ v.swapaxes(-1, -2) - of_row) / np.float32(4)
    found = {"grad_q": of_scores @ k, "grad_k": of_scores.swapaxes(-1, -2) @ q}
    assert np.abs(found["grad_q"]).max() > 1
    for expected in read_expectations(case):
        if expected.output in found:
            error = compare(found[expected.output], expected, factor=BACKWARD_FACTOR)
            assert is_within_budget(error) is is_accepted, error
