"""Values of 16 bits: rounded to the nearest, rounded once, and truncated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.verify.oracle.narrow_rounding import FORMATS, cut_off, last_place, nearest, with_one_answer
from tests.worker.capturing import capture_text, tensor

N = 8192


@dataclass(frozen=True)
class Numbers:
    """Float64 results, and the same cut off to the dtype."""

    dtype: DType
    exact: np.ndarray
    cut: np.ndarray


@pytest.fixture(params=[DType.F16, DType.BF16])
def numbers(request: pytest.FixtureRequest) -> Numbers:
    dtype: DType = request.param
    exact = np.random.default_rng(0).standard_normal(N)
    unit = np.ldexp(1.0, last_place(exact, FORMATS[dtype]))
    return Numbers(dtype, exact, np.trunc(exact / unit) * unit)


def test_what_is_cut_off_is_told(numbers: Numbers) -> None:
    found = cut_off(numbers.cut, numbers.exact, numbers.dtype, None)
    assert found is not None
    assert found.n > N // 2


def test_the_nearest_number_is_not(numbers: Numbers) -> None:
    assert cut_off(nearest(numbers.exact, numbers.dtype), numbers.exact, numbers.dtype, None) is None


def test_neither_is_what_was_rounded_to_more_bits_before(numbers: Numbers) -> None:
    once = numbers.exact.astype(np.float32).astype(np.float64)
    assert cut_off(nearest(once, numbers.dtype), numbers.exact, numbers.dtype, None) is None


@pytest.mark.parametrize("units", np.linspace(-1.5, 1.5, 49))
def test_nor_a_factor_that_is_off(numbers: Numbers, units: float) -> None:
    """A constant that was rounded shifts all results to one side, as cutting off does, by up to half a unit of 1."""
    factor = 1.0 + units * 2.0 ** -FORMATS[numbers.dtype].precision
    assert cut_off(nearest(numbers.exact * factor, numbers.dtype), numbers.exact, numbers.dtype, None) is None


@pytest.mark.parametrize("n_upper", [0, 100, 400])
def test_results_below_half_of_the_least_subnormal_number_are_zeros(n_upper: int) -> None:
    """Gradients of a mean over 131 million elements are some 1e-9, which f16 has no number for but zero; a few of them
    may be large enough for another."""
    exact = np.random.default_rng(0).uniform(0.06, 0.49, 1 << 17) * 2.0**-24
    exact[:n_upper] *= 2.0
    found = nearest(exact, DType.F16)
    assert not found[n_upper:].any()
    assert cut_off(found, exact, DType.F16, None) is None


def test_the_element_shown_should_have_been_rounded_up(numbers: Numbers) -> None:
    found = cut_off(numbers.cut, numbers.exact, numbers.dtype, None)
    assert found is not None
    assert nearest(numbers.exact, numbers.dtype)[found.first] != numbers.cut[found.first]


def test_few_elements_tell_nothing(numbers: Numbers) -> None:
    few = slice(0, 500)
    assert cut_off(numbers.cut[few], numbers.exact[few], numbers.dtype, None) is None


def test_only_elements_that_count_are_looked_at(numbers: Numbers) -> None:
    found, judged = nearest(numbers.exact, numbers.dtype), np.zeros(N, bool)
    judged[: N // 2] = True
    found[: N // 2] = numbers.cut[: N // 2]
    assert cut_off(found, numbers.exact, numbers.dtype, None) is None
    assert cut_off(found, numbers.exact, numbers.dtype, judged) is not None


def test_wide_types_are_not_looked_at(numbers: Numbers) -> None:
    assert cut_off(numbers.cut, numbers.exact, DType.F32, None) is None


def test_numbers_that_are_not_finite_say_nothing(numbers: Numbers) -> None:
    numbers.exact[::7], numbers.cut[::7] = np.nan, np.inf
    assert cut_off(numbers.cut, numbers.exact, numbers.dtype, None) is not None


RNG = np.random.default_rng(0)


def test_f16_is_what_numpy_rounds_to() -> None:
    values = RNG.standard_normal(10_000) * np.exp(RNG.uniform(-20, 12, 10_000))
    with np.errstate(over="ignore"):
        expected = values.astype(np.float16).astype(np.float64)
    np.testing.assert_array_equal(nearest(values, DType.F16), expected)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1.0 + 2.0**-8, 1.0),
        (1.0 + 3 * 2.0**-8, 1.0 + 2.0**-6),
        (1.0 + 2.0**-8 + 2.0**-40, 1.0 + 2.0**-7),
        (-3.0, -3.0),
        (0.0, 0.0),
        (2.0**-134, 0.0),
        (1.5 * 2.0**-133, 2.0**-132),
        (3.4e38, np.inf),
        (-np.inf, -np.inf),
    ],
)
def test_bf16_ties_go_to_even_and_nothing_is_rounded_twice(value: float, expected: float) -> None:
    assert float(nearest(np.array([value]), DType.BF16)[0]) == expected


def test_a_nan_stays_one() -> None:
    assert np.isnan(nearest(np.array([np.nan]), DType.BF16)).all()


ONE = ("x + y", "torch.relu(x - y)", "(x * y).t()", "x * 0.5", "-x.abs()", "w.to(torch.float16)", "w.to(x.dtype)")
MORE = (
    "x * 0.3",
    "x + y + x",
    "torch.add(x, y, alpha=2)",
    "x.sum(-1)",
    "torch.exp(x)",
    "x - 0 * y",
    "w + w",
    "(w + w).to(x.dtype)",
    "d.to(x.dtype)",
)


@pytest.fixture(scope="module")
def found() -> dict[str, bool]:
    """By the expression that makes an output, of one capture. w is f32, d f64, the others bf16."""
    expressions = (*ONE, *MORE)
    dtypes = {"x": "bf16", "y": "bf16", "w": "f32", "d": "f64"}
    task = capture_text(
        f"def f(x, y, w, d): return {', '.join(expressions)}",
        "f",
        inputs=[tensor(name, 8, 16, dtype=dtype) for name, dtype in dtypes.items()],
    )
    single = with_one_answer(task.forward)
    return {e: output.name in single for e, output in zip(expressions, task.forward.outputs, strict=True)}


@pytest.mark.parametrize("expression", ONE)
def test_one_rounding_at_most_has_one_answer(found: dict[str, bool], expression: str) -> None:
    assert found[expression]


@pytest.mark.parametrize("expression", MORE)
def test_what_is_rounded_twice_or_by_way_of_f32_or_not_of_16_bits_is_held_to_its_budget(
    found: dict[str, bool], expression: str
) -> None:
    assert not found[expression]
