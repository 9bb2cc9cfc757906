"""Masks of unspecified elements on their way from the worker's files to the judge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernel_lsp.verify.foreign.foreign_cases import _in_memory
from kernel_lsp.verify.oracle.case_store import read_expectations
from kernel_lsp.verify.oracle.compare import Expectation, compare, is_within_budget
from tests.worker.capturing import capture_text, make_case, tensor
from tests.worker.test_cases import load


@pytest.mark.parametrize("kept", [lambda each: each, _in_memory], ids=["mapped", "in memory"])
def test_any_number_is_correct_where_the_mask_says_so_and_nowhere_else(
    kept: Callable[[Expectation], Expectation], tmp_path: Path
) -> None:
    """Return the outcome of a NaN between two limits."""
    capture_text("def f(x):\n    return x.clamp(-1.0, 2.0)", "f", inputs=[tensor("x", 8, 16)])
    (expected,) = map(kept, read_expectations(make_case("forward", {"x": (8, 16)}, "special_nan", tmp_path)))
    assert expected.unspecified is not None
    assert 0 < expected.unspecified.sum() < expected.unspecified.size
    found = np.where(expected.unspecified, 1.5, expected.reference).astype(np.float32)
    assert is_within_budget(compare(found, expected, factor=2.0))
    assert not is_within_budget(compare(found, replace(expected, unspecified=None), factor=2.0))
    found[np.nonzero(~expected.unspecified)[0][0], np.nonzero(~expected.unspecified)[1][0]] = 1.75
    assert not is_within_budget(compare(found, expected, factor=2.0))


def test_a_case_without_unspecified_elements_has_no_mask(tmp_path: Path) -> None:
    capture_text("def f(x):\n    return x * 2", "f", inputs=[tensor("x", 8, 16)])
    case = make_case("forward", {"x": (8, 16)}, "special_nan", tmp_path)
    assert [output.unspecified for output in case.outputs] == [None]
    assert [each.unspecified for each in read_expectations(case)] == [None]


def test_a_zero_that_a_rounding_made_may_be_divided_by_zero(tmp_path: Path) -> None:
    """``x * (1 / 3) - y`` is an fma in many kernels, torch.compile's among them: 1e-8 where ``x / 3`` is y."""
    shapes = dict.fromkeys("xyz", (64, 64))
    capture_text("def f(x, y, z):\n    return (x / 3 - y) / z", "f", inputs=[tensor(name, 64, 64) for name in "xyz"])
    case = make_case("forward", shapes, "small_integers", tmp_path)
    x, y, z = (load((each,), each.name) for each in case.inputs)
    (expected,) = read_expectations(case)
    assert expected.native is not None
    is_nan = (x == 3 * y) & (z == 0)
    assert (np.isnan(expected.reference.reshape(x.shape)) == is_nan).all()
    assert expected.unspecified is not None
    assert (expected.unspecified.reshape(x.shape) == is_nan & (x != 0)).all()
    fused = np.float64(np.float32(1 / 3)) * x - y
    with np.errstate(divide="ignore", invalid="ignore"):
        found = (fused / z).astype(np.float32).reshape(expected.reference.shape)
    assert np.isinf(found.reshape(x.shape)[is_nan & (x != 0)]).all()
    assert is_within_budget(compare(found, expected, factor=2.0))
    found[np.isnan(found)] = np.inf
    assert not is_within_budget(compare(found, expected, factor=2.0))


def test_zeros_of_the_inputs_are_divided_as_they_are(tmp_path: Path) -> None:
    capture_text("def f(x, y):\n    return (x * 2) / y", "f", inputs=[tensor(name, 64, 64) for name in "xy"])
    case = make_case("forward", dict.fromkeys("xy", (64, 64)), "small_integers", tmp_path)
    (expected,) = read_expectations(case)
    assert np.isnan(expected.reference).any()
    assert expected.unspecified is None
