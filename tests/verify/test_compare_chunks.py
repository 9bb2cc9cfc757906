"""The short look at a chunk tells what the look at each element tells, and sees everything that it sees."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.verify.oracle import compare_chunks
from kernel_lsp.verify.oracle.compare_chunks import (
    CHUNK_ELEMENTS,
    CHUNKS_PER_THREAD,
    Allowance,
    Sides,
    Total,
    exact_total,
    floating_total,
    stored_total,
)

ALLOWANCE = Allowance(fixed=1e-5, relative=1e-6, relative_l2=1e-6)
N = 3 * CHUNK_ELEMENTS + 17
RNG = np.random.default_rng(0)


def sides(error: float = 1e-6, n: int = N) -> Sides:
    """Compare results that are off by up to `error`, everywhere."""
    reference = RNG.standard_normal(n)
    found = (reference + RNG.uniform(-error, error, n)).astype(np.float32)
    return Sides(DType.F32, found, reference, None, None)


def element_by_element(of: Sides, monkeypatch: pytest.MonkeyPatch) -> Total:
    with monkeypatch.context() as patch:
        patch.setattr(compare_chunks, "_within_fixed", lambda *_: None)
        return floating_total(of, ALLOWANCE)


@pytest.mark.parametrize("error", [0.0, 1e-9, 1e-6, 9e-6])
def test_both_looks_at_what_is_right_give_one_total(error: float, monkeypatch: pytest.MonkeyPatch) -> None:
    of = sides(error)
    assert floating_total(of, ALLOWANCE) == element_by_element(of, monkeypatch)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30, 1e-4, -1e-4])
@pytest.mark.parametrize("place", [0, CHUNK_ELEMENTS, N - 1])
def test_one_element_that_is_off_is_seen_whatever_it_holds(
    value: float, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = sides()
    of.found[place] += value
    seen = floating_total(of, ALLOWANCE)
    assert (seen.n_wrong, seen.worst) == (1, place)
    expected = element_by_element(of, monkeypatch)
    assert repr(seen) == repr(expected)


def test_what_only_its_own_magnitude_allows_passes() -> None:
    of = sides()
    of.reference[5], of.found[5] = 1000.0, 1000.0005
    seen = floating_total(of, ALLOWANCE)
    assert seen.n_wrong == 0
    assert seen.max_error > ALLOWANCE.fixed


def test_pytorchs_own_infinity_in_a_chunk_that_is_right_is_compared_in_kind() -> None:
    """Only the declared dtype overflows: the error beside the reference is no error of ours, and is not added."""
    of = sides(0.0)
    of.reference[7] = 1e6
    of.found[7] = 1e6 + 0.5
    native = of.reference.copy()
    native[7] = np.inf
    seen = floating_total(replace(of, native=native), ALLOWANCE)
    assert (seen.n_wrong, seen.max_error < ALLOWANCE.fixed) == (0, True)
    of.found[7] = 0.0
    assert floating_total(replace(of, native=native), ALLOWANCE).n_wrong == 1


def test_elements_that_do_not_count_are_not_added() -> None:
    of = sides()
    judged = np.ones(N, bool)
    judged[3:10] = False
    of.found[3:10] = 1e9
    seen = floating_total(replace(of, judged=judged), ALLOWANCE)
    assert (seen.n_wrong, seen.n_judged) == (0, N - 7)


@pytest.mark.parametrize("place", [0, CHUNK_ELEMENTS - 1, N - 1])
@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16, DType.F16, DType.F64])
def test_an_element_that_nobody_wrote_is_counted_even_where_a_nan_is_right(place: int, dtype: DType) -> None:
    found = np.zeros(N, f"u{dtype.itemsize}")
    found[place] = np.iinfo(found.dtype).max
    stored = found if dtype is DType.BF16 else found.view(f"f{dtype.itemsize}")
    reference = np.zeros(N)
    assert stored_total(Sides(dtype, stored, reference, None, None), ALLOWANCE).first_unwritten == place
    reference[place] = np.nan
    seen = stored_total(Sides(dtype, stored, reference, reference.copy(), None), ALLOWANCE)
    assert (seen.n_unwritten, seen.first_unwritten, seen.n_wrong) == (1, place, 0)


@pytest.mark.parametrize("n_threads", [1, 5])
def test_the_total_is_the_same_for_any_number_of_threads(n_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    of = sides(n=(4 * CHUNKS_PER_THREAD + 1) * CHUNK_ELEMENTS)
    of.found[-1] = 7.0
    expected = floating_total(of, ALLOWANCE)
    with ThreadPoolExecutor(n_threads) as pool:
        monkeypatch.setattr(compare_chunks, "_threads", lambda: pool)
        assert floating_total(of, ALLOWANCE) == expected
    assert (expected.worst, expected.n_judged) == (of.found.size - 1, of.found.size)


def test_an_integer_that_is_not_judged_may_be_any() -> None:
    judged = np.array([True, False, True])
    total = exact_total(Sides(DType.I64, np.array([3, 7, 4]), np.array([3, 6, 5]), None, judged))
    assert (total.n_judged, total.n_wrong, total.worst) == (2, 1, 2)


@pytest.mark.parametrize("place", [0, 3 * CHUNK_ELEMENTS // 2])
@pytest.mark.parametrize("value", [7.0, np.nan, np.inf])
def test_a_number_that_is_not_judged_may_be_any(place: int, value: float) -> None:
    """In a chunk of its own path: the other chunks are compared as ever."""
    of = sides(n=2 * CHUNK_ELEMENTS)
    judged = np.arange(of.found.size) != place
    of.found[place] = value
    assert floating_total(of, ALLOWANCE).n_wrong == 1
    seen = floating_total(replace(of, judged=judged), ALLOWANCE)
    assert (seen.n_wrong, seen.n_judged) == (0, of.found.size - 1)
    of.found[place - 1] = 7.0
    assert floating_total(replace(of, judged=judged), ALLOWANCE).n_wrong == 1


def test_no_element_gives_nothing() -> None:
    assert stored_total(sides(n=0), ALLOWANCE) == Total()


@pytest.mark.parametrize(("found", "is_right"), [(np.nan, True), (2.0, True), (2.1, False), (np.inf, False)])
def test_where_the_reference_is_nan_and_pytorch_has_a_number_both_are_right(found: float, is_right: bool) -> None:
    """Accept both, as a convolution that skips its padding needs, and attention to nothing but minus infinities."""
    of = Sides(DType.F32, np.array([found], np.float32), np.array([np.nan]), np.array([2.0]), None)
    assert floating_total(of, ALLOWANCE).n_wrong == (0 if is_right else 1)
