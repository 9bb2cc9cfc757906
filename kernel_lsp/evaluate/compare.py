"""Is an output right? Its error against the fp64 reference, held to what its dtype allows here.

The budget follows what trusted PyTorch itself loses at the declared dtype on the same inputs: `k` times the error of
the native run, plus the response of the fp64 reference to inputs perturbed by one unit of the dtype (a backward-stable
algorithm may be that far off, and a lucky native run says nothing), plus a floor of a few units in the last place.

Every element is looked at, in chunks that stay in a core's cache, by several threads: numpy lets go of Python's lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.verdict import TensorError
from kernel_lsp.evaluate.arrays import decode
from kernel_lsp.process.worker_client import Rounding

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


OVERFLOW_TOLERANCE = 2.0**-6
"""Where PyTorch overflows and we do not: relative, loose, because no native error is there to scale it."""
T = TypeVar("T")
CHUNK_ELEMENTS = 1 << 16
"""Half a megabyte of float64: a handful of temporaries fits a core's L2."""
MAX_THREADS = 8


@dataclass(frozen=True)
class Expectation:
    """What one output should be. `reference` is the fp64 result in the output's shape (exact types for integers);
    `native` is trusted PyTorch at the declared dtype, or None where all of both is finite: then `rounding` says all
    that is needed of it."""

    output: str
    dtype: DType
    reference: np.ndarray
    native: np.ndarray | None
    rounding: Rounding


def compare(
    found: np.ndarray,
    expected: Expectation,
    *,
    factor: float,
    written: np.ndarray | None = None,
    drift: float = 0.0,
) -> TensorError:
    """The error of `found`, as numbers or as stored (bfloat16 as uint16). `written` marks the elements to judge, all
    when None. `drift` is what a long sum may be off, relative to it. Non-finite values are compared in kind: a NaN or
    an infinity passes only where the reference, or PyTorch at the same dtype, has the same."""
    flat = np.ascontiguousarray(found).reshape(-1)
    judged = None if written is None else np.ascontiguousarray(written).reshape(-1)
    if expected.dtype.is_floating:
        allowance = _Allowance.of(expected, factor, drift)
        total = _over_chunks(flat.size, lambda part: _float_chunk(flat, expected, allowance, judged, part))
    else:
        allowance = _Allowance(0.0, 0.0, 0.0)
        total = _over_chunks(flat.size, lambda part: _exact_chunk(flat, expected, judged, part))
    return _error_of(total, flat, expected, allowance)


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


def any_in_chunks(values: np.ndarray, marks: Callable[[np.ndarray], np.ndarray]) -> bool:
    """Whether `marks`, asked about each part, marks any element."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return any(_mapped(lambda part: bool(marks(flat[part]).any()), _parts(flat.size)))


def is_within_budget(error: TensorError) -> bool:
    """Whether the output passes. Written so that a NaN error fails."""
    return error.n_wrong == 0 and error.relative_l2 <= error.relative_l2_budget


# --- below: what is allowed


@dataclass(frozen=True)
class _Allowance:
    """An element may be off by `fixed` + `relative` x its own magnitude, the whole by `relative_l2`."""

    fixed: float
    relative: float
    relative_l2: float

    @staticmethod
    def of(expected: Expectation, factor: float, drift: float) -> _Allowance:
        rounding, epsilon, smallest = expected.rounding, EPSILON[expected.dtype], SMALLEST_NORMAL[expected.dtype]
        n, norm = rounding.n_finite, rounding.reference_l2
        rms = norm / np.sqrt(n) if n else 0.0
        tail = TAIL_FACTOR * factor * (rounding.native_max + rounding.response_max)
        fixed = tail + FLOOR_ULPS_RMS * epsilon * rms + FLOOR_SUBNORMAL_UNITS * smallest
        relative = FLOOR_ULPS * epsilon + drift
        if norm == 0.0:
            return _Allowance(fixed, relative, 0.0)  # the elementwise test judges an all-zero reference
        floor = FLOOR_ULPS_L2 * epsilon + FLOOR_SUBNORMAL_UNITS * smallest * np.sqrt(expected.reference.size) / norm
        # One draw of n roundings tells their size only to 1/sqrt(n): a scalar's native error may be zero by luck.
        spread = 1.0 + TAIL_FACTOR / np.sqrt(max(n, 1))
        l2 = factor * spread * (rounding.native_l2 + rounding.response_l2) / norm + floor
        return _Allowance(float(fixed + TAIL_FACTOR * drift * rms), relative, float(l2 + drift))


# --- below: chunks


@dataclass
class _Total:
    """What was seen of some elements. `worst` is the flat index of the element furthest outside its tolerance."""

    n_judged: int = 0
    n_wrong: int = 0
    squares: float = 0.0
    max_error: float = 0.0
    max_tolerance: float = 0.0
    worst: int = -1
    worst_excess: float = -np.inf

    def add(self, other: _Total) -> None:
        self.n_judged += other.n_judged
        self.n_wrong += other.n_wrong
        self.squares += other.squares
        self.max_error = max(self.max_error, other.max_error)
        self.max_tolerance = max(self.max_tolerance, other.max_tolerance)
        if other.worst >= 0 and (self.worst < 0 or other.worst_excess > self.worst_excess):
            self.worst, self.worst_excess = other.worst, other.worst_excess


def _over_chunks(n: int, look: Callable[[slice], _Total]) -> _Total:
    """The total over all elements, in order, so that it is the same for any number of threads."""
    total = _Total()
    for seen in _mapped(look, _parts(n)):
        total.add(seen)
    return total


def _parts(n: int) -> list[slice]:
    return [slice(start, min(start + CHUNK_ELEMENTS, n)) for start in range(0, n, CHUNK_ELEMENTS)]


def _mapped(look: Callable[[slice], T], parts: list[slice]) -> Iterator[T]:
    n_threads = min(MAX_THREADS, os.cpu_count() or 1, len(parts))
    if n_threads <= 1:
        yield from map(look, parts)
        return
    with ThreadPoolExecutor(n_threads) as pool:
        yield from pool.map(look, parts)


def _float_chunk(
    found: np.ndarray, expected: Expectation, allowance: _Allowance, judged: np.ndarray | None, part: slice
) -> _Total:
    values = decode(found[part], expected.dtype).astype(np.float64)
    reference = expected.reference.reshape(-1)[part]
    if expected.native is not None:
        native = expected.native.reshape(-1)[part]
        finite = np.isfinite(reference) & np.isfinite(native)
        wrong_kind = ~finite & ~_same_kind(values, reference, native)
        reference, values = np.where(finite, reference, 0.0), np.where(finite, values, 0.0)
    else:
        wrong_kind = np.zeros(values.shape, bool)
    error = np.abs(values - reference)
    tolerance = np.abs(reference) * allowance.relative + allowance.fixed
    if judged is not None:
        keep = judged[part]
        error, wrong_kind = np.where(keep, error, 0.0), wrong_kind & keep
    wrong = wrong_kind | ~(error <= tolerance)
    total = _Total(
        n_judged=error.size if judged is None else int(keep.sum()),
        n_wrong=int(np.count_nonzero(wrong)),
        squares=float(np.dot(error, error)),
        max_error=float(error.max(initial=0.0)),
        max_tolerance=float(tolerance.max(initial=0.0)),
    )
    if total.n_wrong:
        excess = np.where(wrong_kind, np.inf, np.where(wrong, np.nan_to_num(error - tolerance, nan=np.inf), -np.inf))
        worst = int(np.argmax(excess))
        total.worst, total.worst_excess = part.start + worst, float(excess[worst])
    return total


def _same_kind(found: np.ndarray, reference: np.ndarray, native: np.ndarray) -> np.ndarray:
    """Where the reference or PyTorch is not finite: is ours the same infinity or NaN as one of them, or, where only
    the declared dtype overflowed, close to the finite reference?"""
    nan = np.isnan(found) & (np.isnan(reference) | np.isnan(native))
    infinity = np.isinf(found) & ((found == reference) | (found == native))
    overflowed = np.isfinite(reference) & ~np.isfinite(native)
    with np.errstate(invalid="ignore", over="ignore"):
        close = overflowed & (np.abs(found - reference) <= OVERFLOW_TOLERANCE * np.abs(reference))
    return nan | infinity | close


def _exact_chunk(found: np.ndarray, expected: Expectation, judged: np.ndarray | None, part: slice) -> _Total:
    values, reference = found[part], expected.reference.reshape(-1)[part]
    native = reference if expected.native is None else expected.native.reshape(-1)[part]
    keep = np.ones(values.shape, bool) if judged is None else judged[part]
    wrong = keep & (values != native) & (values != reference)
    distance = np.where(keep, np.abs(values.astype(np.float64) - native), 0.0)
    total = _Total(
        n_judged=int(keep.sum()), n_wrong=int(np.count_nonzero(wrong)), max_error=float(distance.max(initial=0.0))
    )
    if total.n_wrong:
        total.worst, total.worst_excess = part.start + int(np.argmax(wrong)), 0.0
    return total


def _error_of(total: _Total, found: np.ndarray, expected: Expectation, allowance: _Allowance) -> TensorError:
    norm, worst = expected.rounding.reference_l2, total.worst
    is_floating = expected.dtype.is_floating
    shown = expected.native if expected.native is not None and not is_floating else expected.reference
    index = np.unravel_index(worst, expected.reference.shape) if worst >= 0 else ()
    return TensorError(
        output=expected.output,
        relative_l2=float(np.sqrt(total.squares)) / norm if is_floating and norm else 0.0,
        relative_l2_budget=allowance.relative_l2,
        max_error=total.max_error,
        max_error_budget=total.max_tolerance,
        n_wrong=total.n_wrong,
        n_elements=total.n_judged,
        worst_index=tuple(int(i) for i in index) if worst >= 0 else None,
        expected=float(shown.reshape(-1)[worst]) if worst >= 0 else None,
        found=float(decode(found[worst : worst + 1], expected.dtype)[0]) if worst >= 0 else None,
    )


def _first_index(mask: np.ndarray) -> tuple[int, ...] | None:
    if not mask.any():
        return None
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(mask)), mask.shape))
