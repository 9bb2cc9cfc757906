"""Compare an output with the fp64 reference, within the tolerance of its dtype.

The tolerance follows what trusted PyTorch itself loses at the declared dtype on the same inputs. It is `k` times the
error of the native run, plus the response of the fp64 reference to inputs perturbed by one unit of the dtype, plus a
floor of a few units in the last place. The perturbation is there since a backward-stable algorithm may be that far off,
while a native run may be accurate by chance. Outputs rounded exactly once to 16 bits must be correctly rounded.

Every element is compared (`compare_chunks`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.verdict import TensorError
from kernel_lsp.process.case_files import ChosenFrom, Rounding, Slices
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.oracle.arrays import decode
from kernel_lsp.verify.oracle.compare_chunks import (
    Allowance,
    Sides,
    Total,
    exact_total,
    floating_total,
    stored_total,
)
from kernel_lsp.verify.oracle.narrow_rounding import FORMATS

N_UNITS = 4
"""Maximum difference of equal elements, in units: two that changed places may each have moved by one unit."""


@dataclass(frozen=True)
class Choice:
    """The elements selected from, and the kind of selection. `ties` masks the output's elements that are judged by it:
    there the index of any equal element is correct."""

    values: np.ndarray
    ties: np.ndarray
    how: ChosenFrom

    @property
    def dim(self) -> int:
        """Return the dim of the selection."""
        return self.how.dim

    def in_memory(self) -> Choice:
        """Return a copy that is not backed by a file."""
        return replace(self, values=self.values.copy(), ties=self.ties.copy())


def choice_total(choice: Choice, found: np.ndarray, reference: np.ndarray, written: np.ndarray | None) -> Total:
    """Judge the indices of tied elements, of which `reference` has one correct choice."""
    is_open = choice.ties if written is None else choice.ties & written.reshape(choice.ties.shape)
    shape = np.moveaxis(_along(choice, is_open), choice.dim, -1).shape
    open_lines = _lines(choice, is_open)
    asked = open_lines.any(axis=1)
    values, open_lines = _lines(choice, choice.values)[asked], open_lines[asked]
    places = _lines(choice, found.reshape(reference.shape))[asked].astype(np.int64)
    right = np.where(open_lines, _lines(choice, reference)[asked], 0).astype(np.int64)
    is_place = (places >= 0) & (places < values.shape[1])
    ours = np.take_along_axis(values, np.where(is_place, places, 0), axis=1)
    theirs = np.take_along_axis(values, right, axis=1)
    apart = N_UNITS * choice.how.unit * np.maximum(np.abs(theirs), choice.how.least)
    wrong = ~is_place | ~(np.abs(ours - theirs) <= apart)
    if choice.how.each_once:
        wrong |= _repeated(places, None if written is None else _lines(choice, written.reshape(is_open.shape))[asked])
    wrong &= open_lines
    total = Total(n_judged=int(np.count_nonzero(is_open)), n_wrong=int(np.count_nonzero(wrong)))
    if total.n_wrong:
        everywhere = np.zeros((asked.size, wrong.shape[1]), bool)
        everywhere[asked] = wrong
        total.worst = int(np.argmax(np.moveaxis(everywhere.reshape(shape), -1, choice.dim)))
        total.worst_excess, total.max_error = 0.0, float(np.abs(places - right)[wrong].max())
    return total


def _along(choice: Choice, places: np.ndarray) -> np.ndarray:
    """Restore the dim of the selection, where the output lacks it."""
    return places if places.ndim == choice.values.ndim else np.expand_dims(places, choice.dim)


def _lines(choice: Choice, array: np.ndarray) -> np.ndarray:
    """Return one row for each line along the dim."""
    moved = np.moveaxis(_along(choice, array), choice.dim, -1)
    return moved.reshape(-1, moved.shape[-1])


def _repeated(places: np.ndarray, written: np.ndarray | None) -> np.ndarray:
    """Return the mask of indices that occur more than once in their row, among those that were written."""
    own = -1 - np.arange(places.shape[1])  # distinct from each other and from every index
    different = places if written is None else np.where(written, places, own)
    order = np.argsort(different, axis=1, kind="stable")
    is_next_same = np.diff(np.take_along_axis(different, order, axis=1), axis=1) == 0
    is_same = np.pad(is_next_same, ((0, 0), (0, 1))) | np.pad(is_next_same, ((0, 0), (1, 0)))
    repeated = np.empty_like(is_same)
    np.put_along_axis(repeated, order, is_same, axis=1)
    return repeated


FORWARD_FACTOR = 2.0
BACKWARD_FACTOR = 5.0
"""k of the tolerance, forward and backward."""
EPSILON = {DType.F64: 2.0**-52, DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}
"""Distance from 1 to the next number of the type."""
FLOOR_ULPS = 8.0
"""Elementwise floor, in units of the element itself. CUDA documents expf, logf and powf at up to 2 ulp each, and a
chain of a few of them must pass."""
FLOOR_ULPS_L2 = 4.0
NARROW_FLOOR_ULPS_L2 = 1.0
"""L2 floor in units, for many different 16-bit numbers, whose roundings average out. Rounding after each step of gelu,
silu, mish, softmax, RMS or layer norm, as packed 16-bit arithmetic does, reaches at most 1.1 units; twice PyTorch's own
error allows another 0.4 (measured: torch 2.13, 64 x 256 numbers of six families). Three bits fewer reach 1.7."""
FLOOR_ULPS_RMS = 2.0
"""Elementwise floor in units of the whole output's root mean square: the error that cancellation may leave in a small
element."""
TAIL_FACTOR = 4.0
"""Factor on the native run's largest error that bounds the error of one element. The worst of 1e5 roundings is
random, and cuBLAS sums a row serially where the CPU's library sums it in blocks. The relative L2 catches systematic
loss of precision; an element that is wrong for another reason exceeds this by far."""
FLOOR_SUBNORMAL_UNITS = 4.0
"""Elementwise floor, in smallest normal numbers: below them every type loses relative precision."""
KEPT_SUBNORMAL_UNITS = 2.0**-6
"""Elementwise floor for subnormal inputs, in smallest normal numbers. PyTorch's kernels are compiled without `-ftz`,
and keep subnormal numbers of f32. A hundredth of them covers their few digits."""
LENIENT = 1e-2
"""Tolerance without the defence `budget`, on the whole of an output, as other harnesses have it."""
SMALLEST_NORMAL = {DType.F64: 2.0**-1022, DType.F32: 2.0**-126, DType.F16: 2.0**-14, DType.BF16: 2.0**-126}


@dataclass(frozen=True)
class Expectation:
    """The expected value of one output.

    `reference` is the fp64 result in the output's shape (exact types for integers). `native` is trusted PyTorch at the
    declared dtype, or None where both are finite everywhere: `rounding` then suffices. `unspecified` masks the elements
    for which any value is correct; None where there are none.
    """

    output: str
    dtype: DType
    reference: np.ndarray
    native: np.ndarray | None
    rounding: Rounding
    may_lose_nans: bool = False
    """`reference` has numbers in place of PyTorch's NaNs, which are correct as well."""
    chosen: Choice | None = None
    """The elements that integers of a selection index, where `reference` has one correct choice of several."""
    unspecified: np.ndarray | None = None
    slices: Slices | None = None
    """Slices of the output that the other arrays hold; None where they hold all of it."""

    def sampled(self, whole: np.ndarray) -> np.ndarray:
        """Return the slices of a whole output, or mask of one, that are compared: all without a sample."""
        if self.slices is None:
            return whole
        dim = self.slices.dims[self.output]
        at = np.concatenate([np.arange(start, end) for start, end in self.slices.ranges])
        return np.take(whole, at, axis=dim)

    def sampled_shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of what is compared of an output of this shape."""
        if self.slices is None:
            return whole
        dim = self.slices.dims[self.output]
        return (*whole[:dim], self.slices.n, *whole[dim + 1 :])

    def place_in_whole(self, index: tuple[int, ...]) -> tuple[int, ...]:
        """Return the index in the whole output of an element of what is compared."""
        if self.slices is None:
            return index
        dim = self.slices.dims[self.output]
        at = [place for start, end in self.slices.ranges for place in range(start, end)]
        return (*index[:dim], at[index[dim]], *index[dim + 1 :])

    def specified(self, among: np.ndarray | None = None) -> np.ndarray | None:
        """Return the mask of elements that are not unspecified, of those `among` a mask; None for all elements."""
        if self.unspecified is None:
            return among
        return ~self.unspecified if among is None else among.reshape(self.unspecified.shape) & ~self.unspecified


@dataclass(frozen=True)
class InputTraits:
    """Influence of a case's inputs on errors.

    `drift` is the relative error that a long sum of them may have. `n_different` is the number of distinct values where
    they are too few for errors to average out, 0 for many. `are_subnormal`: they are below the smallest normal number
    of f32.
    """

    drift: float = 0.0
    n_different: int = 0
    are_subnormal: bool = False


ANY_INPUTS = InputTraits()


def compare(
    found: np.ndarray,
    expected: Expectation,
    *,
    factor: float,
    written: np.ndarray | None = None,
    inputs: InputTraits = ANY_INPUTS,
) -> TensorError:
    """Return the error of `found`, as numbers or as stored (bfloat16 as uint16). `written` marks the elements to judge,
    all when None. Non-finite values are compared in kind: a NaN or an infinity passes only where the reference, or
    PyTorch at the same dtype, has the same."""
    sides = _sides(found, expected, written)
    if not expected.dtype.is_floating:
        total = exact_total(sides)
        if expected.chosen is not None and is_on("choices"):
            total.add(choice_total(expected.chosen, found, expected.reference, written))
        return _error_of(total, sides.found, expected, NO_ALLOWANCE)
    allowance = _allowance(expected, factor, inputs)
    return _error_of(floating_total(sides, allowance), sides.found, expected, allowance)


def compare_stored(found: np.ndarray, expected: Expectation, *, factor: float, inputs: InputTraits) -> TensorError:
    """Return the error of a whole floating output as stored in its file, which was poisoned before. As `compare`, but
    elements that were never written are the error where there are any."""
    sides, allowance = _sides(found, expected, None), _allowance(expected, factor, inputs)
    total = stored_total(sides, allowance)
    if total.n_unwritten:
        return _unwritten_error(total, expected)
    return _error_of(total, sides.found, expected, allowance)


def is_within_budget(error: TensorError) -> bool:
    """Check that the output passes. A NaN error fails."""
    if not is_on("budget"):
        return error.relative_l2 <= LENIENT
    return error.n_wrong == 0 and error.n_cut_off == 0 and error.relative_l2 <= error.relative_l2_budget


NO_ALLOWANCE = Allowance(0.0, 0.0, 0.0)


def _allowance(expected: Expectation, factor: float, inputs: InputTraits) -> Allowance:
    if _is_nearest(expected):
        return _exact_allowance(expected)
    rounding, epsilon, smallest = expected.rounding, EPSILON[expected.dtype], SMALLEST_NORMAL[expected.dtype]
    drift = inputs.drift
    n, norm = rounding.n_finite, rounding.reference_l2
    rms = norm / np.sqrt(n) if n else 0.0
    tail = TAIL_FACTOR * factor * (rounding.native_max + rounding.response_max)
    units = _subnormal_units(expected.dtype, inputs)
    fixed = tail + FLOOR_ULPS_RMS * epsilon * rms + units * smallest
    relative = FLOOR_ULPS * epsilon + drift
    if norm == 0.0:
        return Allowance(fixed, relative, 0.0)  # the elementwise test judges an all-zero reference
    flushed = _flushed(expected.dtype, units) * np.sqrt(expected.reference.size) / norm
    floor = _floor_ulps_l2(expected, inputs) * epsilon + flushed
    l2 = factor * _spread(n) * (rounding.native_l2 + rounding.response_l2) / norm + floor
    return Allowance(float(fixed + TAIL_FACTOR * drift * rms), relative, float(l2 + drift))


def _exact_allowance(expected: Expectation) -> Allowance:
    """Return the tolerance of a correctly rounded output: none, except that f32 arithmetic may flush its subnormal
    numbers."""
    smallest, norm = SMALLEST_NORMAL[DType.F32], expected.rounding.reference_l2
    return Allowance(smallest, 0.0, smallest * float(np.sqrt(expected.reference.size)) / norm if norm else 0.0)


def _is_nearest(expected: Expectation) -> bool:
    return expected.rounding.has_one_answer and expected.dtype in FORMATS


def _subnormal_units(dtype: DType, inputs: InputTraits) -> float:
    """Return the floor in smallest normal numbers. With subnormal inputs, an f32 result that flushes them is
    incorrect."""
    return KEPT_SUBNORMAL_UNITS if inputs.are_subnormal and dtype is DType.F32 else FLOOR_SUBNORMAL_UNITS


def _flushed(dtype: DType, units: float) -> float:
    """Return the error allowed for flushing small elements. f16 arithmetic keeps subnormal numbers to their last place;
    f32 arithmetic, which computes bf16, may flush them."""
    return units * SMALLEST_NORMAL[dtype] * (EPSILON[dtype] if dtype is DType.F16 else 1.0)


def _floor_ulps_l2(expected: Expectation, inputs: InputTraits) -> float:
    """Return the L2 floor in units, smaller for many 16-bit numbers. An error of the same few units everywhere is as
    large in L2."""
    if expected.dtype not in FORMATS:
        return FLOOR_ULPS_L2
    n_finite = expected.rounding.n_finite
    return min(FLOOR_ULPS_L2, NARROW_FLOOR_ULPS_L2 * _spread(min(inputs.n_different or n_finite, n_finite)))


def _spread(n: int) -> float:
    """Return the uncertainty of n roundings' size, 1/sqrt(n): a scalar's native error may be zero by chance."""
    return 1.0 + TAIL_FACTOR / float(np.sqrt(max(n, 1)))


def _sides(found: np.ndarray, expected: Expectation, written: np.ndarray | None) -> Sides:
    return Sides(
        dtype=expected.dtype,
        found=_flat(found),
        reference=_flat(expected.reference),
        native=None if expected.native is None else _flat(expected.native),
        judged=_judged(expected, written),
        is_nearest=_is_nearest(expected),
        may_lose_nans=expected.may_lose_nans,
    )


def _judged(expected: Expectation, written: np.ndarray | None) -> np.ndarray | None:
    """Return the flat mask of elements that are compared with the reference; None for all."""
    judged = expected.specified(written)
    if expected.chosen is not None:
        ties = _flat(expected.chosen.ties)
        return ~ties if judged is None else _flat(judged) & ~ties
    return None if judged is None else _flat(judged)


def _flat(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values).reshape(-1)


def _error_of(total: Total, found: np.ndarray, expected: Expectation, allowance: Allowance) -> TensorError:
    norm, worst = expected.rounding.reference_l2, total.worst
    is_floating = expected.dtype.is_floating
    shown = expected.native if expected.native is not None and not is_floating else expected.reference
    if worst >= 0 and expected.chosen is not None and expected.chosen.ties.reshape(-1)[worst]:
        shown = expected.reference
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


def _unwritten_error(total: Total, expected: Expectation) -> TensorError:
    index = tuple(int(i) for i in np.unravel_index(total.first_unwritten, expected.reference.shape))
    return TensorError(
        output=expected.output,
        relative_l2=float("inf"),
        relative_l2_budget=0.0,
        max_error=float("inf"),
        max_error_budget=0.0,
        n_wrong=total.n_unwritten,
        n_elements=expected.reference.size,
        worst_index=index,
        expected=float(expected.reference[index]),
        found=None,
    )
