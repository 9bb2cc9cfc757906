"""The budget passes what PyTorch itself would lose, and nothing that is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.process.case_files import Rounding
from kernel_lsp.verify.oracle.compare import Expectation, InputTraits, compare, is_within_budget
from kernel_lsp.verify.oracle.compare_chunks import CHUNK_ELEMENTS
from kernel_lsp.verify.oracle.narrow_rounding import nearest

RNG = np.random.default_rng(0)
REFERENCE = RNG.standard_normal((64, 33))


def _expect(reference: np.ndarray, dtype: DType = DType.F32, native: np.ndarray | None = None) -> Expectation:
    numpy_dtype = np.float16 if dtype is DType.F16 else np.float32
    if native is None:
        native = reference.astype(numpy_dtype).astype(np.float64)
    return expectation(dtype, reference, native)


def expectation(
    dtype: DType, reference: np.ndarray, native: np.ndarray, perturbed: np.ndarray | None = None
) -> Expectation:
    """Compute the worker's expectation once more."""
    finite = np.isfinite(reference) & np.isfinite(native)
    kept = np.where(finite, reference, 0.0)
    off = np.where(finite, native, 0.0) - kept
    moved = np.zeros(1) if perturbed is None else np.where(finite, perturbed, 0.0) - kept
    rounding = Rounding(
        n_finite=int(finite.sum()),
        reference_l2=float(np.linalg.norm(kept)),
        native_l2=float(np.linalg.norm(off)),
        native_max=float(np.abs(off).max(initial=0.0)),
        response_l2=float(np.linalg.norm(moved)),
        response_max=float(np.abs(moved).max(initial=0.0)),
    )
    is_plain = dtype.is_floating and bool(finite.all())
    return Expectation("out", dtype, reference, None if is_plain else native, rounding)


def check(found: np.ndarray, expected: Expectation, passes: bool) -> None:
    error = compare(found, expected, factor=2.0)
    assert is_within_budget(error) is passes, error


def test_the_rounded_reference_passes() -> None:
    check(REFERENCE.astype(np.float32), _expect(REFERENCE), True)


def test_a_few_ulps_pass() -> None:
    check((REFERENCE * (1 + 3e-7)).astype(np.float32), _expect(REFERENCE), True)


def test_tf32_precision_is_caught_in_f32() -> None:
    check((REFERENCE * (1 + 3e-4 * RNG.standard_normal(REFERENCE.shape))).astype(np.float32), _expect(REFERENCE), False)


def test_half_precision_passes_as_half() -> None:
    check(REFERENCE.astype(np.float16), _expect(REFERENCE, DType.F16), True)


def test_half_precision_is_caught_in_f32() -> None:
    check(REFERENCE.astype(np.float16).astype(np.float32), _expect(REFERENCE), False)


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, 1e30])
def test_one_wrong_element_is_caught_and_located(value: float) -> None:
    found = REFERENCE.astype(np.float32)
    found[17, 5] = value
    error = compare(found, _expect(REFERENCE), factor=2.0)
    assert not is_within_budget(error)
    assert error.worst_index == (17, 5)
    assert error.n_wrong == 1


def test_nan_passes_only_where_the_reference_has_it() -> None:
    reference = REFERENCE.copy()
    reference[3, 3] = np.nan
    check(reference.astype(np.float32), _expect(reference), True)
    check(REFERENCE.astype(np.float32), _expect(reference), False)


def test_an_infinity_needs_its_sign() -> None:
    reference = REFERENCE.copy()
    reference[3, 3] = np.inf
    found = reference.astype(np.float32)
    check(found, _expect(reference), True)
    found[3, 3] = -np.inf
    check(found, _expect(reference), False)


def test_where_only_the_dtype_overflows_either_answer_passes() -> None:
    reference = REFERENCE.copy()
    reference[0, 0] = 7e4
    native = reference.astype(np.float16).astype(np.float64)
    expected = _expect(reference, DType.F16, native)
    check(native, expected, True)
    finite = native.copy()
    finite[0, 0] = 7e4
    check(finite, expected, True)
    finite[0, 0] = 0.0
    check(finite, expected, False)


def test_an_exact_zero_reference_needs_a_zero() -> None:
    zeros = np.zeros((4, 4))
    check(zeros.astype(np.float32), _expect(zeros), True)
    check(np.full((4, 4), 1e-3, np.float32), _expect(zeros), False)


def test_integers_must_be_equal() -> None:
    values = np.arange(12).reshape(3, 4)
    expected = expectation(DType.I64, values, values)
    check(values, expected, True)
    check(values + (values == 7), expected, False)


def test_elements_outside_the_written_blocks_are_not_judged() -> None:
    found = REFERENCE.astype(np.float32)
    found[40:] = np.nan
    written = np.zeros(found.shape, bool)
    written[:40] = True
    assert is_within_budget(compare(found, _expect(REFERENCE), factor=2.0, written=written))


def test_cancellation_is_allowed_what_the_perturbed_reference_shows() -> None:
    """A sum that cancels: PyTorch was lucky, a stable kernel is 1e-5 off, and so is the reference when moved."""
    reference = np.array([1e-3])
    lucky = expectation(DType.F32, reference, reference.copy(), perturbed=reference + 1e-5)
    assert is_within_budget(compare(np.array([1e-3 + 1e-5]), lucky, factor=2.0))
    assert not is_within_budget(compare(np.array([2e-3]), lucky, factor=2.0))


def test_an_empty_output_passes() -> None:
    check(np.zeros((0, 3), np.float32), _expect(np.zeros((0, 3))), True)


@pytest.mark.parametrize("place", [0, CHUNK_ELEMENTS - 1, CHUNK_ELEMENTS, 3 * CHUNK_ELEMENTS])
def test_every_element_of_many_chunks_is_looked_at(place: int) -> None:
    reference = RNG.standard_normal(3 * CHUNK_ELEMENTS + 1)
    found = reference.astype(np.float32)
    check(found, _expect(reference), True)
    found[place] += 1e-3
    error = compare(found, _expect(reference), factor=2.0)
    assert (error.worst_index, error.n_wrong, error.n_elements) == ((place,), 1, found.size)


def test_bfloat16_is_compared_as_stored() -> None:
    stored = (REFERENCE.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    native = (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    expected = expectation(DType.BF16, REFERENCE, native)
    check(stored, expected, True)
    check(stored + np.uint16(64), expected, False)


def narrow(values: np.ndarray, dtype: DType) -> np.ndarray:
    return nearest(values.astype(np.float64), dtype)


def keeps_bits(values: np.ndarray, n_bits: int) -> np.ndarray:
    """Rounded to so many bits, the hidden one counted."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(mantissa * 2.0**n_bits), exponent - n_bits)


MANY = RNG.standard_normal((64, 256))


@pytest.mark.parametrize(("dtype", "n_bits"), [(DType.BF16, 5), (DType.F16, 8)])
def test_three_bits_fewer_than_16_hold_are_caught(dtype: DType, n_bits: int) -> None:
    expected = expectation(dtype, MANY, narrow(MANY, dtype))
    check(keeps_bits(MANY, n_bits), expected, False)
    check(narrow(MANY, dtype), expected, True)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_a_rounding_after_each_of_several_steps_passes(dtype: DType) -> None:
    """silu as 16-bit instructions compute it, step by step."""
    x = narrow(MANY, dtype)
    exact = x / (1 + np.exp(-x))
    stepwise = narrow(x / narrow(1 + narrow(np.exp(-x), dtype), dtype), dtype)
    check(stepwise, expectation(dtype, exact, narrow(exact, dtype)), True)


def test_where_all_numbers_are_the_same_their_error_may_be_so_too() -> None:
    """Two units off everywhere: among many different numbers they would average out."""
    reference = np.full((64, 256), 1.0)
    expected = expectation(DType.BF16, reference, reference)
    found = reference * (1 + 2 * 2.0**-7)
    assert is_within_budget(compare(found, expected, factor=2.0, inputs=InputTraits(n_different=1)))
    assert not is_within_budget(compare(found, expected, factor=2.0))


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F16])
def test_what_is_rounded_once_must_be_the_nearest_number(dtype: DType) -> None:
    rounded = narrow(MANY, dtype)
    expected = expectation(dtype, MANY, rounded)
    single = replace(expected, rounding=replace(expected.rounding, has_one_answer=True))
    towards_zero = np.where(np.abs(rounded) > np.abs(MANY), keeps_bits(rounded * (1 - 2.0**-9), 12), rounded)
    check(rounded, single, True)
    check(towards_zero, single, False)
    check(towards_zero, expected, True)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F16, DType.I32])
@pytest.mark.parametrize("place", [0, 2])
def test_any_value_is_correct_for_an_unspecified_element_alone(dtype: DType, place: int) -> None:
    reference = np.array([1.0, 2.0, 3.0])
    expected = _expect(reference, dtype, reference if dtype.is_floating else reference.astype(np.int64))
    marked = replace(expected, unspecified=np.array([False, False, True]))
    found = reference.astype(np.int32) if dtype is DType.I32 else reference.astype(np.float32)
    found[place] = 77
    assert not is_within_budget(compare(found, expected, factor=2.0))
    assert is_within_budget(compare(found, marked, factor=2.0)) is (place == 2)


@pytest.mark.parametrize("value", [np.nan, np.inf, 77.0])
def test_a_reference_that_is_no_number_says_nothing_of_an_unspecified_element(value: float) -> None:
    reference = np.array([1.0, 2.0, np.nan])
    expected = replace(_expect(reference, native=reference), unspecified=np.array([False, False, True]))
    assert is_within_budget(compare(np.array([1.0, 2.0, value], np.float32), expected, factor=2.0))
