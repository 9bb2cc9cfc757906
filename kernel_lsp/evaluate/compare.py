"""Is an output right? Its error against the fp64 reference, held to what its dtype allows here.

The budget follows what trusted PyTorch itself loses at the declared dtype on the same inputs: `k` times the error of
the native run, plus the response of the fp64 reference to inputs perturbed by one unit of the dtype (a backward-stable
algorithm may be that far off, and a lucky native run says nothing), plus a floor of a few units in the last place.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.verdict import TensorError

FORWARD_FACTOR = 2.0
BACKWARD_FACTOR = 5.0
"""k of the budget, forward and backward."""
EPSILON = {DType.F64: 2.0**-52, DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}
"""Distance from 1 to the next number of the type."""
FLOOR_ULPS = 8.0
"""Elementwise floor, in units of the element itself. CUDA's own expf, logf and powf are documented at up to 2 ulp each,
and a chain of a few of them must pass."""
FLOOR_ULPS_L2 = 4.0
FLOOR_ULPS_RMS = 2.0
"""Elementwise floor in units of the whole output's root mean square: what cancellation may leave of a small element."""
TAIL_FACTOR = 4.0
"""What one element of many may be beyond the largest error of the native run: the worst of 1e5 roundings is a matter of
luck, and cuBLAS adds up a row serially where the CPU's library adds it up in blocks. Systematic loss of precision is
the relative L2's to catch; an element that is wrong for another reason is off by far more than this."""
FLOOR_SUBNORMAL_UNITS = 4.0
"""Smallest normal numbers: below them every type loses relative precision."""
SMALLEST_NORMAL = {DType.F64: 2.0**-1022, DType.F32: 2.0**-126, DType.F16: 2.0**-14, DType.BF16: 2.0**-126}


@dataclass(frozen=True)
class Expectation:
    """What one output should be. All arrays have the output's shape, in float64 (exact types for integers).

    `native` is trusted PyTorch at the declared dtype; `perturbed` the fp64 reference on inputs moved by one unit, or
    None when there is nothing to move.
    """

    output: str
    dtype: DType
    reference: np.ndarray
    native: np.ndarray
    perturbed: np.ndarray | None


def compare(
    found: np.ndarray, expected: Expectation, *, factor: float, written: np.ndarray | None = None
) -> TensorError:
    """The error of `found`. `written` marks the elements to judge, all when None. Non-finite values are compared in
    kind: a NaN or an infinity passes only where the reference, or PyTorch at the same dtype, has the same."""
    if expected.dtype.is_floating:
        return _compare_floats(found, expected, factor, written)
    return _compare_exactly(found, expected, written)


def unwritten_error(expected: Expectation, written: np.ndarray) -> TensorError:
    """The error of an output some of whose elements were never written."""
    missing = ~written
    index = _first_index(missing)
    return TensorError(
        output=expected.output,
        relative_l2=float("inf"),
        relative_l2_budget=0.0,
        max_error=float("inf"),
        max_error_budget=0.0,
        n_wrong=int(missing.sum()),
        n_elements=missing.size,
        worst_index=index,
        expected=float(expected.reference[index]) if index is not None else None,
        found=None,
    )


def is_within_budget(error: TensorError) -> bool:
    """Whether the output passes. Written so that a NaN error fails."""
    return error.n_wrong == 0 and error.relative_l2 <= error.relative_l2_budget


# --- below: floats, then exact types


def _compare_floats(found: np.ndarray, expected: Expectation, factor: float, written: np.ndarray | None) -> TensorError:
    found = found.astype(np.float64)
    reference, native = expected.reference, expected.native
    judged = np.ones(found.shape, bool) if written is None else written
    finite = judged & np.isfinite(reference) & np.isfinite(native)
    wrong_kind = judged & ~finite & ~_same_kind(found, reference, native)
    error = np.where(finite, np.abs(found - np.where(finite, reference, 0.0)), 0.0)
    tolerance = _tolerance(expected, finite, factor)
    wrong = wrong_kind | (finite & ~(error <= tolerance))
    l2, l2_budget = _relative_l2(error, expected, finite, factor)
    excess = np.where(wrong_kind, np.inf, np.where(wrong, np.nan_to_num(error - tolerance, nan=np.inf), -np.inf))
    worst = np.unravel_index(int(np.argmax(excess)), excess.shape) if wrong.any() else None
    return TensorError(
        output=expected.output,
        relative_l2=l2,
        relative_l2_budget=l2_budget,
        max_error=float(error.max(initial=0.0)),
        max_error_budget=float(tolerance.max(initial=0.0)),
        n_wrong=int(wrong.sum()),
        n_elements=int(judged.sum()),
        worst_index=tuple(int(i) for i in worst) if worst is not None else None,
        expected=float(reference[worst]) if worst is not None else None,
        found=float(found[worst]) if worst is not None else None,
    )


def _same_kind(found: np.ndarray, reference: np.ndarray, native: np.ndarray) -> np.ndarray:
    """Where the reference or PyTorch is not finite: is ours the same infinity or NaN as one of them, or, where only
    the declared dtype overflowed, close to the finite reference?"""
    nan = np.isnan(found) & (np.isnan(reference) | np.isnan(native))
    infinity = np.isinf(found) & ((found == reference) | (found == native))
    overflowed = np.isfinite(reference) & ~np.isfinite(native)
    with np.errstate(invalid="ignore", over="ignore"):
        close = overflowed & (np.abs(found - reference) <= OVERFLOW_TOLERANCE * np.abs(reference))
    return nan | infinity | close


OVERFLOW_TOLERANCE = 2.0**-6
"""Where PyTorch overflows and we do not: relative, loose, because no native error is there to scale it."""


def _tolerance(expected: Expectation, finite: np.ndarray, factor: float) -> np.ndarray:
    epsilon = EPSILON[expected.dtype]
    magnitude = np.abs(np.where(finite, expected.reference, 0.0))
    native_error = _error(expected.native, expected.reference, finite)
    rms = _rms(magnitude, finite)
    floor = (
        FLOOR_ULPS * epsilon * magnitude
        + FLOOR_ULPS_RMS * epsilon * rms
        + FLOOR_SUBNORMAL_UNITS * SMALLEST_NORMAL[expected.dtype]
    )
    rounding = native_error.max(initial=0.0) + _response(expected, finite).max(initial=0.0)
    return TAIL_FACTOR * factor * rounding + floor


def _relative_l2(error: np.ndarray, expected: Expectation, finite: np.ndarray, factor: float) -> tuple[float, float]:
    norm = float(np.linalg.norm(np.where(finite, expected.reference, 0.0)))
    if norm == 0.0:
        return 0.0, 0.0  # the elementwise test judges an all-zero reference
    native = float(np.linalg.norm(_error(expected.native, expected.reference, finite))) / norm
    response = float(np.linalg.norm(_response(expected, finite))) / norm
    floor = FLOOR_ULPS_L2 * EPSILON[expected.dtype] + FLOOR_SUBNORMAL_UNITS * SMALLEST_NORMAL[expected.dtype] * (
        np.sqrt(error.size) / norm
    )
    # One draw of n roundings tells their size only to 1/sqrt(n): a scalar's native error may be zero by luck.
    spread = 1.0 + TAIL_FACTOR / np.sqrt(max(int(finite.sum()), 1))
    return float(np.linalg.norm(error)) / norm, float(factor * spread * (native + response) + floor)


def _error(values: np.ndarray, reference: np.ndarray, finite: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(finite, np.abs(np.where(finite, values - reference, 0.0)), 0.0)


def _response(expected: Expectation, finite: np.ndarray) -> np.ndarray:
    """How far the reference moves when the inputs move by one unit; 0 where that is not finite."""
    if expected.perturbed is None:
        return np.zeros(expected.reference.shape)
    return _error(expected.perturbed, expected.reference, finite & np.isfinite(expected.perturbed))


def _rms(magnitude: np.ndarray, finite: np.ndarray) -> float:
    n = int(finite.sum())
    return float(np.linalg.norm(magnitude)) / np.sqrt(n) if n else 0.0


def _compare_exactly(found: np.ndarray, expected: Expectation, written: np.ndarray | None) -> TensorError:
    judged = np.ones(found.shape, bool) if written is None else written
    wrong = judged & (found != expected.native) & (found != expected.reference)
    index = _first_index(wrong)
    distance = np.abs(found.astype(np.float64) - expected.native.astype(np.float64))
    return TensorError(
        output=expected.output,
        relative_l2=0.0,
        relative_l2_budget=0.0,
        max_error=float(np.where(judged, distance, 0.0).max(initial=0.0)),
        max_error_budget=0.0,
        n_wrong=int(wrong.sum()),
        n_elements=int(judged.sum()),
        worst_index=index,
        expected=float(expected.native[index]) if index is not None else None,
        found=float(found[index]) if index is not None else None,
    )


def _first_index(mask: np.ndarray) -> tuple[int, ...] | None:
    if not mask.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))
