"""Accept another value than PyTorch's NaN that infinite inputs make, as long as it is not finite."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundTensor
from kernel_lsp.core.verdict import CaseResult, Mismatch
from kernel_lsp.process.case_files import Rounding
from kernel_lsp.verify.oracle.arrays import POISON_BYTE
from kernel_lsp.verify.oracle.compare import Expectation
from kernel_lsp.verify.oracle.judgement import judge_outputs

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
