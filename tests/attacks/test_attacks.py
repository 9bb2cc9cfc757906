"""Attacks succeed without the defence that they name. That each is caught with it is for `make attacks`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.verify.cpu import executor_checks
from kernel_lsp.verify.model.defences import DEFENCES, SWITCHED, without
from kernel_lsp.verify.session.session import Session
from tests import corpora
from tests.corpora import Kernel, Outcome, evaluate_all, is_passed, read_kernels, sample

ATTACKS = read_kernels(Path(__file__).parent)
ON_CPU = [attack for attack in ATTACKS if not attack.needs]
KINDS = {attack.file.name.split("_")[0] for attack in ON_CPU}
WITHOUT = [attack for attack in ON_CPU if attack.without]
DEFENDED = sample(WITHOUT, lambda attack: attack.without, every=5)
SHORT_DEADLINE_S = 15.0
TIMEOUT_S = 900
"""Maximum seconds for the attacks of one defence, on a busy machine."""


@pytest.fixture(autouse=True)
def _short_deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = executor_checks.FULL_LIMITS
    short = type(limits)(limits.complete_instructions, limits.max_instructions, SHORT_DEADLINE_S)
    monkeypatch.setattr(executor_checks, "FULL_LIMITS", short)


async def outcomes(kernels: Sequence[Kernel]) -> list[Outcome]:
    return [outcome async for found in evaluate_all(kernels) for outcome in found]


@pytest.mark.timeout(TIMEOUT_S)
@pytest.mark.parametrize("names", sorted({attack.without for attack in DEFENDED}), ids=" ".join)
async def test_attacks_succeed_without_the_defence_they_name(names: tuple[str, ...]) -> None:
    with without(*names):
        found = await outcomes([attack for attack in DEFENDED if attack.without == names])
    assert [(o.kernel.file.name, o.verdict.outcome, o.problem) for o in found if not is_passed(o)] == []


async def test_tasks_share_a_session_and_what_fails_at_once_leaves_it_usable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Check that captures under way are awaited before the next task: ending them would end the worker."""
    shutil.copy(Path(__file__).parent / "tasks.py", tmp_path)
    by_task = {attack.task_line: attack for attack in ATTACKS if attack.without == ("numbers",)}
    wrong = [changed(attack, tmp_path) for attack in list(by_task.values())[:2]]
    sessions = []

    def opened(settings: Settings) -> Session:
        sessions.append(Session(settings))
        return sessions[-1]

    monkeypatch.setattr(corpora, "Session", opened)
    assert [outcome.verdict.outcome.kind for outcome in await outcomes(wrong)] == ["build_failed"] * 2
    assert len(sessions) == 1


def changed(attack: Kernel, folder: Path) -> Kernel:
    """The attack without a body, as a file of this folder."""
    return replace(attack, file=folder / attack.file.name, text=attack.text.replace("{", "{ nonsense;", 1))


def test_every_attack_says_how_it_cheats_and_what_is_right_about_it() -> None:
    assert [attack.file.name for attack in ATTACKS if not attack.strategy or not attack.caught] == []


def test_every_attack_names_the_defence_that_catches_it() -> None:
    assert [attack.file.name for attack in ATTACKS if not (attack.without or attack.defence)] == []
    assert {name for attack in ATTACKS for name in attack.without} <= SWITCHED.keys()
    assert {attack.defence for attack in ATTACKS if attack.defence} <= DEFENCES.keys()


def test_there_are_many_attacks_of_every_kind() -> None:
    assert len(ATTACKS) >= 100
    assert {"state", "which", "when", "where", "output", "nan", "shape", "precision", "memory"} <= KINDS
    assert {"race", "hide", "endless", "bomb", "plan", "comment", "backward", "tail", "grid"} <= KINDS
