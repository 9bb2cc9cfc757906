"""Check PyTorch's errors, and whether a tensor is finite, from as few readings of it as that takes."""

from __future__ import annotations

import math

import pytest
import torch

from kernel_lsp.worker.oracle.results import _moved
from kernel_lsp.worker.oracle.roundings import is_finite, is_plain, rounding, unit_of

LARGEST = torch.finfo(torch.float64).max


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_what_is_finite(dtype: torch.dtype) -> None:
    largest = torch.full((1000,), torch.finfo(dtype).max, dtype=dtype)  # their sum is not
    assert all(map(is_finite, (largest, -largest, largest[:0])))
    for special in (math.inf, -math.inf, math.nan):
        assert not is_finite(torch.cat([largest, torch.tensor([special], dtype=dtype)]))
    assert not is_finite(torch.tensor([math.inf, -math.inf], dtype=dtype))


def test_integers_are_finite_and_never_plain() -> None:
    integers = torch.tensor([1, 2])
    assert is_finite(integers)
    assert not is_plain(integers, integers)


def test_of_finite_results_all_elements_count() -> None:
    expected, native = torch.tensor([3.0, 4.0], dtype=torch.float64), torch.tensor([3.5, 4.0])
    told = rounding(expected, native, torch.tensor([3.0, 2.0], dtype=torch.float64))
    assert told == {
        "n_finite": 2,
        "reference_l2": 5.0,
        "native_l2": 0.5,
        "native_max": 0.5,
        "response_l2": 2.0,
        "response_max": 2.0,
    }


def test_what_is_not_finite_changes_nothing_about_the_rest() -> None:
    """Count the reference's number where PyTorch has NaN, and not where it has an infinity."""
    expected = torch.tensor([3.0, 4.0, 12.0, 7.0], dtype=torch.float64)
    native = torch.tensor([3.5, 4.0, math.nan, math.inf])
    moved = torch.tensor([3.0, 2.0, 1.0, math.nan], dtype=torch.float64)
    assert rounding(expected, native, moved) == {
        "n_finite": 3,
        "reference_l2": 13.0,
        "native_l2": 0.5,
        "native_max": 0.5,
        "response_l2": 2.0,
        "response_max": 2.0,
    }


def test_sums_that_overflow_do_not_make_a_result_infinite() -> None:
    vast = torch.tensor([LARGEST, LARGEST, 1.0], dtype=torch.float64)
    assert is_plain(vast, vast)
    assert rounding(vast, vast, None)["n_finite"] == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_perturbation_is_half_a_unit_up_or_down_and_leaves_the_value(dtype: torch.dtype) -> None:
    value = torch.randn(1000).to(dtype)
    before, half = value.clone(), unit_of(dtype) / 2
    moved = _moved(value, 1, torch.Generator().manual_seed(1))
    back = _moved(value, -1, torch.Generator().manual_seed(1))
    ratios = moved / value.double()
    assert torch.equal(value, before)
    assert torch.all(((ratios - 1).abs() - half).abs() < 1e-3 * half)
    assert 400 < int((ratios > 1).sum()) < 600
    torch.testing.assert_close((moved + back) / 2, value.double(), rtol=1e-14, atol=0.0)
