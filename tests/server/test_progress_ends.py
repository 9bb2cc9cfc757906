"""However a job ends, the progress that it showed is closed, once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from lsprotocol import types

from kernel_lsp.engine.messages import Check, JobRequest, Problem, Reply
from kernel_lsp.server.jobs.jobs import Job, Jobs
from kernel_lsp.server.jobs.progress import MIN_INTERVAL_S, WorkDoneProgress

ENDINGS = {
    "cancelled": Problem(kind="cancelled", message="cancelled"),
    "failed: it broke": Problem(kind="internal", message="it broke"),
    "done": None,
}


class Client:
    """Agrees to every token, after `delay_s`; keeps what it is told."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self._delay_s = delay_s
        self.told: list[Any] = []

    async def send_request_async(self, _method: str, _params: object) -> None:
        await asyncio.sleep(self._delay_s)

    def notify(self, _method: str, params: types.ProgressParams) -> None:
        self.told.append(params.value)

    @property
    def kinds(self) -> list[str]:
        return [value.kind for value in self.told]


class Engine:
    """Answers once `reply` is set; raises it when it is an exception."""

    def __init__(self) -> None:
        self.reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()

    async def ask(self, _request: JobRequest, _on_event: object = None) -> Reply:
        return await self.reply


def shown(client: Client) -> WorkDoneProgress:
    return WorkDoneProgress(client, "Check", is_shown=True)  # type: ignore[arg-type]  # a stand-in


async def started(client: Client) -> tuple[Jobs, Engine]:
    """One job under way, its progress shown."""

    async def ended(_job: Job, _reply: Reply) -> None:
        pass

    engine, jobs = Engine(), Jobs(lambda _: None, lambda _job, _event: None, ended)
    progress = shown(client)
    request = Check(id="1", directory=Path("/"), kernel=Path("/a.cu"))
    jobs.start(Job(request, "Check", "file:///a.cu", Path("/"), engine, progress))  # type: ignore[arg-type]
    await asyncio.sleep(0.02)
    return jobs, engine


@pytest.mark.parametrize("message", ENDINGS)
async def test_a_job_that_ends_closes_its_progress(message: str) -> None:
    client = Client()
    _, engine = await started(client)
    engine.reply.set_result(Reply(id="1", error=ENDINGS[message]))
    await asyncio.sleep(0.02)
    assert client.kinds == ["begin", "end"]
    assert client.told[-1].message == message


async def test_an_engine_that_is_lost_closes_the_progress() -> None:
    client = Client()
    jobs, engine = await started(client)
    engine.reply.set_exception(ConnectionError("gone"))
    await jobs.close()
    assert client.kinds == ["begin", "end"]


async def test_a_server_that_closes_leaves_no_progress_open() -> None:
    client = Client()
    jobs, _ = await started(client)
    await jobs.close()
    assert client.kinds == ["begin", "end"]


async def test_a_job_that_ends_before_the_client_agrees_shows_no_progress_at_all() -> None:
    client = Client(delay_s=0.05)
    _, engine = await started(client)
    engine.reply.set_result(Reply(id="1"))
    await asyncio.sleep(0.1)
    assert client.kinds == []


async def test_progress_that_is_closed_says_nothing_more() -> None:
    client = Client()
    progress = shown(client)
    await asyncio.sleep(0.02)
    progress.end("done")
    progress.report(50, "late")
    progress.end("again")
    assert client.kinds == ["begin", "end"]


async def test_what_comes_last_is_said_however_soon_it_follows() -> None:
    client = Client()
    progress = shown(client)
    await asyncio.sleep(0.02)
    for number in range(5):
        progress.report(number, f"step {number}")
    assert [value.message for value in client.told[1:]] == ["step 0"]
    await asyncio.sleep(2 * MIN_INTERVAL_S)
    assert [value.message for value in client.told[1:]] == ["step 0", "step 4"]


async def test_what_was_said_before_the_client_agreed_is_said_then() -> None:
    client = Client(delay_s=0.05)
    progress = shown(client)
    progress.report(3, "waits for another job")
    await asyncio.sleep(0.1)
    assert [value.kind for value in client.told] == ["begin", "report"]
    assert client.told[-1].message == "waits for another job"


async def test_a_report_that_waits_is_not_said_after_the_end() -> None:
    client = Client()
    progress = shown(client)
    await asyncio.sleep(0.02)
    progress.report(1, "one")
    progress.report(2, "two")
    progress.end("done")
    await asyncio.sleep(2 * MIN_INTERVAL_S)
    assert client.kinds == ["begin", "report", "end"]
