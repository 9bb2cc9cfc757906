"""Cases on disk: every family, the fp64 reference against an independent one, integers in range, gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel_lsp.errors import InternalError
from kernel_lsp.process.worker_client import CaseFiles, CaseTensor
from tests.worker.capturing import capture_text, make_case, tensor
from tests.worker.test_capture_graph import RMS_NORM

NUMPY = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "i64": np.int64, "bool": np.bool_}
SHAPES = {"x": (5, 3, 64), "weight": (64,)}


def load(tensors: tuple[CaseTensor, ...], name: str) -> np.ndarray:
    found = next(entry for entry in tensors if entry.name == name)
    return np.fromfile(found.path, dtype=NUMPY[found.dtype.value]).reshape(found.shape)


def rms_norm_case(family: str, folder: Path, *, operation: str = "forward", seed: int = 1) -> CaseFiles:
    capture_text(RMS_NORM, "RMSNorm", inputs=[tensor("x", 4, 6, 64)], backward=operation == "backward")
    return make_case(operation, SHAPES, family, folder, seed=seed)


@pytest.fixture(scope="module")
def _captured() -> None:
    capture_text(RMS_NORM, "RMSNorm", inputs=[tensor("x", 4, 6, 64)], backward=True)


@pytest.mark.usefixtures("_captured")
class TestFamilies:
    """Of one capture, so that it is made once."""

    def case(self, family: str, folder: Path, seed: int = 1) -> CaseFiles:
        return make_case("forward", SHAPES, family, folder, seed=seed)

    def x(self, family: str, folder: Path, seed: int = 1) -> np.ndarray:
        return load(self.case(family, folder, seed).inputs, "x")

    def test_the_reference_is_what_numpy_computes_in_float64(self, tmp_path: Path) -> None:
        case = self.case("normal", tmp_path)
        x, weight = (load(case.inputs, name).astype(np.float64) for name in ("x", "weight"))
        expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight
        np.testing.assert_allclose(load(case.expected, "out"), expected, rtol=1e-13)

    def test_the_native_result_is_near_but_rounded(self, tmp_path: Path) -> None:
        case = self.case("normal", tmp_path)
        rounding, expected = case.roundings["out"], load(case.expected, "out")
        assert 0 < rounding.native_max < 1e-5
        assert 0 < rounding.response_max < 1e-5
        assert (rounding.n_finite, rounding.reference_l2) == (expected.size, pytest.approx(np.linalg.norm(expected)))
        assert case.output_dtypes["out"] == "f32"

    def test_a_result_with_a_nan_is_there_itself(self, tmp_path: Path) -> None:
        case = self.case("special_nan", tmp_path)
        native, expected = load(case.native, "out"), load(case.expected, "out")
        np.testing.assert_array_equal(np.isnan(native), np.isnan(expected))
        assert case.roundings["out"].n_finite == np.isfinite(native).sum() < native.size

    def test_weights_of_ones_get_noise(self, tmp_path: Path) -> None:
        weight = load(self.case("normal", tmp_path).inputs, "weight")
        assert 0.02 < np.abs(weight - 1).max() < 1

    def test_seeds_differ_and_repeat(self, tmp_path: Path) -> None:
        first, second = self.x("normal", tmp_path, 1), self.x("normal", tmp_path, 2)
        assert not np.array_equal(first, second)
        np.testing.assert_array_equal(first, self.x("normal", tmp_path, 1))

    def test_uniform_is_within_zero_and_one(self, tmp_path: Path) -> None:
        x = self.x("uniform", tmp_path)
        assert 0 <= x.min() < x.max() < 1

    def test_scales(self, tmp_path: Path) -> None:
        assert 2.5 < self.x("scaled_up", tmp_path).std() < 3.5
        assert 0.008 < self.x("scaled_down", tmp_path).std() < 0.012
        assert np.abs(self.x("large", tmp_path)).min() >= 5000

    def test_negative_has_no_positive_value(self, tmp_path: Path) -> None:
        assert self.x("negative", tmp_path).max() <= 0

    def test_rows_are_constant_or_one_hot(self, tmp_path: Path) -> None:
        rows = self.x("constant_rows", tmp_path)
        np.testing.assert_array_equal(rows, np.broadcast_to(rows[..., :1], rows.shape))
        np.testing.assert_array_equal(self.x("one_hot", tmp_path).sum(-1), np.ones((5, 3)))

    def test_small_integers_are_integers(self, tmp_path: Path) -> None:
        x = self.x("small_integers", tmp_path)
        np.testing.assert_array_equal(x, np.round(x))
        assert set(np.unique(x)) == {-3, -2, -1, 0, 1, 2, 3}

    def test_a_quarter_is_negative_zero_and_no_zero_is_positive(self, tmp_path: Path) -> None:
        x = self.x("negative_zeros", tmp_path)
        assert 0.1 < (x == 0).mean() < 0.4
        assert np.signbit(x[x == 0]).all()

    def test_special_values_are_placed_once(self, tmp_path: Path) -> None:
        assert np.isnan(self.x("special_nan", tmp_path)).sum() == 1
        case = self.case("special_inf", tmp_path)
        assert np.isinf(load(case.inputs, "x")).sum() == 1
        assert not case.is_degenerate

    def test_needles_have_one_negative_in_every_row(self, tmp_path: Path) -> None:
        case = self.case("needles", tmp_path)
        np.testing.assert_array_equal((load(case.inputs, "x") < 0).sum(-1), np.ones((5, 3)))

    def test_halves_lie_between_integers(self, tmp_path: Path) -> None:
        assert set(np.unique(2 * self.x("halves", tmp_path))) == {-3, -2, -1, 0, 1, 2, 3}

    def test_huge_rows_have_one_sign_and_no_integer_of_32_bits_holds_them(self, tmp_path: Path) -> None:
        x = self.x("huge", tmp_path)
        assert np.abs(x).min() > 2**32
        assert (np.abs(np.sign(x).sum(-1)) == 64).all()

    @pytest.mark.parametrize("family", ["zeros", "tiny", "offset", "huge", "special_minus_inf"])
    def test_families_at_the_edges_say_something_of_an_ordinary_function(self, family: str, tmp_path: Path) -> None:
        assert not self.case(family, tmp_path).is_degenerate

    def test_given_needs_get_inputs(self, tmp_path: Path) -> None:
        case = self.case("given", tmp_path)
        assert (case.is_degenerate, case.reason) == (True, "the target has no get_inputs()")

    def test_an_unknown_family_is_our_error(self, tmp_path: Path) -> None:
        with pytest.raises(InternalError, match="no input family 'odd'"):
            self.case("odd", tmp_path)

    def test_a_shape_that_does_not_fit_is_our_error(self, tmp_path: Path) -> None:
        with pytest.raises(InternalError, match=r"has shape \[64\]"):
            make_case("forward", {"x": (5, 3, 64), "weight": (32,)}, "normal", tmp_path)

    def test_gradients_agree_with_finite_differences(self, tmp_path: Path) -> None:
        case = make_case("backward", SHAPES, "normal", tmp_path)
        assert [entry.name for entry in case.inputs] == ["grad_out", "x", "weight"]
        assert [entry.name for entry in case.expected] == ["grad_x", "grad_weight"]
        gradient, x, weight = (load(case.inputs, n).astype(np.float64) for n in ("grad_out", "x", "weight"))

        def total(x: np.ndarray) -> float:
            return float((gradient * x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight).sum())

        step = np.zeros_like(x)
        step[2, 1, 7] = 1e-6
        slope = (total(x + step) - total(x - step)) / 2e-6
        assert load(case.expected, "grad_x")[2, 1, 7] == pytest.approx(slope, rel=1e-6)
        assert case.roundings["grad_x"].native_max < 1e-4


def test_casts_inside_the_code_do_not_round_the_reference(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.half().float() + x.to(torch.bfloat16)", "f", inputs=[tensor("x", 4, 8)])
    case = make_case("forward", {"x": (4, 8)}, "normal", tmp_path)
    np.testing.assert_array_equal(load(case.expected, "out"), 2 * load(case.inputs, "x").astype(np.float64))
    assert case.roundings["out"].native_max > 0


def test_half_inputs_are_files_of_16_bits(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x * 3", "f", inputs=[tensor("x", 4, 8, dtype="f16")])
    case = make_case("forward", {"x": (4, 8)}, "normal", tmp_path)
    assert case.inputs[0].path.stat().st_size == 64
    np.testing.assert_array_equal(load(case.expected, "out"), 3 * load(case.inputs, "x").astype(np.float64))


def test_labels_stay_in_range_when_the_number_of_classes_shrinks(tmp_path: Path) -> None:
    text = """
    def f(logits, target):
        return F.cross_entropy(logits, target)

    def get_inputs():
        return [torch.randn(16, 10), torch.randint(0, 10, (16,))]
    """
    task = capture_text(text, "f")
    assert task.tensors[1].integer_range == (0, 10)
    case = make_case("forward", {"logits": (64, 3), "target": (64,)}, "normal", tmp_path)
    labels = load(case.inputs, "target")
    assert set(np.unique(labels)) == {0, 1, 2}


def test_given_makes_the_users_own_values_anew_for_each_seed(tmp_path: Path) -> None:
    text = "def f(x):\n    return x.log()\n\n\ndef get_inputs():\n    return [torch.rand(4, 8) + 5]"
    capture_text(text, "f")
    shapes = {"x": (4, 8)}
    first = load(make_case("forward", shapes, "given", tmp_path, seed=1).inputs, "x")
    second = load(make_case("forward", shapes, "given", tmp_path, seed=2).inputs, "x")
    assert first.min() >= 5
    assert not np.array_equal(first, second)
    assert make_case("forward", {"x": (3, 8)}, "given", tmp_path).is_degenerate


def test_a_family_that_gives_only_nan_says_so(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.log()", "f", inputs=[tensor("x", 4, 8)])
    case = make_case("forward", {"x": (4, 8)}, "negative", tmp_path)
    assert case.is_degenerate
    assert "not finite" in case.reason


def test_running_statistics_get_noise_and_stay_positive(tmp_path: Path) -> None:
    text = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.bn = nn.BatchNorm2d(8).eval()

        def forward(self, x):
            return self.bn(x)
    """
    capture_text(text, "Net", inputs=[tensor("x", 2, 8, 4, 4)], backward=True)
    shapes = {"x": (2, 8, 4, 4), **{f"bn_{name}": (8,) for name in ("weight", "bias", "running_mean", "running_var")}}
    case = make_case("backward", shapes, "normal", tmp_path)
    variance, mean = (load(case.inputs, f"bn_running_{name}") for name in ("var", "mean"))
    assert variance.min() >= 1
    assert np.abs(mean).max() > 0
    assert [entry.name for entry in case.expected] == ["grad_x", "grad_bn_weight", "grad_bn_bias"]


def test_a_buffer_that_the_code_updates_is_the_same_for_every_case(tmp_path: Path) -> None:
    text = """
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.arange(8.0))

        def forward(self, x):
            self.total.add_(x.sum(0))
            return x + self.total
    """
    capture_text(text, "Net", inputs=[tensor("x", 4, 8)])
    for seed in (1, 2):
        case = make_case("forward", {"x": (4, 8), "total": (8,)}, "normal", tmp_path, seed=seed)
        np.testing.assert_array_equal(load(case.inputs, "total"), np.arange(8))
        assert case.roundings["out"].native_max < 1e-5


def test_integer_and_bool_results_are_exact(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.argmax(-1), x > 0", "f", inputs=[tensor("x", 4, 8)])
    case = make_case("forward", {"x": (4, 8)}, "normal", tmp_path)
    x = load(case.inputs, "x")
    np.testing.assert_array_equal(load(case.expected, "out_0"), x.argmax(-1))
    np.testing.assert_array_equal(load(case.expected, "out_1"), x > 0)
    assert list(case.output_dtypes.values()) == ["i64", "bool"]


@pytest.mark.parametrize(("family", "is_told"), [("special_nan", False), ("huge", False), ("large", True)])
def test_what_an_integer_makes_of_nan_and_of_what_it_cannot_hold_is_nobodys_fault(
    family: str, is_told: bool, tmp_path: Path
) -> None:
    capture_text("def f(x):\n    return torch.round(x).to(torch.int32)", "f", inputs=[tensor("x", 4, 8)])
    assert make_case("forward", {"x": (4, 8)}, family, tmp_path).is_degenerate is not is_told


def test_a_nan_counts_where_integers_are_no_conversions(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.argmax(-1)", "f", inputs=[tensor("x", 4, 8)])
    assert not make_case("forward", {"x": (4, 8)}, "special_nan", tmp_path).is_degenerate


def test_extreme_inputs_say_nothing_where_pytorch_itself_is_far_off(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return (x * x * x * x).sum(-1)", "f", inputs=[tensor("x", 4, 8)])
    case = make_case("forward", {"x": (4, 8)}, "huge", tmp_path)
    assert (case.is_degenerate, case.reason) == (
        True,
        "the result at the declared dtype is mostly not finite for these inputs",
    )


@pytest.mark.parametrize(("code", "is_excused"), [("torch.round(x)", False), ("x.exp()", True)])
def test_at_ties_the_other_side_excuses_nothing(code: str, is_excused: bool, tmp_path: Path) -> None:
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 4, 8)])
    rounding = make_case("forward", {"x": (4, 8)}, "halves", tmp_path).roundings["out"]
    assert (rounding.response_max > 0) is is_excused


def test_a_sparse_family_leaves_lesser_inputs_normal(tmp_path: Path) -> None:
    capture_text("def f(x, w):\n    return x * w", "f", inputs=[tensor("x", 4, 64), tensor("w", 64)])
    case = make_case("forward", {"x": (4, 64), "w": (64,)}, "one_hot", tmp_path)
    assert (load(case.inputs, "x") != 0).sum() == 4
    assert (load(case.inputs, "w") != 0).all()
