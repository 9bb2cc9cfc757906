"""Test the notes of `kernel-lsp check` beside a verdict."""

from __future__ import annotations

import pytest

from kernel_lsp.cli.check import is_ignored
from kernel_lsp.core.verdict import Correct, Unsupported, Verdict

CORRECT = Correct(cases=())


@pytest.mark.parametrize(
    ("tolerance", "outcome", "notes", "expected"),
    [
        ("torch", CORRECT, (), True),
        ("torch", CORRECT, ("tolerance: torch (assert_close)",), False),
        ("torch", Unsupported(message="no launch plan"), (), False),
        ("strict", CORRECT, (), False),
        (None, CORRECT, (), False),
    ],
)
def test_a_tolerance_that_a_verdict_does_not_name_is_said_to_be_ignored(
    tolerance: str | None, outcome: Correct | Unsupported, notes: tuple[str, ...], *, expected: bool
) -> None:
    verdict = Verdict(candidate_id="c", depth="full", device="PTX executor (CPU)", outcome=outcome, notes=notes)
    assert is_ignored(tolerance, verdict) is expected
