"""Cases on disk: every family, the fp64 reference against an independent one, integers in range, gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kernel_lsp.errors import InternalError
from kernel_lsp.process.case_files import CaseFiles, CaseOutput, CaseTensor, ChosenFrom
from kernel_lsp.verify.oracle.case_store import read_expectations
from kernel_lsp.verify.oracle.compare import compare, is_within_budget
from tests.worker.capturing import capture_text, make_case, tensor
from tests.worker.test_capture_graph import RMS_NORM

FLOATS = {"f64": np.float64, "f32": np.float32, "f16": np.float16}
NUMPY = {**FLOATS, "i64": np.int64, "i32": np.int32, "u8": np.uint8, "bool": np.bool_}
ROWS = ("minus_inf_rows", "lowest_rows")
SHAPES = {"x": (5, 3, 64), "weight": (64,)}


def load(tensors: tuple[CaseTensor, ...], name: str) -> np.ndarray:
    found = next(entry for entry in tensors if entry.name == name)
    return np.fromfile(found.path, dtype=NUMPY[found.dtype.value]).reshape(found.shape)


def output_of(case: CaseFiles, name: str) -> CaseOutput:
    return next(output for output in case.outputs if output.name == name)


def reference_of(case: CaseFiles, name: str) -> np.ndarray:
    return load((output_of(case, name).reference,), name)


def native_of(case: CaseFiles, name: str) -> np.ndarray:
    native = output_of(case, name).native
    assert native is not None
    return load((native,), name)


def chosen_of(case: CaseFiles, name: str) -> ChosenFrom:
    chosen = output_of(case, name).chosen
    assert chosen is not None
    return chosen


def unspecified(case: CaseFiles, name: str) -> np.ndarray:
    """Return the mask of elements for which any value is correct; of the others, where the case has none."""
    output = output_of(case, name)
    return np.zeros(output.reference.shape, bool) if output.unspecified is None else load((output.unspecified,), name)


def rms_norm_case(family: str, folder: Path, *, operation: str = "forward", seed: int = 1) -> CaseFiles:
    capture_text(RMS_NORM, "RMSNorm", inputs=[tensor("x", 4, 6, 64)], backward=operation == "backward")
    return make_case(operation, SHAPES, family, folder, seed=seed)


@pytest.fixture(scope="module")
def _captured() -> None:
    capture_text(RMS_NORM, "RMSNorm", inputs=[tensor("x", 4, 6, 64)], backward=True)


@pytest.mark.usefixtures("_captured")
class TestFamilies:
    """Share one capture, so that it is made once."""

    def case(self, family: str, folder: Path, seed: int = 1) -> CaseFiles:
        return make_case("forward", SHAPES, family, folder, seed=seed)

    def x(self, family: str, folder: Path, seed: int = 1) -> np.ndarray:
        return load(self.case(family, folder, seed).inputs, "x")

    def test_the_reference_is_what_numpy_computes_in_float64(self, tmp_path: Path) -> None:
        case = self.case("normal", tmp_path)
        x, weight = (load(case.inputs, name).astype(np.float64) for name in ("x", "weight"))
        expected = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight
        np.testing.assert_allclose(reference_of(case, "out"), expected, rtol=1e-13)

    def test_the_native_result_is_near_but_rounded(self, tmp_path: Path) -> None:
        case = self.case("normal", tmp_path)
        rounding, expected = output_of(case, "out").rounding, reference_of(case, "out")
        assert 0 < rounding.native_max < 1e-5
        assert 0 < rounding.response_max < 1e-5
        assert (rounding.n_finite, rounding.reference_l2) == (expected.size, pytest.approx(np.linalg.norm(expected)))
        assert output_of(case, "out").dtype == "f32"

    def test_a_result_with_a_nan_is_there_itself(self, tmp_path: Path) -> None:
        case = self.case("special_nan", tmp_path)
        native, expected = native_of(case, "out"), reference_of(case, "out")
        np.testing.assert_array_equal(np.isnan(native), np.isnan(expected))
        assert output_of(case, "out").rounding.n_finite == np.isfinite(native).sum() < native.size

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

    def test_special_values_are_two_of_one_row_and_the_first_of_another(self, tmp_path: Path) -> None:
        is_nan = np.isnan(self.x("special_nan", tmp_path)).reshape(-1, 64)
        assert sorted(is_nan.sum(-1)) == [0] * 13 + [1, 2]
        assert is_nan[is_nan.sum(-1) == 1][0, 0]

    def test_a_special_value_for_other_inputs_needs_another_input(self, tmp_path: Path) -> None:
        assert self.case("special_others", tmp_path).is_degenerate

    def test_minute_numbers_have_many_magnitudes(self, tmp_path: Path) -> None:
        magnitudes = np.abs(self.x("minute", tmp_path))
        assert 1e-18 <= magnitudes.min() < 1e-17 < 1e-13 < magnitudes.max() <= 1e-12

    def test_needles_have_one_negative_in_every_row(self, tmp_path: Path) -> None:
        case = self.case("needles", tmp_path)
        np.testing.assert_array_equal((load(case.inputs, "x") < 0).sum(-1), np.ones((5, 3)))

    def test_the_greatest_and_the_least_come_last_at_odd_places(self, tmp_path: Path) -> None:
        x = self.x("late_extremes", tmp_path).reshape(-1)
        assert (x.argmax(), x.argmin(), len(x)) == (959, 957, 960)
        assert x.min() > 0
        assert np.abs(x[:480] - 1).max() < 0.5

    @pytest.mark.parametrize(("family", "axis"), [("tied_rows", -1), ("tied_columns", -2)])
    def test_two_or_three_are_equal_and_the_greatest_or_the_least(self, family: str, axis: int, tmp_path: Path) -> None:
        x = np.moveaxis(self.x(family, tmp_path), axis, -1).reshape(-1, self.x(family, tmp_path).shape[axis])
        n_equal = (x == x.max(-1, keepdims=True)).sum(-1)
        assert set(n_equal) <= {1, 2, 3}
        assert (n_equal >= 2).mean() > 0.5
        assert ((x == x.min(-1, keepdims=True)).sum(-1) >= 2).any()

    def test_halves_lie_between_integers(self, tmp_path: Path) -> None:
        x = self.x("halves", tmp_path)
        assert {-1.5, -0.5, 0.5, 1.5, 1 / 16, 3 / 16} <= set(np.unique(x))
        np.testing.assert_array_equal(32 * x, np.round(32 * x))

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
        with pytest.raises(InternalError, match="is 32, and the capture has 64 there"):
            make_case("forward", {"x": (5, 3, 64), "weight": (32,)}, "normal", tmp_path)

    def test_gradients_agree_with_finite_differences(self, tmp_path: Path) -> None:
        case = make_case("backward", SHAPES, "normal", tmp_path)
        assert [entry.name for entry in case.inputs] == ["grad_out", "x", "weight"]
        assert [output.name for output in case.outputs] == ["grad_x", "grad_weight"]
        gradient, x, weight = (load(case.inputs, n).astype(np.float64) for n in ("grad_out", "x", "weight"))

        def total(x: np.ndarray) -> float:
            return float((gradient * x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight).sum())

        step = np.zeros_like(x)
        step[2, 1, 7] = 1e-6
        slope = (total(x + step) - total(x - step)) / 2e-6
        assert reference_of(case, "grad_x")[2, 1, 7] == pytest.approx(slope, rel=1e-6)
        assert output_of(case, "grad_x").rounding.native_max < 1e-4


def test_casts_inside_the_code_do_not_round_the_reference(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.half().float() + x.to(torch.bfloat16)", "f", inputs=[tensor("x", 4, 8)])
    case = make_case("forward", {"x": (4, 8)}, "normal", tmp_path)
    np.testing.assert_array_equal(reference_of(case, "out"), 2 * load(case.inputs, "x").astype(np.float64))
    assert output_of(case, "out").rounding.native_max > 0


def test_half_inputs_are_files_of_16_bits(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x * 3", "f", inputs=[tensor("x", 4, 8, dtype="f16")])
    case = make_case("forward", {"x": (4, 8)}, "normal", tmp_path)
    assert case.inputs[0].path.stat().st_size == 64
    np.testing.assert_array_equal(reference_of(case, "out"), 3 * load(case.inputs, "x").astype(np.float64))


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
    assert [output.name for output in case.outputs] == ["grad_x", "grad_bn_weight", "grad_bn_bias"]


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
        assert output_of(case, "out").rounding.native_max < 1e-5


def test_integer_and_bool_results_are_exact(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.argmax(-1), x > 0", "f", inputs=[tensor("x", 4, 8)])
    case = make_case("forward", {"x": (4, 8)}, "normal", tmp_path)
    x = load(case.inputs, "x")
    np.testing.assert_array_equal(reference_of(case, "out_0"), x.argmax(-1))
    np.testing.assert_array_equal(reference_of(case, "out_1"), x > 0)
    assert [output.dtype for output in case.outputs] == ["i64", "bool"]


@pytest.mark.parametrize(("family", "is_told"), [("special_nan", False), ("huge", False), ("large", True)])
def test_what_an_integer_makes_of_nan_and_of_what_it_cannot_hold_is_nobodys_fault(
    family: str, is_told: bool, tmp_path: Path
) -> None:
    capture_text("def f(x):\n    return torch.round(x).to(torch.int32)", "f", inputs=[tensor("x", 4, 8)])
    assert make_case("forward", {"x": (4, 8)}, family, tmp_path).is_degenerate is not is_told


def test_a_nan_counts_where_integers_are_no_conversions(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.argmax(-1)", "f", inputs=[tensor("x", 4, 8)])
    assert not make_case("forward", {"x": (4, 8)}, "special_nan", tmp_path).is_degenerate


def test_the_deviations_of_the_lowest_numbers_have_squares_in_f32(tmp_path: Path) -> None:
    """PyTorch on a CPU had 3.8e31, by f64, and every kernel an infinity."""
    capture_text("def f(x):\n    return x.std()", "f", inputs=[tensor("x", 4, 8)])
    lowest = load(make_case("forward", {"x": (4, 8)}, "lowest_rows", tmp_path).inputs, "x").min()
    assert -1e18 < lowest < -1e9


@pytest.mark.parametrize(("family", "is_made"), [("normal", True), ("small_integers", False)])
def test_gradients_through_an_order_are_asked_for_where_no_elements_are_equal(
    family: str, is_made: bool, tmp_path: Path
) -> None:
    """PyTorch gives the gradient to the one of two equal elements, and a kernel of `topk` to the other."""
    capture_text("def f(x):\n    return x.topk(3).values", "f", inputs=[tensor("x", 7, 9)], backward=True)
    case = make_case("backward", {"x": (7, 9), "grad_out": (7, 3)}, family, tmp_path)
    assert case.is_degenerate != is_made
    assert not make_case("forward", {"x": (7, 9)}, family, tmp_path).is_degenerate


@pytest.mark.parametrize(
    ("code", "is_made"),
    [
        ("(x - x.amin(-1, True)) / (x.amax(-1, True) - x.amin(-1, True))", True),
        ("(x - x.min()) / (x.max() - x.min())", True),
        ("x / x.norm(dim=-1, keepdim=True)", True),
        ("x.sum(-1).log()", False),  # a logarithm by another formula may be NaN, where this is infinite
    ],
)
def test_rows_of_zeros_count_where_pytorch_divides_zero_by_zero(code: str, is_made: bool, tmp_path: Path) -> None:
    """A kernel that wrote 0.5 for constant rows was correct."""
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 4, 8)])
    case = make_case("forward", {"x": (4, 8)}, "zeros", tmp_path)
    assert not is_made or np.isnan(reference_of(case, "out")).all()
    assert case.is_degenerate != is_made


def test_extreme_inputs_say_nothing_where_pytorch_itself_is_far_off(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return (x * x * x * x).sum(-1)", "f", inputs=[tensor("x", 4, 8)])
    case = make_case("forward", {"x": (4, 8)}, "huge", tmp_path)
    assert (case.is_degenerate, case.reason) == (
        True,
        "the result at the declared dtype is mostly not finite for these inputs",
    )


def test_ordinary_inputs_for_which_pytorch_overflows_are_judged_by_fp64(tmp_path: Path) -> None:
    """A label-smoothed cross entropy of (4096, 32000) in f16 is infinite in PyTorch: it had no time on a GPU."""
    text = "def f(x, y):\n    return F.cross_entropy(x, y, label_smoothing=0.1)"
    capture_text(text, "f", inputs=[tensor("x", 4, 32000, dtype="f16"), tensor("y", 4, dtype="i64", within=(0, 32000))])
    case = make_case("forward", {"x": (4, 32000), "y": (4,)}, "normal", tmp_path)
    assert not case.is_degenerate
    assert np.isinf(native_of(case, "out")).all()
    (expected,) = read_expectations(case)
    exact = float(expected.reference.reshape(-1)[0])
    for found, is_right in ((exact, True), (np.inf, True), (0.9 * exact, False), (np.nan, False), (-np.inf, False)):
        error = compare(np.full(expected.reference.shape, found, np.float16), expected, factor=2.0)
        assert is_within_budget(error) is is_right, found


@pytest.mark.parametrize(("code", "is_excused"), [("torch.round(x)", False), ("x.exp()", True)])
def test_at_ties_the_other_side_excuses_nothing(code: str, is_excused: bool, tmp_path: Path) -> None:
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 4, 8)])
    rounding = output_of(make_case("forward", {"x": (4, 8)}, "halves", tmp_path), "out").rounding
    assert (rounding.response_max > 0) is is_excused


def test_a_sparse_family_leaves_lesser_inputs_normal(tmp_path: Path) -> None:
    capture_text("def f(x, w):\n    return x * w", "f", inputs=[tensor("x", 4, 64), tensor("w", 64)])
    case = make_case("forward", {"x": (4, 64), "w": (64,)}, "one_hot", tmp_path)
    assert (load(case.inputs, "x") != 0).sum() == 4
    assert (load(case.inputs, "w") != 0).all()


def test_a_nan_of_one_input_is_not_hidden_by_that_of_a_larger_one(tmp_path: Path) -> None:
    capture_text("def f(x, w):\n    return x * w", "f", inputs=[tensor("x", 4, 64), tensor("w", 64)])
    inputs = make_case("forward", {"x": (4, 64), "w": (64,)}, "special_others", tmp_path).inputs
    assert [np.isnan(load(inputs, name)).sum() for name in ("x", "w")] == [0, 2]


def test_infinities_are_in_every_input(tmp_path: Path) -> None:
    capture_text("def f(x, w):\n    return x * w", "f", inputs=[tensor("x", 4, 64), tensor("w", 64)])
    inputs = make_case("forward", {"x": (4, 64), "w": (64,)}, "special_inf", tmp_path).inputs
    assert [np.isinf(load(inputs, name)).sum() for name in ("x", "w")] == [3, 2]


def test_a_nan_that_meets_a_zero_of_the_code_may_be_left_out(tmp_path: Path) -> None:
    capture_text("def f(a, b):\n    return torch.diag(a) @ b", "f", inputs=[tensor("a", 6), tensor("b", 6, 64)])
    case = make_case("forward", {"a": (6,), "b": (6, 64)}, "special_nan", tmp_path)
    b, expected, native = load(case.inputs, "b"), reference_of(case, "out"), native_of(case, "out")
    np.testing.assert_array_equal(np.isnan(expected), np.isnan(b))
    assert np.isnan(native).sum() > np.isnan(b).sum()


def test_an_infinity_is_never_left_out(tmp_path: Path) -> None:
    """A function that gives the same for all ordinary numbers is no zero."""
    capture_text("def f(x):\n    return torch.relu(x.sum(-1) - 10_000)", "f", inputs=[tensor("x", 4, 64)])
    case = make_case("forward", {"x": (4, 64)}, "special_inf", tmp_path)
    has_infinity = np.isinf(load(case.inputs, "x")).any(-1)
    assert has_infinity.sum() == 2
    np.testing.assert_array_equal(native_of(case, "out"), np.where(has_infinity, np.inf, 0.0))
    np.testing.assert_array_equal(reference_of(case, "out"), np.where(has_infinity, np.nan, 0.0))


@pytest.mark.parametrize(("code", "is_open"), [("x.topk(3)[1]", True), ("x.argmax(-1)", False)])
def test_the_places_of_equal_elements_are_left_open_where_pytorch_leaves_them(
    code: str, is_open: bool, tmp_path: Path
) -> None:
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 16, 8)])
    case = make_case("forward", {"x": (16, 8)}, "small_integers", tmp_path)
    x = load(case.inputs, "x")
    n_largest = (x == x.max(-1, keepdims=True)).sum(-1)
    assert (n_largest > 1).any()
    ties = (
        load((chosen_of(case, "out").ties,), "out").reshape(16, -1)[:, 0]
        if output_of(case, "out").chosen
        else np.zeros(16, bool)
    )
    np.testing.assert_array_equal(ties, (n_largest > 1) & is_open)
    assert not unspecified(case, "out").any()


def test_a_number_of_pytorchs_for_the_gradient_of_a_nan_may_be_nan(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.abs()", "f", inputs=[tensor("x", 8, 16)], backward=True)
    case = make_case("backward", {"x": (8, 16), "grad_out": (8, 16)}, "special_nan", tmp_path)
    is_nan = np.isnan(load(case.inputs, "x"))
    assert is_nan.any()
    np.testing.assert_array_equal(unspecified(case, "grad_x"), is_nan)


@pytest.mark.parametrize(
    ("family", "is_as_it_should_be"),
    [
        ("normal", lambda g: 0.1 < np.abs(g).max() < 10),
        ("negative", lambda g: 0 < np.abs(g).max() < 1e-6),
        ("constant_rows", lambda g: np.abs(g).max() > 1e3),
        ("sparse_gradients", lambda g: bool((g.sum(-1) == 1).all()) and set(np.unique(g)) == {0.0, 1.0}),
    ],
)
def test_gradients_of_results_are_of_several_kinds(
    family: str, is_as_it_should_be: Callable[[np.ndarray], bool], tmp_path: Path
) -> None:
    capture_text("def f(x):\n    return x * 2", "f", inputs=[tensor("x", 8, 16)], backward=True)
    case = make_case("backward", {"x": (8, 16), "grad_out": (8, 16)}, family, tmp_path)
    assert is_as_it_should_be(load(case.inputs, "grad_out"))


def test_infinities_become_the_largest_numbers_of_the_declared_dtype(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return torch.nan_to_num(x)", "f", inputs=[tensor("x", 8, 16)])
    case = make_case("forward", {"x": (8, 16)}, "special_inf", tmp_path)
    assert reference_of(case, "out").max() == np.finfo(np.float32).max


def test_ids_that_a_comment_limits_by_a_dim_go_along_with_it(tmp_path: Path) -> None:
    inputs = [tensor("ids", 96, dtype="i64", within=(0, 50)), tensor("table", 50, 8)]
    capture_text("def f(ids, table):\n    return F.embedding(ids, table)", "f", inputs=inputs)
    case = make_case("forward", {"ids": (400,), "table": (1000, 8)}, "normal", tmp_path)
    assert load(case.inputs, "ids").max() > 500


@pytest.mark.parametrize(
    ("code", "is_open"),
    [
        ("torch.relu(x)", True),
        ("F.hardtanh(x)", True),
        ("x.clamp(min=0)", True),
        ("x * x", False),
        ("F.silu(x)", False),
    ],
)
def test_a_gradient_that_a_nan_decides_about_is_left_open(code: str, is_open: bool, tmp_path: Path) -> None:
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 8, 16)], backward=True)
    case = make_case("backward", {"x": (8, 16), "grad_out": (8, 16)}, "special_nan", tmp_path)
    decides = np.isnan(load(case.inputs, "x"))
    assert decides.any()
    np.testing.assert_array_equal(unspecified(case, "grad_x"), decides & is_open)


@pytest.mark.parametrize(
    ("code", "is_open"),
    [
        ("(x * (127.0 / x.abs().amax(-1, keepdim=True))).round().to(torch.int8)", True),
        ("torch.floor(x / x.abs().amax(-1, keepdim=True) * 100)", True),
        ("(x * 16).round()", False),
        ("x.floor()", False),
        ("(x * (127.0 / x.abs().amax(-1, keepdim=True))).round().sum(-1)", False),
        ("(x * (1e6 / x.abs().amax(-1, keepdim=True))).round()", False),
    ],
)
def test_what_a_computation_leaves_beside_a_jump_is_open(code: str, is_open: bool, tmp_path: Path) -> None:
    """Few elements of many, or none; and no scaled input is: it is what it is."""
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 4, 8)])
    case = make_case("forward", {"x": (4000, 64)}, "normal", tmp_path)
    n_open = unspecified(case, "out").sum()
    assert (0 < n_open < 100) if is_open else n_open == 0


def test_the_values_of_what_is_in_some_order_are_not_open(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return torch.topk(x, 3)", "f", inputs=[tensor("x", 16, 8)])
    case = make_case("forward", {"x": (16, 8)}, "small_integers", tmp_path)
    assert load((chosen_of(case, "out_1").ties,), "out_1").any()
    assert not unspecified(case, "out_0").any()


@pytest.mark.parametrize(
    ("code", "left"),
    [
        ("torch.relu(x)", 0.0),
        ("torch.maximum(torch.full_like(x, 0.5), x)", 0.5),
        ("torch.minimum(x, torch.full_like(x, -2.0))", -2.0),
        ("x.clamp(min=-1.5)", -1.5),
        ("F.elu(x)", 0.0),
        ("F.selu(x)", 0.0),
        ("F.leaky_relu(x, 0.1)", 0.0),
        ("x * 2", None),
        ("F.silu(x)", None),
    ],
)
def test_a_nan_may_be_left_out_by_maxima_and_minima(code: str, left: float | None, tmp_path: Path) -> None:
    """The reference has what is left, PyTorch's own result the NaN."""
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 8, 16)])
    case = make_case("forward", {"x": (8, 16)}, "special_nan", tmp_path)
    is_nan = np.isnan(load(case.inputs, "x"))
    found = reference_of(case, "out")[is_nan]
    assert np.isnan(native_of(case, "out")[is_nan]).all()
    assert np.isnan(found).all() if left is None else (found == left).all()
    assert output_of(case, "out").may_lose_nans == (left is not None)


def test_nothing_is_left_out_of_what_is_the_same_for_all_inputs(tmp_path: Path) -> None:
    """Check that other numbers in the NaN's place do not say that the code left it out."""
    capture_text(
        "def f(x):\n    y = x.sum(-1, keepdim=True)\n    return y - y.mean(1)", "f", inputs=[tensor("x", 8, 16)]
    )
    case = make_case("forward", {"x": (8, 16)}, "special_nan", tmp_path)
    assert np.isnan(reference_of(case, "out")).any()


def test_what_a_mask_leaves_out_is_left_out_beside_numbers(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.triu() @ torch.ones_like(x)", "f", inputs=[tensor("x", 16, 16)])
    case = make_case("forward", {"x": (16, 16)}, "special_nan", tmp_path)
    has_nan = np.isnan(np.triu(load(case.inputs, "x"))).any(-1)
    assert (np.isnan(reference_of(case, "out")).any(-1) == has_nan).all()


@pytest.mark.parametrize(
    ("code", "family"),
    [("x.logsumexp(-1)", "special_inf"), ("x.logsumexp(-1)", "minus_inf_rows"), ("x * 2", "special_inf")],
)
def test_beside_an_infinity_nan_is_right_and_no_number(code: str, family: str, tmp_path: Path) -> None:
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 4, 8)])
    case = make_case("forward", {"x": (4, 8)}, family, tmp_path)
    is_infinite = np.isinf(native_of(case, "out"))
    assert is_infinite.any()
    np.testing.assert_array_equal(np.isnan(reference_of(case, "out")), is_infinite)


def test_beside_infinite_factors_nan_is_as_good_as_a_number(tmp_path: Path) -> None:
    inputs = [tensor("x", 8, 16), tensor("y", 16, 8)]
    capture_text("def f(x, y):\n    return torch.sigmoid(x @ y)", "f", inputs=inputs)
    case = make_case("forward", {"x": (8, 16), "y": (16, 8)}, "special_inf", tmp_path)
    x, y = load(case.inputs, "x"), load(case.inputs, "y")
    reached = np.isinf(x).any(-1, keepdims=True) | np.isinf(y).any(0, keepdims=True)
    is_number = np.isfinite(native_of(case, "out"))
    np.testing.assert_array_equal(np.isnan(reference_of(case, "out"))[is_number], reached[is_number])
    assert (reached & is_number).any()


def test_where_an_extreme_of_nothing_but_nan_begins_is_open(tmp_path: Path) -> None:
    """With minus infinity, or with the lowest number, whose tanh are the same, and whose sums are not."""
    capture_text("def f(x):\n    return torch.tanh((x * 0 + x).amax(-1))", "f", inputs=[tensor("x", 8, 1)])
    case = make_case("forward", {"x": (8, 1)}, "special_nan", tmp_path)
    is_nan = np.isnan(load(case.inputs, "x")[:, 0])
    assert (reference_of(case, "out")[is_nan] == -1.0).all()
    capture_text("def f(x):\n    return (x * 0 + x).amax(-1)", "f", inputs=[tensor("x", 8, 1)])
    case = make_case("forward", {"x": (8, 1)}, "special_nan", tmp_path / "sums")
    np.testing.assert_array_equal(unspecified(case, "out"), is_nan)


def test_a_number_that_the_code_asks_for_is_not_moved(tmp_path: Path) -> None:
    """One rounding beside it is another number: what PyTorch gives there says nothing about rounding."""
    code = "def f(x):\n    return torch.where(x == 0.5, torch.full_like(x, 1000.0), x)"
    capture_text(code, "f", inputs=[tensor("x", 64, 64)])
    case = make_case("forward", {"x": (64, 64)}, "halves", tmp_path)
    assert (reference_of(case, "out") == 1000.0).any()
    assert output_of(case, "out").rounding.response_max < 1e-3


def test_of_a_nan_between_two_limits_any_number_is_left(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.clamp(-1.0, 2.0)", "f", inputs=[tensor("x", 8, 16)])
    case = make_case("forward", {"x": (8, 16)}, "special_nan", tmp_path)
    is_nan = np.isnan(load(case.inputs, "x"))
    np.testing.assert_array_equal(unspecified(case, "out"), is_nan)


def test_a_row_s_maximum_may_be_that_of_its_numbers_and_be_where_that_is(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.max(-1)", "f", inputs=[tensor("x", 8, 16)])
    case = make_case("forward", {"x": (8, 16)}, "special_nan", tmp_path)
    x = load(case.inputs, "x")
    has_nan = np.isnan(x).any(-1)
    np.testing.assert_array_equal(reference_of(case, "out_0"), np.nanmax(x.astype(np.float64), -1))
    assert np.isnan(native_of(case, "out_0"))[has_nan].all()
    np.testing.assert_array_equal(reference_of(case, "out_1"), np.nanargmax(x, -1))
    np.testing.assert_array_equal(native_of(case, "out_1"), np.argmax(x, -1))


def test_where_nothing_but_nan_is_there_an_infinity_may_be_left(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.amax(-1), torch.log(torch.relu(x))", "f", inputs=[tensor("x", 8, 1)])
    case = make_case("forward", {"x": (8, 1)}, "special_nan", tmp_path)
    is_nan = np.isnan(load(case.inputs, "x"))
    assert is_nan.any()
    np.testing.assert_array_equal(unspecified(case, "out_0"), is_nan[:, 0])  # the lowest number may be left, too
    assert np.isneginf(reference_of(case, "out_1")[is_nan]).all()


@pytest.mark.parametrize(
    ("code", "begins_with"),
    [("x.amax(-1)", -np.finfo(np.float32).max), ("x.amin(-1)", np.nan), ("x.sum(-1)", np.nan)],
)
def test_a_maximum_may_begin_with_the_lowest_number(code: str, begins_with: float, tmp_path: Path) -> None:
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 8, 16)])
    case = make_case("forward", {"x": (8, 16)}, "minus_inf_rows", tmp_path)
    is_infinite = np.isneginf(load(case.inputs, "x")).all(-1)
    assert is_infinite.any()
    assert (native_of(case, "out")[is_infinite] == -np.inf).all()
    np.testing.assert_array_equal(reference_of(case, "out")[is_infinite], begins_with)


@pytest.mark.parametrize(
    ("code", "family", "is_made"),
    [
        ("x.amin(-1)", "highest_rows", True),
        ("-(-x).amax(-1)", "highest_rows", True),
        ("x.sum(-1)", "highest_rows", False),
        ("torch.log_softmax(x, -1)", "low", True),
        ("x.amax(-1)", "low", False),
    ],
)
def test_some_families_are_for_code_that_could_be_wrong_there(
    code: str, family: str, is_made: bool, tmp_path: Path
) -> None:
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 8, 16)])
    assert make_case("forward", {"x": (8, 16)}, family, tmp_path).is_degenerate != is_made


@pytest.mark.parametrize(("code", "family"), [("x.argmax(-1)", "lowest_rows"), ("x.argmin(-1)", "highest_rows")])
def test_the_extreme_of_a_row_of_the_lowest_numbers_is_its_last(code: str, family: str, tmp_path: Path) -> None:
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 8, 16)])
    case = make_case("forward", {"x": (8, 16)}, family, tmp_path)
    is_far = (np.abs(load(case.inputs, "x")) > 1e31).all(-1)
    assert is_far.any()
    assert (reference_of(case, "out")[is_far] == 15).all()


@pytest.mark.parametrize(
    ("code", "lowest"),
    [
        ("F.silu(x[:, :8]) * x[:, 8:]", -(2.0**62)),
        ("torch.sigmoid(x) * 2.0", -(2.0**106)),
        ("x.amax(-1)", -(2.0**106)),
        ("torch.softmax(x, -1)", -(2.0**99)),
    ],
)
def test_products_of_the_lowest_numbers_are_numbers_where_a_gate_multiplies(
    code: str, lowest: float, tmp_path: Path
) -> None:
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 8, 16)])
    assert load(make_case("forward", {"x": (8, 16)}, "lowest_rows", tmp_path).inputs, "x").min() == lowest


@pytest.mark.parametrize(("code", "edge"), [("F.hardtanh(x)", 1.0), ("F.relu(x)", 0.0), ("F.hardswish(x)", 3.0)])
def test_a_threshold_that_exact_numbers_lie_on_excuses_nothing(code: str, edge: float, tmp_path: Path) -> None:
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 8, 16)], backward=True)
    case = make_case("backward", {"x": (8, 16), "grad_out": (8, 16)}, "small_integers", tmp_path)
    assert (load(case.inputs, "x") == edge).any()
    assert output_of(case, "grad_x").rounding.response_max < 1e-5


def test_before_an_exponential_a_product_may_lose_what_a_sum_of_its_terms_loses(tmp_path: Path) -> None:
    """Compare with the product alone, whose own sums bound it."""
    responses = []
    for after in ("torch.softmax({}, -1)", "{} * 1.0"):
        code = after.format("(x @ w)")
        capture_text(f"def f(x, w):\n    return {code}", "f", inputs=[tensor("x", 8, 64), tensor("w", 64, 16)])
        rounding = output_of(
            make_case("forward", {"x": (8, 64), "w": (64, 16)}, "far_negative", tmp_path), "out"
        ).rounding
        responses.append(rounding.response_l2 / max(rounding.reference_l2, 1e-30))
    assert responses[0] > 1e-6 > responses[1]


@pytest.mark.parametrize(("seed", "may_differ"), [(1366, True), (1, False)])
@pytest.mark.parametrize("code", ["F.scaled_dot_product_attention(q, k, v)", "torch.softmax(q @ k.mT / 4, -1) @ v"])
def test_a_kernel_may_choose_the_other_of_two_nearly_equal_scores(
    code: str, seed: int, may_differ: bool, tmp_path: Path
) -> None:
    """Scores of the first seed reach 2.4e8, whose f32 numbers are 16 apart, and two largest ones of a query are 11
    apart; of the other seed none are as near."""
    shapes = {"q": (4, 512, 16), "k": (4, 64, 16), "v": (4, 64, 16)}
    capture_text(f"def f(q, k, v):\n    return {code}", "f", inputs=[tensor(n, *shape) for n, shape in shapes.items()])
    rounding = output_of(make_case("forward", shapes, "large", tmp_path, seed=seed), "out").rounding
    assert (rounding.response_max > 1e3) is may_differ


@pytest.mark.parametrize(
    ("dtype", "family", "is_open"),
    [("bf16", "large", True), ("f16", "large", True), ("f32", "large", False), ("bf16", "scaled_up", False)],
)
def test_gradients_of_an_attention_are_open_where_f32_cannot_tell_scores_from_their_sums(
    dtype: str, family: str, is_open: bool, tmp_path: Path
) -> None:
    shapes = dict.fromkeys("qkv", (2, 2, 48, 16))
    inputs = [tensor(name, *shape, dtype=dtype) for name, shape in shapes.items()]
    code = "F.scaled_dot_product_attention(q, k, v, is_causal=True)"
    capture_text(f"def f(q, k, v):\n    return {code}", "f", inputs=inputs, backward=True)
    forward = make_case("forward", shapes, family, tmp_path)
    assert not unspecified(forward, "out").any()
    backward = make_case("backward", {**shapes, "grad_out": (2, 2, 48, 16)}, family, tmp_path)
    assert {bool(unspecified(backward, f"grad_{name}").all()) for name in "qkv"} == {is_open}


def test_batch_norms_of_two_values_amplify_the_errors_of_sums(tmp_path: Path) -> None:
    """Each leaves the sign of a difference, and what is lost of it where the two are near each other. PyTorch's own
    error is larger by chance for one of these seeds."""
    loop = "    for _ in range(4):\n        x = F.batch_norm(x, None, None, training=True) @ w\n"
    text = f"def f(x, w):\n{loop}    return x"
    capture_text(text, "f", inputs=[tensor("x", 2, 64), tensor("w", 64, 64)])
    n_larger = 0
    for seed in range(6):
        case = make_case("forward", {"x": (2, 64), "w": (64, 64)}, "normal", tmp_path, seed=seed)
        n_larger += output_of(case, "out").rounding.response_l2 > output_of(case, "out").rounding.native_l2
    assert n_larger >= 5


def test_a_sum_that_nearly_cancels_has_the_largest_of_several_responses(tmp_path: Path) -> None:
    """One draw's response was as small as 1.4e-9 by chance, of a sum of which PyTorch's f32 is up to 1.8e-6 off."""
    capture_text("def f(x):\n    return x.sum()", "f", inputs=[tensor("x", 4, 512)])
    responses = []
    for seed in range(16):
        case = make_case("forward", {"x": (4, 512)}, "normal", tmp_path, seed=seed)
        responses.append(output_of(case, "out").rounding.response_l2 / np.linalg.norm(reference_of(case, "out")))
    assert min(responses) > 2e-8, responses


def test_a_gradient_may_be_of_a_forward_without_the_nan(tmp_path: Path) -> None:
    """Return the gradient of the weight: a sum in which relu has left the NaN out."""
    text = "def f(x, w):\n    return torch.relu(x) * w"
    capture_text(text, "f", inputs=[tensor("x", 8, 16), tensor("w", 16)], backward=True)
    case = make_case("backward", {"x": (8, 16), "w": (16,), "grad_out": (8, 16)}, "special_nan", tmp_path)
    x, gradient = (load(case.inputs, name).astype(np.float64) for name in ("x", "grad_out"))
    assert np.isnan(x).any()
    left = (np.nan_to_num(np.maximum(x, 0.0)) * gradient).sum(0)
    expected, native = reference_of(case, "grad_w"), native_of(case, "grad_w")
    is_nan = np.isnan(native)
    assert is_nan.any()
    np.testing.assert_allclose(expected[is_nan], left[is_nan], rtol=1e-9)


def test_whatever_may_come_at_a_place_is_open_there(tmp_path: Path) -> None:
    """All of these, since many thousands of rows have three that are equal, and only these."""
    capture_text("def f(x):\n    return torch.topk(x, 5).indices", "f", inputs=[tensor("x", 16, 8)])
    case = make_case("forward", {"x": (20_000, 8)}, "small_integers", tmp_path)
    ranked = -np.sort(-load(case.inputs, "x"), -1)
    n_equal = (ranked[:, :5, None] == ranked[:, None, :]).sum(-1)
    assert (n_equal == 3).sum() > 1000
    np.testing.assert_array_equal(load((chosen_of(case, "out").ties,), "out"), n_equal > 1)


def test_a_gradient_is_open_in_all_that_a_nan_decides_about(tmp_path: Path) -> None:
    text = "def f(x, w):\n    return torch.relu(x @ w)"
    capture_text(text, "f", inputs=[tensor("x", 8, 16), tensor("w", 16, 4)], backward=True)
    shapes = {"x": (8, 16), "w": (16, 4), "grad_out": (8, 4)}
    case = make_case("backward", shapes, "special_nan", tmp_path)
    decides = np.isnan(load(case.inputs, "x")).any(-1, keepdims=True) & np.ones((8, 16), bool)
    np.testing.assert_array_equal(unspecified(case, "grad_x"), decides)


@pytest.mark.parametrize(
    ("code", "moves"),
    [("F.elu({})", 1e-7), ("F.softplus({})", 1e-7), ("torch.expm1({})", 0.0), ("torch.erf({})", 0.0)],
)
def test_what_goes_by_way_of_one_may_be_off_by_a_unit_of_it(code: str, moves: float, tmp_path: Path) -> None:
    """Its inputs move it by a millionth of that."""
    capture_text(f"def f(x):\n    return {code.format('x')} - {code.format('x * 0')}", "f", inputs=[tensor("x", 8, 16)])
    rounding = output_of(make_case("forward", {"x": (8, 16)}, "minute", tmp_path), "out").rounding
    assert moves <= rounding.response_max < 1e-10 + 10 * moves


def test_attention_that_never_looks_at_what_a_mask_hides_is_right(tmp_path: Path) -> None:
    """PyTorch's own adds its mask, and has NaN where a hidden key is infinite; who sees it has NaN in any case."""
    code = "def f(q, k, v):\n    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)"
    capture_text(code, "f", inputs=[tensor(name, 2, 40, 8) for name in "qkv"])
    case = make_case("forward", dict.fromkeys("qkv", (2, 40, 8)), "special_inf", tmp_path)
    sees = np.logical_or.accumulate(np.any([~np.isfinite(load(case.inputs, n)).all(-1) for n in "kv"], axis=0), axis=1)
    sees |= ~np.isfinite(load(case.inputs, "q")).all(-1)
    expected, native = np.isnan(reference_of(case, "out")).all(-1), np.isnan(native_of(case, "out")).all(-1)
    assert not expected[~sees].any()
    assert native[~sees].any()
    assert expected[sees].any()


def test_gradients_of_what_a_causal_mask_hides_from_a_nan_are_open(tmp_path: Path) -> None:
    """PyTorch's fused backward on a CPU skips them; on a GPU its fp64 gradients are NaN."""
    shapes = dict.fromkeys("qkv", (1, 16, 40, 8))
    code = "F.scaled_dot_product_attention(q, k, v, is_causal=True)"
    inputs = [tensor(name, *shape) for name, shape in shapes.items()]
    capture_text(f"def f(q, k, v):\n    return {code}", "f", inputs=inputs, backward=True)
    case = make_case("backward", {**shapes, "grad_out": (1, 16, 40, 8)}, "special_nan", tmp_path)
    is_number = np.isfinite(reference_of(case, "grad_v"))
    assert (unspecified(case, "grad_v") & is_number).any()
    assert (~unspecified(case, "grad_v") & is_number).any(), "heads without a NaN"


def test_a_zero_of_the_inputs_leaves_nothing_out(tmp_path: Path) -> None:
    capture_text("def f(a, b):\n    return a @ b", "f", inputs=[tensor("a", 12, 6), tensor("b", 6, 64)])
    case = make_case("forward", {"a": (12, 6), "b": (6, 64)}, "special_inf", tmp_path)
    a, b, expected = load(case.inputs, "a"), load(case.inputs, "b"), reference_of(case, "out")
    with np.errstate(invalid="ignore"):
        product = a.astype(np.float64) @ b.astype(np.float64)
    assert np.isnan(expected)[np.isnan(product)].all()
    assert (np.isnan(product) & ~np.isinf(a).any(-1, keepdims=True)).any()


@pytest.mark.parametrize(
    ("code", "n_told", "exponent"),
    [
        ("x.amax(-1)", 2, 106),
        ("x.logsumexp(-1)", 2, 99),
        ("x.softmax(-1)", 1, 99),
        ("(x @ x.new_ones(8, 8)).softmax(-1)", 1, 90),
        ("x.sin()", 1, 106),
    ],
)
def test_whole_rows_are_asked_for_where_pytorch_has_a_number_for_them(
    code: str, n_told: int, exponent: int, tmp_path: Path
) -> None:
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 4, 8)])
    cases = [make_case("forward", {"x": (4, 8)}, family, tmp_path / family) for family in ROWS]
    assert sum(not case.is_degenerate for case in cases) == n_told
    values = [load(case.inputs, "x").min() for case in cases if not case.is_degenerate]
    assert values == [-np.inf, -(2.0**exponent)][-n_told:]


UNLIMITED = """def f(x, y):
    return x * y"""


@pytest.mark.parametrize(
    ("dtype", "lowest", "highest"), [("i64", -(2**63), 2**63 - 1), ("i32", -(2**31), 2**31 - 1), ("u8", 0, 255)]
)
def test_integers_of_no_stated_range_go_as_far_as_their_dtype(
    dtype: str, lowest: int, highest: int, tmp_path: Path
) -> None:
    capture_text(UNLIMITED, "f", inputs=[tensor(name, 4, 64, dtype=dtype) for name in "xy"])
    x = load(make_case("forward", {"x": (4, 64), "y": (4, 64)}, "scaled_up", tmp_path).inputs, "x")
    assert (x.min(), x.max(), len(np.unique(x)) > 100) == (lowest, highest, True)


@pytest.mark.parametrize(
    ("family", "of"),
    [
        ("normal", {0, 1}),
        ("special_nan", {0, 1}),
        ("small_integers", set(range(-3, 4))),
        ("large", {sign * (2**24 + near) for near in range(-8, 9) for sign in (1, -1)}),
        ("scaled_down", {sign * (2**31 + near) for near in range(-8, 9) for sign in (1, -1)}),
        ("zeros", {0}),
    ],
)
def test_families_of_integers(family: str, of: set[int], tmp_path: Path) -> None:
    capture_text(UNLIMITED, "f", inputs=[tensor(name, 4, 256, dtype="i64") for name in "xy"])
    case = make_case("forward", {"x": (4, 256), "y": (4, 256)}, family, tmp_path)
    assert set(np.unique(load(case.inputs, "x"))) == of


def test_integers_that_pytorch_refuses_are_zeros_and_ones_instead(tmp_path: Path) -> None:
    capture_text(
        "def f(x, i):\n    return x[0] + F.one_hot(i, 2).sum(1)",
        "f",
        inputs=[tensor("x", 4, 2), tensor("i", 3, 8, dtype="i64")],
    )
    case = make_case("forward", {"x": (4, 2), "i": (3, 8)}, "scaled_up", tmp_path)
    assert not case.is_degenerate
    assert set(np.unique(load(case.inputs, "i"))) == {0, 1}


def test_places_in_a_table_are_in_its_last_part_and_go_along_with_it(tmp_path: Path) -> None:
    text = (
        "class Model(torch.nn.Module):\n    def forward(self, ids, table):\n        return table[ids]\n"
        "def get_inputs():\n    return [torch.randint(0, 50, (6,)), torch.randn(50, 4)]\n"
    )
    capture_text(text, "Model")
    case = make_case("forward", {"ids": (6,), "table": (70_000, 4)}, "late_extremes", tmp_path)
    assert 65_536 * 0.99 < load(case.inputs, "ids").min() <= load(case.inputs, "ids").max() < 70_000


@pytest.mark.parametrize(("family", "n_different"), [("large", 2), ("equal_integers", 1), ("normal", 5)])
def test_integers_of_a_stated_range_stay_in_it_and_are_at_its_ends_or_all_equal(
    family: str, n_different: int, tmp_path: Path
) -> None:
    stated = tensor("x", 4, 64, dtype="i64").model_copy(update={"integer_range": (7, 12)})
    capture_text("def f(x):\n    return x + 1", "f", inputs=[stated])
    found = np.unique(load(make_case("forward", {"x": (4, 64)}, family, tmp_path).inputs, "x"))
    assert len(found) == n_different
    assert set(found) <= set(range(7, 12))


@pytest.mark.parametrize(
    ("family", "n_all", "n_any"), [("one_hot", 0, 16), ("needles", 16, 32), ("constant_rows", 12, 12)]
)
def test_rows_of_truth_values_differ_in_whether_any_and_all_are_true(
    family: str, n_all: int, n_any: int, tmp_path: Path
) -> None:
    capture_text("def f(x):\n    return ~x", "f", inputs=[tensor("x", 32, 8, dtype="bool")])
    x = load(make_case("forward", {"x": (32, 8)}, family, tmp_path).inputs, "x")
    assert (abs(x.all(-1).sum() - n_all) <= 8, abs(x.any(-1).sum() - n_any) <= 8) == (True, True)


@pytest.mark.parametrize(
    ("code", "dim", "each_once"),
    [
        ("x.topk(3)[1]", 1, True),
        ("x.topk(3)[1].int()", 1, True),
        ("x.topk(3, dim=0)[1]", 0, True),
        ("x.sort()[1]", 1, True),
        ("(2 * x).argsort()", 1, True),
        ("x.kthvalue(2)[1]", 1, False),
        ("x.median(0)[1]", 0, False),
        ("x.topk(3)[1] + 1", None, False),
        ("x.topk(3)[1].to(torch.int8)", None, False),
        ("x.topk(3)[1].to(torch.uint8).int()", None, False),
        ("x.sort(stable=True)[1]", None, False),
        ("x.argmax(-1)", None, False),
    ],
)
def test_what_places_are_chosen_from_is_told_where_equal_elements_may_change_places(
    code: str, dim: int | None, each_once: bool, tmp_path: Path
) -> None:
    capture_text(f"def f(x):\n    return {code}", "f", inputs=[tensor("x", 8, 16)])
    case = make_case("forward", {"x": (8, 16)}, "small_integers", tmp_path)
    if dim is None:
        assert output_of(case, "out").chosen is None
        return
    chosen = chosen_of(case, "out")
    assert (chosen.dim, chosen.each_once) == (dim, each_once)
    ties, values = load((chosen.ties,), "out"), load((chosen.values,), "out")
    assert ties.any()
    assert not (ties & unspecified(case, "out")).any()
    assert values.shape == (8, 16)
    assert (reference_of(case, "out") < values.shape[dim]).all()


def test_special_values_are_numbers_among_what_is_chosen_from(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.sort()[1]", "f", inputs=[tensor("x", 64, 16)])
    case = make_case("forward", {"x": (64, 16)}, "special_nan", tmp_path)
    assert np.isnan(load(case.inputs, "x")).any()
    assert np.isfinite(load((chosen_of(case, "out").values,), "out")).all()


def test_nothing_is_told_of_choices_where_no_elements_are_equal(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x.topk(3)[1]", "f", inputs=[tensor("x", 8, 16)])
    assert output_of(make_case("forward", {"x": (8, 16)}, "normal", tmp_path), "out").chosen is None


COUNTED = """
from pathlib import Path

CALLS = Path("{calls}")


def f(x, other):
    return x * other


def get_inputs():
    CALLS.write_text(CALLS.read_text() + "1")
    return [torch.rand(40, 50), {other}]
"""


@pytest.mark.parametrize(
    ("other", "n_calls", "limits"),
    [
        ("torch.randint(0, 2, (40, 50)).bool()", 0, (0, 1)),
        ("torch.arange(5, 2005).view(40, 50)", 1, (5, 2004)),
        ("torch.rand(40, 50)", 0, (-9, 9)),
    ],
    ids=["truth values", "integers", "floats"],
)
def test_inputs_of_the_user_s_are_made_for_no_case_without_one_of_them(
    other: str, n_calls: int, limits: tuple[int, int], tmp_path: Path
) -> None:
    """A task with a mask of 2^30 elements took 8 s for each of its cases, of any size."""
    calls = tmp_path / "calls"
    calls.write_text("")
    capture_text(COUNTED.format(calls=calls, other=other), "f")
    calls.write_text("")
    for number, family in enumerate(("normal", "uniform")):
        shapes = {"x": (3, 7), "other": (3, 7)}
        made = load(make_case("forward", shapes, family, tmp_path / str(number)).inputs, "other")
        assert limits[0] <= made.min() <= made.max() <= limits[1]
    assert len(calls.read_text()) == n_calls
    make_case("forward", {"x": (40, 50), "other": (40, 50)}, "given", tmp_path / "given")
    assert len(calls.read_text()) == n_calls + 1
