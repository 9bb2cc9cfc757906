"""Compare every element of an output with its reference, in chunks of a few megabytes.

A chunk whose errors are all inside the fixed part of the tolerance needs only their sum of squares and maximum. Any
other chunk is compared element by element. Both give the same totals. The totals of chunks are added in order, so they
are the same for any number of threads.

No BLAS: its dot product wakes threads of its own from 10,000 elements on, one caller at a time, and they spin when
idle. Judging the 40 cases of a forward and backward from four threads took 7.5 s of two cores with it, 1.2 s with BLAS
held to one thread (numpy 2.4, OpenBLAS 0.3.31), and takes 0.15 s without.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.verify.oracle.arrays import decode, poisoned_elements
from kernel_lsp.verify.oracle.narrow_rounding import nearest

OVERFLOW_TOLERANCE = 2.0**-6
"""Relative tolerance where PyTorch overflows and the candidate does not. It is loose, since no native error scales
it."""
LOST_FACTOR = 2.0
"""Factor on the tolerance where PyTorch has NaN: its rounding is known only from other rows."""
CHUNK_ELEMENTS = 1 << 18
"""Elements of a chunk, 2 MB of float64. Every call of numpy hands over the interpreter's lock. Eight threads on 16
cores took 0.148 s for 64 Mi numbers in chunks of 2^16, 0.061 s in these and 0.045 s in chunks of 2^20, whose
temporaries would be hundreds of megabytes."""
MAX_THREADS = 8
CHUNKS_PER_THREAD = 4
"""Chunks of one thread's task, 2 ms of work: less does not repay the handover."""


@dataclass(frozen=True)
class Allowance:
    """The tolerance: `fixed` + `relative` x its own magnitude for an element, `relative_l2` for the whole."""

    fixed: float
    relative: float
    relative_l2: float


@dataclass
class Total:
    """Statistics of some elements. `worst` is the flat index of the element furthest outside its tolerance;
    `first_unwritten` of the first that holds only poison."""

    n_judged: int = 0
    n_wrong: int = 0
    squares: float = 0.0
    max_error: float = 0.0
    max_tolerance: float = 0.0
    worst: int = -1
    worst_excess: float = -np.inf
    n_unwritten: int = 0
    first_unwritten: int = -1

    def add(self, other: Total) -> None:
        """Add the statistics of later elements."""
        self.n_judged += other.n_judged
        self.n_wrong += other.n_wrong
        self.squares += other.squares
        self.max_error = max(self.max_error, other.max_error)
        self.max_tolerance = max(self.max_tolerance, other.max_tolerance)
        if other.worst >= 0 and (self.worst < 0 or other.worst_excess > self.worst_excess):
            self.worst, self.worst_excess = other.worst, other.worst_excess
        if self.n_unwritten == 0:
            self.first_unwritten = other.first_unwritten
        self.n_unwritten += other.n_unwritten


@dataclass(frozen=True)
class Sides:
    """Flat arrays of one output: the values found, as numbers or as stored, and those expected.

    `native` is None where it and the reference are finite everywhere. `judged` marks the elements that count, all when
    None. `is_nearest`: the output must be correctly rounded. `may_lose_nans`: where PyTorch has NaN, the reference has
    the number that remains without it.
    """

    dtype: DType
    found: np.ndarray
    reference: np.ndarray
    native: np.ndarray | None
    judged: np.ndarray | None
    is_nearest: bool = False
    may_lose_nans: bool = False

    def answer(self, part: slice) -> np.ndarray:
        """Return the expected values of some elements."""
        reference = self.reference[part]
        return nearest(reference, self.dtype) if self.is_nearest else reference


def floating_total(sides: Sides, allowance: Allowance) -> Total:
    """Compare numbers within a tolerance."""

    def look(part: slice, scratch: np.ndarray) -> Total:
        return _within_fixed(sides, allowance, part, scratch) or _elementwise(sides, allowance, part)

    return _over_chunks(sides.found.size, look)


def stored_total(sides: Sides, allowance: Allowance) -> Total:
    """Compare as `floating_total`, for elements as stored. Unwritten elements are counted, judged or not: they hold a
    NaN, so their chunk is never within the fixed tolerance."""

    def look(part: slice, scratch: np.ndarray) -> Total:
        return _within_fixed(sides, allowance, part, scratch) or _unwritten(
            sides, part, _elementwise(sides, allowance, part)
        )

    return _over_chunks(sides.found.size, look)


def exact_total(sides: Sides) -> Total:
    """Compare integers and booleans for equality."""
    return _over_chunks(sides.found.size, lambda part, _: _exact_chunk(sides, part))


Look = Callable[[slice, np.ndarray], Total]
"""Computes the total of one chunk. The array is scratch of a chunk's length, of float64."""


def _over_chunks(n: int, look: Look) -> Total:
    total = Total()
    for seen in _spans(n, look):
        for each in seen:
            total.add(each)
    return total


def _spans(n: int, look: Look) -> Iterator[list[Total]]:
    """Yield the totals of all chunks in order, in lists; by several threads where there is enough work."""
    parts = [slice(start, min(start + CHUNK_ELEMENTS, n)) for start in range(0, n, CHUNK_ELEMENTS)]
    spans = [parts[start : start + CHUNKS_PER_THREAD] for start in range(0, len(parts), CHUNKS_PER_THREAD)]

    def look_at(span: list[slice]) -> list[Total]:
        scratch = np.empty(min(n, CHUNK_ELEMENTS))
        return [look(part, scratch) for part in span]

    return map(look_at, spans) if len(spans) <= 1 else _threads().map(look_at, spans)


@cache
def _threads() -> ThreadPoolExecutor:
    """Return the pool shared by all judgements, so that they never use more threads than cores."""
    return ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1), thread_name_prefix="compare")


def _within_fixed(sides: Sides, allowance: Allowance, part: slice, scratch: np.ndarray) -> Total | None:
    """Return the total of a chunk whose errors are all within the fixed tolerance. None where one is not, where some
    value is not finite, and where some element does not count.

    A NaN or an infinity on either side gives an error for which every comparison with a number is false.
    """
    if not (sides.judged is None or sides.judged[part].all()):
        return None
    if not (sides.native is None or np.isfinite(sides.native[part]).all()):
        return None
    reference, values = sides.answer(part), decode(sides.found[part], sides.dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.subtract(values, reference, out=scratch[: values.size], dtype=np.float64)
        highest, lowest = float(error.max()), float(error.min())
        if not (highest <= allowance.fixed and -lowest <= allowance.fixed):
            return None
        largest = max(float(reference.max()), -float(reference.min()))
        return Total(
            n_judged=error.size,
            squares=_sum_of_squares(error),
            max_error=max(highest, -lowest),
            max_tolerance=largest * allowance.relative + allowance.fixed,
        )


def _elementwise(sides: Sides, allowance: Allowance, part: slice) -> Total:
    """Compare non-finite values in kind, all others by the tolerance of each."""
    values = decode(sides.found[part], sides.dtype).astype(np.float64)
    reference = sides.answer(part)
    wrong_kind = np.zeros(values.shape, bool)
    if sides.native is not None:
        native = sides.native[part]
        ends = ~(np.isfinite(reference) & np.isfinite(native))
        of_ends = Ends(values[ends], reference[ends], native[ends], allowance, sides.may_lose_nans)
        wrong_kind[ends] = ~_same_kind(of_ends)
        reference, values = np.where(ends, 0.0, reference), np.where(ends, 0.0, values)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs(values - reference)
    tolerance = np.abs(reference) * allowance.relative + allowance.fixed
    if sides.judged is not None:
        keep = sides.judged[part]
        error, wrong_kind = np.where(keep, error, 0.0), wrong_kind & keep
    wrong = wrong_kind | ~(error <= tolerance)
    total = Total(
        n_judged=error.size if sides.judged is None else int(np.count_nonzero(sides.judged[part])),
        n_wrong=int(np.count_nonzero(wrong)),
        max_error=float(error.max()),
        max_tolerance=float(tolerance.max()),
    )
    if total.n_wrong:
        excess = np.where(wrong_kind, np.inf, np.where(wrong, np.nan_to_num(error - tolerance, nan=np.inf), -np.inf))
        worst = int(np.argmax(excess))
        total.worst, total.worst_excess = part.start + worst, float(excess[worst])
    total.squares = _sum_of_squares(error)
    return total


def _unwritten(sides: Sides, part: slice, total: Total) -> Total:
    """Add the elements that hold only poison."""
    missing = poisoned_elements(sides.found[part], sides.dtype)
    total.n_unwritten = int(np.count_nonzero(missing))
    if total.n_unwritten:
        total.first_unwritten = part.start + int(np.argmax(missing))
    return total


def _exact_chunk(sides: Sides, part: slice) -> Total:
    values, reference = sides.found[part], sides.reference[part]
    native = reference if sides.native is None else sides.native[part]
    keep = np.ones(values.shape, bool) if sides.judged is None else sides.judged[part]
    wrong = keep & (values != native) & (values != reference)
    distance = np.where(keep, np.abs(values.astype(np.float64) - native), 0.0)
    total = Total(
        n_judged=int(np.count_nonzero(keep)), n_wrong=int(np.count_nonzero(wrong)), max_error=float(distance.max())
    )
    if total.n_wrong:
        total.worst, total.worst_excess = part.start + int(np.argmax(wrong)), 0.0
    return total


def _sum_of_squares(error: np.ndarray) -> float:
    """Return the sum of squares. Overwrites the errors."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.square(error, out=error).sum())


@dataclass(frozen=True)
class Ends:
    """Elements of which the reference, or PyTorch's own result, is not finite."""

    found: np.ndarray
    reference: np.ndarray
    native: np.ndarray
    allowance: Allowance
    may_lose_nans: bool


@dataclass(frozen=True)
class Kind:
    """A row of the table in docs/checks.md: what PyTorch has, and which results of a kernel are correct there."""

    name: str
    pytorch: str
    kernel: str
    accepts: Callable[[Ends], np.ndarray]


def _near_reference(ends: Ends) -> np.ndarray:
    magnitude, fixed = np.abs(ends.reference), ends.allowance.fixed
    is_lost = np.isnan(ends.native) & ends.may_lose_nans
    own_tolerance = LOST_FACTOR * (magnitude * ends.allowance.relative + fixed)
    tolerance = np.where(is_lost, own_tolerance, OVERFLOW_TOLERANCE * magnitude + fixed)
    overflowed = np.isfinite(ends.reference) & ~np.isfinite(ends.native)
    return overflowed & (np.abs(ends.found - ends.reference) <= tolerance)


def _near_native(ends: Ends) -> np.ndarray:
    tolerance = np.abs(ends.native) * ends.allowance.relative + ends.allowance.fixed
    return np.isnan(ends.reference) & np.isfinite(ends.native) & (np.abs(ends.found - ends.native) <= tolerance)


KINDS = (
    Kind(
        "NaN",
        "NaN, or a number whose fp64 formula is NaN",
        "NaN",
        lambda ends: np.isnan(ends.found) & (np.isnan(ends.reference) | np.isnan(ends.native)),
    ),
    Kind(
        "infinity",
        "an infinity",
        "the same infinity",
        lambda ends: np.isinf(ends.found) & ((ends.found == ends.reference) | (ends.found == ends.native)),
    ),
    Kind("overflow", "an infinity or NaN that the fp64 formula does not have", "also its number", _near_reference),
    Kind("skipped", "a number whose fp64 formula is NaN (padding that is skipped)", "also that number", _near_native),
)
"""The rows for elements that are not finite: a result is correct if one of them accepts it."""


def _same_kind(ends: Ends) -> np.ndarray:
    accepted = np.zeros(ends.found.shape, bool)
    with np.errstate(invalid="ignore", over="ignore"):
        for kind in KINDS:
            accepted |= kind.accepts(ends)
    return accepted
