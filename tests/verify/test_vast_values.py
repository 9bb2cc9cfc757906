"""Check which dims are made vast on the executor, and what is wrong enough there."""

from __future__ import annotations

import pytest

from kernel_lsp.core.verdict import CaseResult, Mismatch, TensorError
from kernel_lsp.verify.probes.far_sizes import LONG_ROW, MANY_ROWS, is_gross, vast_sizes_of_one
from kernel_lsp.verify.probes.finder import finder_of
from tests.verify.copies import KNOWN, prepared

LAUNCH = "launch: k<<<B, 256>>>(x, out, D)"


def vast(*directives: str, known: list[dict[str, int]] = KNOWN) -> list[dict[str, int]]:
    return list(vast_sizes_of_one(finder_of(prepared(LAUNCH, *directives), "forward"), known))


def mismatch(relative: float, found: float | None = 1.0) -> Mismatch:
    error = TensorError(
        output="out",
        relative_l2=relative,
        relative_l2_budget=1e-6,
        max_error=1.0,
        max_error_budget=1e-6,
        n_wrong=1,
        n_elements=4,
        found=found,
    )
    failed = CaseResult(
        operation="copy", family="late_extremes", shapes={}, n_blocks=1, n_blocks_run=1, errors=(error,)
    )
    return Mismatch(message="", failed=failed)


def test_rows_are_many_and_then_long() -> None:
    assert vast() == [{"B": MANY_ROWS, "D": 3}, {"B": 1, "D": LONG_ROW}]


def test_the_contract_is_kept() -> None:
    assert vast("where: D % 4 == 0 and B <= 100") == [{"B": 2, "D": LONG_ROW + 1}]
    assert vast("where: B <= 100 and D <= 100000") == []


def test_what_is_large_anyway_is_not_made_so_again() -> None:
    assert vast(known=[{"B": 100_000, "D": 7}]) == [{"B": 1, "D": LONG_ROW}]


@pytest.mark.parametrize(
    ("wrong", "is_one"),
    [(mismatch(1e-3), False), (mismatch(0.2), True), (mismatch(float("nan")), True), (mismatch(0.0, None), True)],
    ids=["roundings", "a fifth", "not a number", "never written"],
)
def test_what_is_left_out_is_more_than_roundings(wrong: Mismatch, is_one: bool) -> None:
    assert is_gross(wrong) is is_one
