"""References that wait for the GPU at the same time share a turn, which ends in time and with the last of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kernel_lsp.verify.oracle import shared_turn
from kernel_lsp.verify.oracle.shared_turn import SharedTurn


class CountingGpu:
    """Counts its turns, and those that are open."""

    index = 0

    def __init__(self) -> None:
        self.n_turns = self.n_open = 0

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        self.n_turns, self.n_open = self.n_turns + 1, self.n_open + 1
        await asyncio.sleep(0)
        try:
            yield
        finally:
            self.n_open -= 1


@pytest.mark.parametrize(("seconds", "n_turns"), [(60.0, 1), (0.0, 3)])
async def test_references_that_wait_together_share_turns_of_bounded_time(
    monkeypatch: pytest.MonkeyPatch, seconds: float, n_turns: int
) -> None:
    monkeypatch.setattr(shared_turn, "MAX_TURN_S", seconds)
    gpu, n_open = CountingGpu(), list[int]()
    turn = SharedTurn(gpu)

    async def use() -> None:
        async with turn.held():
            await asyncio.sleep(0)
            n_open.append(gpu.n_open)

    await asyncio.gather(use(), use(), use())
    assert (n_open, gpu.n_turns, gpu.n_open) == ([1] * 3, n_turns, 0)
    await use()
    assert (gpu.n_turns, gpu.n_open) == (n_turns + 1, 0)


@pytest.mark.parametrize("is_kept", [True, False])
async def test_a_turn_ends_where_the_last_that_waits_for_it_is_cancelled(is_kept: bool) -> None:
    """`is_kept`: the turn was passed on to it, and it was cancelled before it ran."""
    gpu = CountingGpu()
    turn = SharedTurn(gpu)

    async def use() -> None:
        async with turn.held():
            pytest.fail("it was cancelled")

    async with turn.held():
        last = asyncio.create_task(use())
        await asyncio.sleep(0)
        if not is_kept:
            last.cancel()
    last.cancel()
    await asyncio.wait([last])
    assert (gpu.n_turns, gpu.n_open) == (1, 0)


async def test_a_reference_that_fails_passes_its_turn_on() -> None:
    gpu = CountingGpu()
    turn, ended = SharedTurn(gpu), list[str]()

    async def use(name: str) -> None:
        async with turn.held():
            ended.append(name)
            if name == "fails":
                raise ValueError(name)

    found = await asyncio.gather(use("fails"), use("other"), return_exceptions=True)
    assert isinstance(found[0], ValueError)
    assert (ended, gpu.n_turns, gpu.n_open) == (["fails", "other"], 1, 0)
