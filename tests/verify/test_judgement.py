"""Check how far a long sum may be off: each order of adding its terms passes, a lower precision does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundTensor
from kernel_lsp.core.verdict import CaseResult, Mismatch
from kernel_lsp.process.case_files import Rounding
from kernel_lsp.verify.oracle.compare import Expectation
from kernel_lsp.verify.oracle.judgement import judge_outputs

B, T, D = 128, 128, 64


def judged(folder: Path, found: np.ndarray, exact: np.ndarray, family: str = "normal") -> CaseResult | Mismatch:
    """`found` as the gradient of a weight over rows of two dims, where PyTorch itself is nearly exact."""
    found.astype(np.float32).tofile(folder / "out.bin")
    norm = float(np.linalg.norm(exact))
    rounding = Rounding(D, norm, norm * 2.0**-25, 2.0**-25 * float(np.abs(exact).max()), 0.0, 0.0)
    case = CaseResult(
        operation="backward", family=family, shapes={"x": (B, T, D)}, n_blocks=1, n_blocks_run=1, errors=()
    )
    tensor = BoundTensor(name="out", dtype=DType.F32, shape=(D,), role="output")
    expectation = Expectation("out", DType.F32, exact, None, rounding)
    return judge_outputs("backward", case, [(tensor, folder / "out.bin")], [expectation])


def terms(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((B * T, D), dtype=np.float32)


@pytest.mark.parametrize("seed", range(5))
def test_a_serial_sum_over_all_rows_passes(tmp_path: Path, seed: int) -> None:
    x = terms(seed)
    serial = np.add.accumulate(x, axis=0, dtype=np.float32)[-1]
    assert isinstance(judged(tmp_path, serial, x.sum(axis=0, dtype=np.float64)), CaseResult)


def test_a_sum_of_half_the_precision_does_not(tmp_path: Path) -> None:
    x = terms(0)
    rounded = x.astype(np.float16).astype(np.float64).sum(axis=0)
    assert isinstance(judged(tmp_path, rounded, x.sum(axis=0, dtype=np.float64)), Mismatch)


def test_one_row_too_few_does_not(tmp_path: Path) -> None:
    x = terms(0)
    assert isinstance(judged(tmp_path, x[:-1].sum(axis=0), x.sum(axis=0, dtype=np.float64)), Mismatch)


@pytest.mark.parametrize("family", ["one_hot", "zeros", "constant_rows", "lowest_rows"])
@pytest.mark.parametrize("term", [0.1, np.exp(-1.0), 0.7])
def test_a_serial_sum_of_equal_terms_passes_in_families_of_equal_numbers(
    tmp_path: Path, family: str, term: float
) -> None:
    """Each addition rounds to the same side, which no random walk does."""
    x = np.full((4096, D), term, np.float32)
    serial = np.add.accumulate(x, axis=0, dtype=np.float32)[-1]
    assert isinstance(judged(tmp_path, serial, x.sum(axis=0, dtype=np.float64), family), CaseResult)


@pytest.mark.parametrize("family", ["one_hot", "zeros", "small_integers"])
def test_the_precision_of_tf32_does_not_pass_in_them(tmp_path: Path, family: str) -> None:
    x = terms(1)
    exact = x.sum(axis=0, dtype=np.float64)
    assert isinstance(judged(tmp_path, exact * (1 + 3e-4), exact, family), Mismatch)
