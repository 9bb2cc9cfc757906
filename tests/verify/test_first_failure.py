"""Looks at one candidate: several at once, and what is said of it does not depend on which of them is done first."""

from __future__ import annotations

import asyncio

import pytest

from kernel_lsp.core.verdict import CheckOutcome, Crashed
from kernel_lsp.verify.model.cases import Look, Progress
from kernel_lsp.verify.session.evaluation import first_failure

FIRST, SECOND = Crashed(message="the first"), Crashed(message="the second")


def look(name: str, after_s: float, failure: CheckOutcome | None, begun: list[str] | None = None) -> Look:
    async def found(progress: Progress) -> CheckOutcome | None:
        if begun is not None:
            begun.append(name)
        progress.notes.append(name)
        await asyncio.sleep(after_s)
        return failure

    return found


@pytest.mark.parametrize("n_at_once", [1, 2, 4])
async def test_the_first_failure_is_told_though_a_later_look_fails_sooner(n_at_once: int) -> None:
    progress = Progress("c")
    looks = [look("a", 0.02, None), look("b", 0.04, FIRST), look("c", 0.0, SECOND)]
    assert await first_failure(looks, progress, n_at_once) == FIRST
    assert progress.notes == ["a", "b"]


@pytest.mark.parametrize("n_at_once", [1, 2, 4])
async def test_what_looks_found_is_noted_in_their_order(n_at_once: int) -> None:
    progress = Progress("c")
    looks = [look("a", 0.03, None), look("b", 0.0, None), look("b", 0.01, None), look("d", 0.0, None)]
    assert await first_failure(looks, progress, n_at_once) is None
    assert progress.notes == ["a", "b", "d"]


async def test_one_at_a_time_nothing_begins_behind_a_failure() -> None:
    begun: list[str] = []
    looks = [look("a", 0.0, None, begun), look("b", 0.01, FIRST, begun), look("c", 0.0, None, begun)]
    assert await first_failure(looks, Progress("c"), 1) == FIRST
    assert begun == ["a", "b"]


async def test_what_is_under_way_behind_a_failure_is_ended() -> None:
    was_cancelled = asyncio.Event()

    async def endless(progress: Progress) -> CheckOutcome | None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            was_cancelled.set()
            raise
        return None

    assert await asyncio.wait_for(first_failure([look("a", 0.01, FIRST), endless], Progress("c"), 2), 5) == FIRST
    assert was_cancelled.is_set()
