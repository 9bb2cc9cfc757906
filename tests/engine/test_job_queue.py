"""The queue of an engine's jobs, by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kernel_lsp.engine.archived import list_runs
from kernel_lsp.engine.captures import Captures
from kernel_lsp.engine.jobs import JobQueue
from kernel_lsp.engine.messages import Check, JobEvent, Optimize, Reply
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.run.optimize import start_request
from tests.server.samples import SCALE

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


def archived(workspace: Path) -> list[tuple[str, str]]:
    with Archive(workspace) as archive:
        return [(record.target, record.status) for record in archive.runs()]


@asynccontextmanager
async def waiting(folder: Path) -> AsyncIterator[JobQueue]:
    """A queue whose second run waits for the first, and is archived."""
    (folder / ".kernel-lsp").mkdir()
    (folder / "model.py").write_text(SCALE)
    (folder / "scratch").mkdir()
    queue = JobQueue(lambda _: None, folder / "scratch", Captures(folder / "captures"))
    for job in ("first", "second"):
        queue.add(Optimize(id=job, directory=folder, target="model.py::scale", settings={"device": "cpu"}))
    async with asyncio.timeout(DEADLINE_S):
        while ("model.py::scale", "queued") not in archived(folder):
            await asyncio.sleep(0.05)
    yield queue
    await queue.close()


async def test_a_run_that_waits_is_in_the_archive_after_the_engine_has_ended(tmp_path: Path) -> None:
    async with waiting(tmp_path) as queue:
        await queue.close()
    assert [run.status for run in list_runs(tmp_path)].count("queued") == 1


async def test_a_run_that_is_cancelled_while_it_waits_is_forgotten(tmp_path: Path) -> None:
    async with waiting(tmp_path) as queue:
        queue.cancel("second")
        async with asyncio.timeout(DEADLINE_S):
            while queue.is_known("second"):
                await asyncio.sleep(0.05)
        assert ("model.py::scale", "queued") not in archived(tmp_path)


def test_a_run_whose_process_was_killed_is_interrupted(tmp_path: Path) -> None:
    (tmp_path / ".kernel-lsp").mkdir()
    request = start_request(tmp_path, "model.py::scale", False, {}).request
    with Archive(tmp_path) as archive:
        archive.start_run("model.py::scale", request.model_dump(mode="json"))
    assert [run.status for run in list_runs(tmp_path)] == ["interrupted"]
