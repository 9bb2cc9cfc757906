"""The queue of an engine's jobs, by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kernel_lsp.engine.captures import Captures
from kernel_lsp.engine.jobs import JobQueue
from kernel_lsp.engine.messages import Check, JobEvent, Reply

DEADLINE_S = 20.0


@pytest.mark.parametrize("n_steps", range(4))
async def test_a_job_that_is_cancelled_at_once_still_replies(tmp_path: Path, n_steps: int) -> None:
    replied = asyncio.get_running_loop().create_future()

    def say(said: JobEvent | Reply) -> None:
        if isinstance(said, Reply):
            replied.set_result(said)

    queue = JobQueue(say, tmp_path, Captures(tmp_path / "captures"))
    queue.add(Check(id="one", directory=tmp_path, kernel=tmp_path / "a.cu", text="no plan"))
    for _ in range(n_steps):
        await asyncio.sleep(0)
    assert queue.cancel("one")
    reply = await asyncio.wait_for(replied, DEADLINE_S)
    assert reply.error is not None
    assert reply.error.kind == "cancelled"
    assert not queue.is_known("one")
    assert list(tmp_path.iterdir()) == []
