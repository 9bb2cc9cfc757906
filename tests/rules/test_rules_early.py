"""Publish the first findings of a long CUDA file before the last function is checked."""

from __future__ import annotations

import pytest

from kernel_lsp.rules import cuda
from kernel_lsp.rules.cuda import checking
from kernel_lsp.rules.finding import RuleFinding
from kernel_lsp.server.analysis import analysis_worker as analyst
from kernel_lsp.server.analysis.analysis_types import Analysis

CLEAN = "__device__ float clean{0}(float x) {{ return x + {0}; }}\n"
FOUND = "__device__ float found{0}(float x) {{ return x * 0.5 + {0}; }}\n"


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every check takes longer than one is patient."""
    monkeypatch.setattr(checking, "SOON_S", -1.0)
    checking._kept.clear()


def early(text: str) -> list[tuple[RuleFinding, ...]]:
    told: list[tuple[RuleFinding, ...]] = []
    cuda.check(text, soon=told.append)
    return told


def test_what_the_first_functions_have_is_told_once() -> None:
    text = CLEAN.format(1) + FOUND.format(2) + FOUND.format(3) + FOUND.format(4)
    (told,) = early(text)
    assert told == cuda.check(text)[: len(told)]
    assert 0 < len(told) < len(cuda.check(text))


def test_nothing_is_told_while_nothing_was_found() -> None:
    assert early(CLEAN.format(1) + CLEAN.format(2) + CLEAN.format(3)) == []


def test_after_the_last_function_there_is_nothing_to_tell_early() -> None:
    assert early(CLEAN.format(1) + FOUND.format(2)) == []


def test_what_is_silenced_is_not_told_early() -> None:
    silent = FOUND.format(1).replace("\n", "  // NOLINT\n")
    assert early(silent + CLEAN.format(3)) == []


def test_a_patient_check_tells_nothing_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "SOON_S", 60.0)
    assert early(FOUND.format(1) * 3) == []


def test_an_editor_hears_early_of_a_new_text_and_of_a_slow_edit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Publish no part of a fast analysis after an edit: it would take away the other findings for a moment."""
    told: list[Analysis] = []
    text = FOUND.format(1) + CLEAN.format(2)
    for edited in (text, text.replace("clean2", "clean3")):
        analyst.analyse("cuda", "/w/early.cu", edited, soon=told.append)
    assert len(told) == 1
    monkeypatch.setattr(checking, "EDITED_SOON_S", -1.0)
    analyst.analyse("cuda", "/w/early.cu", text.replace("clean2", "clean4"), soon=told.append)
    assert len(told) == 2


def test_an_edit_is_heard_of_before_what_depends_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The edited function is checked first, callers have no finding of the text before, and unrelated ones keep
    theirs."""
    monkeypatch.setattr(checking, "EDITED_SOON_S", -1.0)
    monkeypatch.setattr(checking, "AGAIN_S", 60.0)
    caller = FOUND.format(1).replace("x * 0.5", "last4(x) * 0.5")
    text = CLEAN.format(0) + caller + caller.replace("found1", "found2") + FOUND.format(3)
    text += FOUND.format(4).replace("found4", "last4")
    tree = cuda.parse(text)
    assert len(cuda.check(text, tree=tree)) > 3
    edited = text.replace("x * 0.5 + 4", "x * 0.25 + 4")
    told: list[tuple[RuleFinding, ...]] = []
    found = cuda.check(edited, tree=cuda.parse(edited, tree), soon=told.append)
    assert {each.range.start_line for each in told[0]} == {3, 4}
    assert set(told[0]) < set(found)
