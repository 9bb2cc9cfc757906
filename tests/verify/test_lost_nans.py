"""Check outputs where PyTorch lets a NaN through and leaving it out is as good: what passes, what does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.finding import Severity
from kernel_lsp.core.plan import BoundTensor
from kernel_lsp.core.verdict import CaseResult, Mismatch
from kernel_lsp.process.case_files import Rounding
from kernel_lsp.verify.oracle.compare import Expectation
from kernel_lsp.verify.oracle.judgement import judge_outputs, lost_nans

NAN = float("nan")
REFERENCE, NATIVE, UNSPECIFIED = [1.0, 0.0, NAN, 2.0], [1.0, NAN, NAN, 2.0], [False, False, True, False]
"""Operators: relu, a limit on either side, and two numbers."""


def judged(folder: Path, found: list[float], *, may_lose_nans: bool = True) -> CaseResult | Mismatch:
    np.array(found, np.float32).tofile(folder / "out.bin")
    case = CaseResult(operation="relu", family="special_nan", shapes={"x": (4,)}, n_blocks=1, n_blocks_run=1, errors=())
    tensor = BoundTensor(name="out", dtype=DType.F32, shape=(4,), role="output")
    rounding = Rounding(2, 5.0**0.5, 0.0, 0.0, 0.0, 0.0)
    expectation = Expectation(
        "out",
        DType.F32,
        np.array(REFERENCE),
        np.array(NATIVE),
        rounding,
        may_lose_nans,
        unspecified=np.array(UNSPECIFIED),
    )
    return judge_outputs("forward", case, [(tensor, folder / "out.bin")], [expectation])


@pytest.mark.parametrize(
    ("found", "n_lost"),
    [([1.0, NAN, NAN, 2.0], 0), ([1.0, 0.0, NAN, 2.0], 1), ([1.0, NAN, -1.0, 2.0], 1), ([1.0, 0.0, 7.0, 2.0], 2)],
)
def test_a_nan_that_is_left_out_passes_with_a_warning(tmp_path: Path, found: list[float], n_lost: int) -> None:
    result = judged(tmp_path, found)
    assert isinstance(result, CaseResult)
    assert result.errors[0].n_nans_lost == n_lost
    findings = lost_nans([result])
    assert len(findings) == (1 if n_lost else 0)
    assert all((found.code, found.severity) == ("nan-lost", Severity.WARNING) for found in findings)


@pytest.mark.parametrize("found", [[1.0, 0.5, NAN, 2.0], [NAN, 0.0, 0.0, 2.0], [1.0, 0.0, 0.0, 2.5]])
def test_no_other_number_passes_in_its_place_and_no_nan_in_a_number_s(tmp_path: Path, found: list[float]) -> None:
    assert isinstance(judged(tmp_path, found), Mismatch)


def test_what_lies_beside_a_jump_is_no_nan_that_is_lost(tmp_path: Path) -> None:
    result = judged(tmp_path, [1.0, 0.0, 0.0, 2.0], may_lose_nans=False)
    assert isinstance(result, CaseResult)
    assert not lost_nans([result])
