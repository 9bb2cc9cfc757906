"""Outputs where PyTorch has NaN and a kernel may have another value: what passes, and what does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.finding import Severity
from kernel_lsp.core.plan import BoundTensor
from kernel_lsp.core.verdict import CaseResult, Mismatch
from kernel_lsp.process.case_files import Rounding
from kernel_lsp.verify.oracle.arrays import POISON_BYTE
from kernel_lsp.verify.oracle.compare import Expectation
from kernel_lsp.verify.oracle.judgement import judge_outputs, lost_nans

NAN, INF = np.nan, np.inf
REFERENCE = np.array([[NAN, NAN, NAN], [0.25, 0.5, 0.25]])
"""A softmax, whose first row had an infinity in the middle."""


def judged(folder: Path, found: object, family: str = "special_inf", reference: np.ndarray = REFERENCE) -> str:
    """Empty when it passes, else the message."""
    np.asarray(found, np.float32).tofile(folder / "out.bin")
    expectation = Expectation("out", DType.F32, reference, reference, Rounding(3, 0.6, 0.0, 0.0, 0.0, 0.0))
    case = CaseResult(operation="f", family=family, shapes={"x": (2, 3)}, n_blocks=1, n_blocks_run=1, errors=())
    tensor = BoundTensor(name="out", dtype=DType.F32, shape=reference.shape, role="output")
    outcome = judge_outputs("forward", case, [(tensor, folder / "out.bin")], [expectation])
    return outcome.message if isinstance(outcome, Mismatch) else ""


@pytest.mark.parametrize("row", [[NAN, NAN, NAN], [0.0, NAN, 0.0], [INF, INF, INF], [0.0, -INF, 0.0]])
def test_what_is_seen_not_to_be_finite_passes(tmp_path: Path, row: list[float]) -> None:
    assert judged(tmp_path, [row, [0.25, 0.5, 0.25]]) == ""


def test_an_infinity_that_is_hidden_does_not_and_the_message_says_so(tmp_path: Path) -> None:
    message = judged(tmp_path, [[0.0, 1.0, 0.0], [0.25, 0.5, 0.25]])
    assert "instead of nan" in message
    assert "infinities of the inputs meet there" in message


def test_a_nan_of_the_inputs_must_be_everywhere_that_pytorch_has_it(tmp_path: Path) -> None:
    message = judged(tmp_path, [[0.0, NAN, 0.0], [0.25, 0.5, 0.25]], family="special_nan")
    assert "a NaN of the inputs" in message


def test_other_rows_are_judged_as_ever(tmp_path: Path) -> None:
    assert judged(tmp_path, [[0.0, NAN, 0.0], [0.25, NAN, 0.25]])
    assert judged(tmp_path, [[0.0, NAN, 0.0], [0.25, 0.6, 0.25]])


@pytest.mark.parametrize("row", [[0.0, 0.0, INF], [NAN, 0.0, INF]])
def test_what_is_lost_in_a_line_that_is_not_all_nan_is_lost(tmp_path: Path, row: list[float]) -> None:
    """There PyTorch tells one place from another: zeros that meet an infinity, in a product of matrices."""
    reference = np.array([[NAN, NAN, INF], [0.25, 0.5, 0.25]])
    assert judged(tmp_path, [row, [0.25, 0.5, 0.25]], reference=reference)


def test_an_infinity_of_the_reference_is_asked_for(tmp_path: Path) -> None:
    reference = np.array([[INF, 1.0, 2.0], [0.25, 0.5, 0.25]])
    assert judged(tmp_path, [[NAN, 1.0, 2.0], [0.25, 0.5, 0.25]], reference=reference)


def test_an_element_that_nobody_wrote_is_no_nan(tmp_path: Path) -> None:
    unwritten = np.frombuffer(bytes([POISON_BYTE] * 4), np.float32)[0]
    assert "never written" in judged(tmp_path, [[0.0, unwritten, 0.0], [0.25, 0.5, 0.25]])


LOST_REFERENCE, NATIVE, UNSPECIFIED = (
    [1.0, 0.0, NAN, 2.0],
    [1.0, NAN, NAN, 2.0],
    [False, False, True, False],
)
"""Operators: relu, a limit on either side, and two numbers."""


def judged_where_lost(folder: Path, found: list[float], *, may_lose_nans: bool = True) -> CaseResult | Mismatch:
    np.array(found, np.float32).tofile(folder / "out.bin")
    case = CaseResult(operation="relu", family="special_nan", shapes={"x": (4,)}, n_blocks=1, n_blocks_run=1, errors=())
    tensor = BoundTensor(name="out", dtype=DType.F32, shape=(4,), role="output")
    rounding = Rounding(2, 5.0**0.5, 0.0, 0.0, 0.0, 0.0)
    expectation = Expectation(
        "out",
        DType.F32,
        np.array(LOST_REFERENCE),
        np.array(NATIVE),
        rounding,
        may_lose_nans,
        unspecified=np.array(UNSPECIFIED),
    )
    return judge_outputs("forward", case, [(tensor, folder / "out.bin")], [expectation])


@pytest.mark.parametrize(
    ("found", "n_lost"),
    [
        ([1.0, NAN, NAN, 2.0], 0),
        ([1.0, 0.0, NAN, 2.0], 1),
        ([1.0, NAN, -1.0, 2.0], 1),
        ([1.0, 0.0, 7.0, 2.0], 2),
    ],
)
def test_a_nan_that_is_left_out_passes_with_a_warning(tmp_path: Path, found: list[float], n_lost: int) -> None:
    result = judged_where_lost(tmp_path, found)
    assert isinstance(result, CaseResult)
    assert result.errors[0].n_nans_lost == n_lost
    findings = lost_nans([result])
    assert len(findings) == (1 if n_lost else 0)
    assert all((found.code, found.severity) == ("nan-lost", Severity.WARNING) for found in findings)


@pytest.mark.parametrize("found", [[1.0, 0.5, NAN, 2.0], [NAN, 0.0, 0.0, 2.0], [1.0, 0.0, 0.0, 2.5]])
def test_no_other_number_passes_in_its_place_and_no_nan_in_a_number_s(tmp_path: Path, found: list[float]) -> None:
    assert isinstance(judged_where_lost(tmp_path, found), Mismatch)


def test_what_lies_beside_a_jump_is_no_nan_that_is_lost(tmp_path: Path) -> None:
    result = judged_where_lost(tmp_path, [1.0, 0.0, 0.0, 2.0], may_lose_nans=False)
    assert isinstance(result, CaseResult)
    assert not lost_nans([result])
