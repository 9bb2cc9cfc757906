"""Rounding to 16 bits in one step, against numpy's own f16 and against bits."""

from __future__ import annotations

import numpy as np
import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.verify.oracle.narrow_rounding import nearest

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
