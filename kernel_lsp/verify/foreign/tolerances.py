"""The tolerances of other benchmarks, for verdicts that are to be compared with theirs.

`strict` is ours (docs/checks.md): the error against an fp64 reference, within a budget of what PyTorch itself loses.
The others are elementwise: ``|found - expected| <= atol + rtol * |expected|``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kernel_lsp.config import ToleranceName
from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundTensor
from kernel_lsp.core.verdict import CaseResult, Mismatch, TensorError
from kernel_lsp.verify.oracle.arrays import decode, map_array
from kernel_lsp.verify.oracle.compare import Expectation

STRICT: ToleranceName = "strict"


@dataclass(frozen=True)
class Tolerance:
    """Relative and absolute, by dtype; `other` is for dtypes that are not among them."""

    source: str
    by_dtype: Mapping[DType, tuple[float, float]]
    other: tuple[float, float]

    def of(self, dtype: DType) -> tuple[float, float]:
        return self.by_dtype.get(dtype, self.other)


TOLERANCES: dict[ToleranceName, Tolerance] = {
    "torch": Tolerance(
        "torch.testing.assert_close, its defaults",
        {DType.F64: (1e-7, 1e-7), DType.F32: (1.3e-6, 1e-5), DType.F16: (1e-3, 1e-5), DType.BF16: (1.6e-2, 1e-5)},
        (0.0, 0.0),
    ),
    "kernelbench": Tolerance("KernelBench", {DType.F32: (1e-4, 1e-4), DType.F64: (1e-4, 1e-4)}, (1e-2, 1e-2)),
    "robust-kbench": Tolerance("robust-kbench, its command line", {}, (1e-3, 1e-3)),
}


def describe_tolerance(name: ToleranceName) -> str:
    """Return what a verdict says of its tolerance."""
    tolerance = TOLERANCES.get(name)
    if tolerance is None:
        return "strict (error vs an fp64 reference, docs/checks.md)"
    rtol, atol = tolerance.of(DType.F32)
    return f"{name} ({tolerance.source}: rtol {rtol:g}, atol {atol:g} for f32)"


def judge_elementwise(
    case: CaseResult,
    outputs: Sequence[tuple[BoundTensor, Path]],
    expectations: Sequence[Expectation],
    name: ToleranceName,
) -> CaseResult | Mismatch:
    """Return the case with its errors, or the first of them that is beyond the tolerance."""
    tolerance, errors = TOLERANCES[name], []
    for (tensor, path), expectation in zip(outputs, expectations, strict=True):
        found = decode(map_array(path, tensor.dtype, tensor.shape), tensor.dtype)
        errors.append(_error(found, expectation, *tolerance.of(tensor.dtype)))
    result = case.model_copy(update={"errors": tuple(errors)})
    wrong = next((error for error in errors if error.n_wrong), None)
    if wrong is None:
        return result
    message = (
        f"{wrong.n_wrong} of {wrong.n_elements} elements of '{wrong.output}' exceed the tolerance {name}: at "
        f"{list(wrong.worst_index or ())} {wrong.found:.6g} instead of {wrong.expected:.6g} (inputs '{case.family}')"
    )
    return Mismatch(message=message, failed=result)


def _error(found: np.ndarray, expectation: Expectation, rtol: float, atol: float) -> TensorError:
    """Compare with the fp64 reference, or with PyTorch's own result where that is nearer. NaN equals NaN."""
    given = found.astype(np.float64)
    sides = [expectation.reference.astype(np.float64)]
    if expectation.native is not None:
        sides.append(decode(expectation.native, expectation.dtype).astype(np.float64))
    with np.errstate(invalid="ignore", over="ignore"):
        differences = [np.where(_is_same(given, side), 0.0, np.abs(given - side)) for side in sides]
        pairs = zip(differences, sides, strict=True)
        excesses = [np.where(_is_same(given, side), -atol, d - (atol + rtol * np.abs(side))) for d, side in pairs]
        excess = np.minimum.reduce([np.nan_to_num(each, nan=np.inf, posinf=np.inf) for each in excesses])
    wrong = excess > 0
    norm = float(np.linalg.norm(np.nan_to_num(sides[0], posinf=0.0, neginf=0.0)))
    distance = float(np.linalg.norm(np.nan_to_num(differences[0], posinf=0.0)))
    worst = int(np.argmax(excess)) if excess.size else 0
    shown = bool(wrong.any())
    return TensorError(
        output=expectation.output,
        relative_l2=distance / norm if norm else distance,
        relative_l2_budget=rtol,
        max_error=float(np.nan_to_num(differences[0], posinf=0.0).max(initial=0.0)),
        max_error_budget=atol,
        n_wrong=int(wrong.sum()),
        n_elements=int(excess.size),
        worst_index=tuple(int(i) for i in np.unravel_index(worst, given.shape)) if shown else None,
        expected=float(sides[0].reshape(-1)[worst]) if shown else None,
        found=float(given.reshape(-1)[worst]) if shown else None,
    )


def _is_same(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the mask of elements where both are the same number, infinity or NaN."""
    return (one == other) | (np.isnan(one) & np.isnan(other))
