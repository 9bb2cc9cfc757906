"""Count the calls from `Verifier.verify` to the executor's pipe: a layer that only delegates costs a reader a frame."""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Coroutine, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import kernel_lsp
from kernel_lsp.process.supervisor import Answered, Conversation, Died, Overran
from tests.corpora import evaluate_all, is_passed, read_kernels

MAX_CALLS, MAX_OBJECTS = 12, 5
PACKAGE = str(Path(kernel_lsp.__file__).parent)
BENIGN = Path(__file__).parent.parent / "benign"
KERNEL = "numbers_that_are_limits.cu"
"""A kernel with a scalar, so that mutations run, too."""
PIPE = "Conversation"
Call = tuple[str, str]
"""A function with the class of its object, if it has one."""


def _calls(frame: FrameType | None) -> Iterator[Call]:
    """Yield our own calls on a stack, the innermost first."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(PACKAGE):
            owner = frame.f_locals.get("self")
            yield (type(owner).__name__ if owner is not None else "", frame.f_code.co_name)
        frame = frame.f_back


class _Stacks:
    """The stack of each task of a loop, those of the tasks that created it included."""

    def __init__(self) -> None:
        self._of: weakref.WeakKeyDictionary[asyncio.Task[Any], list[Call]] = weakref.WeakKeyDictionary()

    def new_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        # Creating calls of the standard library are none of ours; `_run` only begins what its caller awaits.
        creators = [call for call in self.now() if call[1] != "_run"]
        task = asyncio.Task(coroutine, loop=loop, **options)
        self._of[task] = creators
        return task

    def now(self) -> list[Call]:
        task = asyncio.current_task() if asyncio._get_running_loop() is not None else None
        return [*_calls(sys._getframe(2)), *(self._of.get(task, []) if task is not None else [])]


async def _chains(kernel: str, monkeypatch: pytest.MonkeyPatch) -> set[tuple[Call, ...]]:
    """Verify a kernel and return the distinct chains of calls from `verify` to a run's request, the outermost first."""
    stacks, found, ask = _Stacks(), set[tuple[Call, ...]](), Conversation.ask
    asyncio.get_running_loop().set_task_factory(stacks.new_task)  # type: ignore[arg-type]  # typeshed's is newer

    async def counted(
        self: Conversation, request: Mapping[str, Any], *, deadline_s: float
    ) -> Answered | Died | Overran:
        calls = [(PIPE, "ask"), *stacks.now()]
        if request.get("command") == "run" and ("PtxExecutor", "run") in calls and ("Verifier", "verify") in calls:
            found.add(tuple(reversed(calls[: calls.index(("Verifier", "verify")) + 1])))
        return await ask(self, request, deadline_s=deadline_s)

    monkeypatch.setattr(Conversation, "ask", counted)
    kernels = [each for each in read_kernels(BENIGN) if each.file.name == kernel]
    outcomes = [outcome async for several in evaluate_all(kernels) for outcome in several]
    assert all(map(is_passed, outcomes))
    return found


@pytest.mark.timeout(600)
async def test_few_calls_and_objects_lie_between_a_verdict_and_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    chains = await _chains(KERNEL, monkeypatch)
    assert {chain[1] for chain in chains} == {("Evaluation", "verdict"), ("Verifier", "_with_mutated_scalars")}
    assert [chain for chain in chains if len(chain) > MAX_CALLS] == []
    owners = {tuple(dict.fromkeys(owner for owner, _ in chain if owner not in ("", PIPE))) for chain in chains}
    assert [chain for chain in owners if len(chain) > MAX_OBJECTS] == []
