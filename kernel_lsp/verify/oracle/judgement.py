"""Judge output files against their expectations, and describe failures.

Alternatives to PyTorch's NaNs are accepted where these arise only from inf - inf or 0 * inf. A NaN of the inputs must
appear wherever PyTorch has one. An infinity differs: whether inf - inf is ever computed depends on the formula, and
correct kernels for one function differ in it. For example, an online softmax that counts its maximum as 1 has NaN where
the infinity was and 0 elsewhere in the row; PyTorch has NaN in the whole row. But no kernel may hide the infinity: a
diverged run must be visible. Maxima and limits may hide it, with a warning (`worker/oracle/lost_nans.py`). So at such
NaNs
- any non-finite result is correct, and
- a finite one is correct in a line of the output, along some dim, in which PyTorch has only such NaNs and some other
  result is not finite.
Infinities and numbers of the reference are required as everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.plan import BoundTensor
from kernel_lsp.core.verdict import CaseResult, Mismatch, TensorError
from kernel_lsp.verify.model.cases import OperationKind
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.oracle.arrays import decode, map_array, poisoned_elements
from kernel_lsp.verify.oracle.compare import (
    BACKWARD_FACTOR,
    FORWARD_FACTOR,
    Expectation,
    InputTraits,
    compare,
    compare_stored,
    is_within_budget,
)
from kernel_lsp.verify.oracle.narrow_rounding import cut_off

SAME_NUMBERS = "constant_rows"
"""The family whose rows are one number each, along the last dim."""
FEW_NUMBERS = frozenset((SAME_NUMBERS, "one_hot", "zeros", "lowest_rows", "highest_rows", "small_integers", "halves"))
"""Families of rows with at most seven different numbers."""
SHOWN_DIGITS, ALL_DIGITS = 6, 17
LATE_EXTREMES = "late_extremes"
"""The family with a running maximum that rises almost everywhere, so that an online softmax rounds its sum each
time."""
NEARLY_SAME = frozenset(("offset", "low"))
"""Families near 1000 or -20,000: in 16 bits they have a handful of distinct numbers."""
SUBNORMAL = "subnormal"
LOST = ": PyTorch has a NaN of the inputs there, and here it is lost"
NAN_FAMILIES = frozenset(("special_nan", "special_others", "special_mixed"))
"""Families whose inputs hold NaN."""
PLAIN_FAMILIES = frozenset(("normal", "uniform", "given"))
RECURRING_NUMBERS = FEW_NUMBERS | {"negative_zeros"}
"""Families in which some number makes up at least a quarter of all."""
SPECIAL_ROUNDINGS = 2048
"""Minimum drift with NaN or infinities among the inputs, in roundings: 1.2e-4 in f32. Precision is judged on other
families. With these inputs the response to rounded inputs is unknown, and a mixed-sign sum loses some of its digits."""
F32_UNIT, F64_UNIT = 2.0**-24, 2.0**-53
"""Half the distance from 1 to the next number: the maximum error of one rounding."""
MAX_TERMS, MAX_RECURRING_TERMS, MAX_EQUAL_TERMS = 1 << 17, 4096, 1 << 15
"""Maximum terms of a serial sum: a fast kernel splits longer ones, e.g. each lane of one warp has 32,768 terms of a
million. At these lengths the drift is 2e-5, 1.2e-4 where numbers recur, and 1e-3 where all are equal; the error of TF32
is 3e-4."""


def judge_outputs(
    direction: OperationKind,
    case: CaseResult,
    outputs: Sequence[tuple[BoundTensor, Path]],
    expectations: Sequence[Expectation],
    written: Sequence[np.ndarray | None] = (),
    *,
    are_sampled: bool = False,
) -> CaseResult | Mismatch:
    """Return the case with its errors, or the first failure. `written` marks the elements that were run, where not all
    were. Where all were, an unwritten element is an error of its own. `are_sampled`: the files hold only the slices
    that are compared, where an expectation has a sample."""
    misshapen = _misshapen([tensor for tensor, _ in outputs], expectations)
    if misshapen:
        return Mismatch(message=misshapen, failed=case)
    factor = FORWARD_FACTOR if direction == "forward" else BACKWARD_FACTOR
    masks = written or [None] * len(outputs)
    errors = tuple(
        _in_whole(
            expectation,
            _judge_output(tensor, _compared(tensor, path, expectation, are_sampled), expectation, factor, mask, case),
        )
        for (tensor, path), expectation, mask in zip(outputs, expectations, masks, strict=True)
    )
    result = case.model_copy(update={"errors": errors})
    wrong = next((error for error in errors if not is_within_budget(error)), None)
    return result if wrong is None else Mismatch(message=describe_error(wrong, result), failed=result)


def lost_nans(cases: Sequence[CaseResult]) -> tuple[Finding, ...]:
    """Return a warning where the candidate drops NaN that PyTorch propagates."""
    names = dict.fromkeys(error.output for case in cases for error in case.errors if error.n_nans_lost)
    if not names:
        return ()
    message = (
        f"NaN of the inputs is lost in {', '.join(map(repr, names))}: fmaxf, fminf and x > 0 ? x : 0 leave it out, and "
        "PyTorch lets it through, so that a run that has diverged shows it (x < 0 ? 0 : x keeps it)"
    )
    return (Finding(code="nan-lost", severity=Severity.WARNING, source="verdict", message=message),)


def describe_error(error: TensorError, result: CaseResult) -> str:
    """Describe an incorrect output: where, by how much, on which case."""
    shapes = ", ".join(f"{name}{list(shape)}" for name, shape in result.shapes.items())
    case = f"inputs '{result.family}', {shapes}, on {result.device}"
    if error.found is None and error.n_wrong:
        return f"{error.n_wrong} of {error.n_elements} elements of '{error.output}' are never written ({case})"
    if error.worst_index is None:
        return (
            f"'{error.output}' is {error.relative_l2:.2e} from the fp64 reference (relative L2), "
            f"and {error.relative_l2_budget:.2e} is allowed ({case})"
        )
    if error.n_cut_off:
        return (
            f"'{error.output}' is cut off toward zero, not rounded to the nearest number: at {list(error.worst_index)} "
            f"{_both_numbers(error)}, and as many as {error.n_cut_off} elements like it; all are off to the same side "
            f"({case})"
        )
    return (
        f"{error.n_wrong} of {error.n_elements} elements of '{error.output}' are wrong: at {list(error.worst_index)} "
        f"{_both_numbers(error)} ({case}){_why_nan(error, result)}"
    )


def _both_numbers(error: TensorError) -> str:
    """Describe the found and expected numbers, with enough digits to differ. 64-bit integers may have more digits than
    that."""
    pairs = ((f"{error.found:.{n}g}", f"{error.expected:.{n}g}") for n in (SHOWN_DIGITS, ALL_DIGITS))
    return next((f"{a} instead of {b}" for a, b in pairs if a != b), f"a number beside {error.expected:.{ALL_DIGITS}g}")


def _why_nan(error: TensorError, result: CaseResult) -> str:
    """Explain the origin of PyTorch's NaN where the candidate has a number; empty elsewhere."""
    if error.found is None or error.expected is None or not math.isnan(error.expected) or math.isnan(error.found):
        return ""
    if _family(result) in INFINITE_FAMILIES:
        return (
            ": infinities of the inputs meet there (inf - inf, 0 * inf), PyTorch gives NaN, and no result beside it "
            "shows that something is not finite"
        )
    return LOST if _family(result) in NAN_FAMILIES else ""


def _misshapen(outputs: Sequence[BoundTensor], expectations: Sequence[Expectation]) -> str:
    """Describe outputs of a wrong shape; empty when there are none. A plan may fit all sizes of another configuration
    of its task and lack a constant of it, such as a stride."""
    for tensor, expectation in zip(outputs, expectations, strict=True):
        if expectation.sampled_shape(tuple(tensor.shape)) != expectation.reference.shape:
            shapes = f"{list(tensor.shape)}, and PyTorch gives {list(expectation.reference.shape)}"
            return f"the plan gives '{tensor.name}' the shape {shapes}"
    return ""


def _compared(tensor: BoundTensor, path: Path, expectation: Expectation, is_sampled: bool) -> np.ndarray:
    """Return the stored values that are compared."""
    if is_sampled:
        return map_array(path, tensor.dtype, expectation.sampled_shape(tuple(tensor.shape)))
    return expectation.sampled(map_array(path, tensor.dtype, tensor.shape))


def _judge_output(
    tensor: BoundTensor,
    found: np.ndarray,
    expectation: Expectation,
    factor: float,
    mask: np.ndarray | None,
    case: CaseResult,
) -> TensorError:
    mask = None if mask is None else expectation.sampled(mask)
    traits = _traits(case, tensor, expectation.rounding.may_recur)

    def judged(values: np.ndarray) -> TensorError:
        values = values if is_on("nonfinite") else _with_finite(values, expectation)
        if mask is None and tensor.dtype.is_floating:
            return compare_stored(values, expectation, factor=factor, inputs=traits)
        return compare(values, expectation, factor=factor, written=mask, inputs=traits)

    error = judged(found)
    if expectation.may_lose_nans and _family(case) in NAN_FAMILIES:
        return error.model_copy(update={"n_nans_lost": _n_nans_lost(found, expectation, mask)})
    if is_within_budget(error) and _family(case) in PLAIN_FAMILIES:
        return _unless_cut_off(error, found, expectation, mask)
    if is_within_budget(error) or _family(case) not in INFINITE_FAMILIES:
        return error
    return judged(with_nan_where_as_good(found, expectation))


def _in_whole(expectation: Expectation, error: TensorError) -> TensorError:
    """Return the error with its place in the whole output."""
    place = None if error.worst_index is None else expectation.place_in_whole(error.worst_index)
    return error.model_copy(update={"worst_index": place})


def _with_finite(found: np.ndarray, expectation: Expectation) -> np.ndarray:
    """Replace NaN and infinities by the reference, except poison."""
    is_kept = np.isfinite(found) | poisoned_elements(found, expectation.dtype)
    return np.where(is_kept, found, expectation.reference.astype(found.dtype))


def _unless_cut_off(
    error: TensorError, found: np.ndarray, expectation: Expectation, mask: np.ndarray | None
) -> TensorError:
    cut = cut_off(found, expectation.reference, expectation.dtype, expectation.specified(mask))
    if cut is None:
        return error
    at = slice(cut.first, cut.first + 1)
    index = np.unravel_index(cut.first, expectation.reference.shape)
    shown = {
        "worst_index": tuple(int(i) for i in index),
        "expected": float(expectation.reference.reshape(-1)[cut.first]),
        "found": float(decode(found.reshape(-1)[at], expectation.dtype)[0]),
    }
    return error.model_copy(update={"n_cut_off": cut.n, **shown})


def _n_nans_lost(found: np.ndarray, expectation: Expectation, mask: np.ndarray | None) -> int:
    """Count elements in which the candidate lost PyTorch's NaN, or its index, and which are accepted."""
    lost = _replaced_nans(found, expectation) if expectation.dtype.is_floating else _other_places(found, expectation)
    return int(np.count_nonzero(lost if mask is None else lost & mask))


def _replaced_nans(found: np.ndarray, expectation: Expectation) -> np.ndarray:
    native, lost = expectation.native, np.zeros(found.shape, bool)
    if native is not None:
        lost |= np.isnan(native) & ~np.isnan(expectation.reference)
    if expectation.unspecified is not None:
        lost |= expectation.unspecified
    return lost & ~np.isnan(decode(found, expectation.dtype))


def _other_places(found: np.ndarray, expectation: Expectation) -> np.ndarray:
    """Mask the integers that equal the reference's and not PyTorch's, where both are specified."""
    if expectation.native is None:
        return np.zeros(found.shape, bool)
    lost = (found == expectation.reference) & (found != expectation.native)
    for is_free in (expectation.unspecified, expectation.chosen.ties if expectation.chosen is not None else None):
        lost = lost if is_free is None else lost & ~is_free
    return lost


def _family(case: CaseResult) -> str:
    return case.family.split(",")[0]


def _traits(case: CaseResult, output: BoundTensor, may_recur: bool) -> InputTraits:
    family = _family(case)
    return InputTraits(
        drift=_drift(family, case, output, may_recur),
        n_different=1 if family in FEW_NUMBERS | NEARLY_SAME else 0,
        are_subnormal=family == SUBNORMAL,
    )


def _drift(family: str, case: CaseResult, output: BoundTensor, may_recur: bool) -> float:
    """Return the relative error that a serial sum in each thread may have. PyTorch on a CPU sums in blocks and hardly
    drifts, so its own error is no measure. Narrow types are summed in f32. A sum may run along any dim, or over
    several: the gradient of a weight sums all rows, over any number of dims.

    With u the maximum error of one rounding, the error is at most u times the sum of all partial sums' magnitudes
    (Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 4.2). For n equal terms of one sign
    that is u n / 2 of the sum. The bound is reached, since adding a number to the grid of a binade always rounds to the
    same side. Values that integers look up may be equal, too. Roundings of different numbers add up like a random walk
    instead, to u times the square root of n (Higham and Mary, A new approach to probabilistic rounding error analysis,
    2019).
    """
    unit = F64_UNIT if output.dtype is DType.F64 else F32_UNIT
    longest_dim = max((size for shape in case.shapes.values() for size in shape), default=1)
    largest_input = max((math.prod(shape) for shape in case.shapes.values()), default=1)
    n_terms = max(longest_dim, largest_input // max(output.n_elements, 1))
    if family in NAN_FAMILIES | INFINITE_FAMILIES:
        return unit * max(SPECIAL_ROUNDINGS, min(n_terms, MAX_TERMS) ** 0.5)
    if family in (SAME_NUMBERS, LATE_EXTREMES):
        return unit * min(n_terms, MAX_EQUAL_TERMS) / 2
    if family in RECURRING_NUMBERS or may_recur:
        return unit * min(n_terms, MAX_EQUAL_TERMS if may_recur else MAX_RECURRING_TERMS) / 2
    return unit * min(n_terms, MAX_TERMS) ** 0.5


ROW = (
    "infinities that meet",
    "NaN that arises only from inf - inf or 0 * inf",
    "NaN or an infinity; also a number where PyTorch's whole row is such NaN and the kernel's row is not all finite",
)
"""The row of the table in docs/checks.md: its name, what PyTorch has, what a kernel must have."""
INFINITE_FAMILIES = frozenset(("special_inf", "special_minus_inf"))
"""Families whose inputs hold infinities, and no NaN."""
_BF16_NAN = np.uint16(0x7FC0)


def with_nan_where_as_good(found: np.ndarray, expected: Expectation) -> np.ndarray:
    """Replace accepted alternatives in the stored results by PyTorch's NaN. Unwritten elements stay unchanged."""
    if expected.native is None or not expected.dtype.is_floating:
        return found
    missing, specified = np.isnan(expected.native), expected.specified()
    missing = missing if specified is None else missing & specified
    written = ~poisoned_elements(found, expected.dtype).reshape(found.shape)
    seen = missing & written & ~np.isfinite(decode(found, expected.dtype))
    # Where the reference is a number (e.g. behind a mask, or under a maximum) no other number is correct.
    as_good = seen | (written & np.isnan(expected.reference) & missing & _in_seen_lines(missing, seen))
    nan = _BF16_NAN if expected.dtype is DType.BF16 else found.dtype.type(np.nan)
    return np.where(as_good, nan, found)


def _in_seen_lines(missing: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """Return the mask of lines, along some dim, in which PyTorch has only NaN and some result is seen not to be
    finite."""
    found = np.zeros(seen.shape, bool)
    for axis in range(seen.ndim):
        found |= missing.all(axis=axis, keepdims=True) & seen.any(axis=axis, keepdims=True)
    return found
