"""An engine to talk to in tests, and targets for it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kernel_lsp.engine.client import EngineClient
from kernel_lsp.engine.messages import JobEvent, Optimize, Reply

SCALE = """\
import torch


# kernel-lsp: x=f32[64, 256], weight=f32[256]
def scale(x, weight):
    return torch.relu(x * weight + 1.0)
"""
SLOW = SCALE + "\n\nimport time\ntime.sleep(60)\n"
QUICK = {"device": "cpu", "generations": 1, "proposals": 2}
LONG = {"device": "cpu", "generations": 50, "proposals": 8}


class Asked:
    """A workspace's engine and what its jobs told."""

    def __init__(self, workspace: Path) -> None:
        self.workspace = workspace
        self.deaths: list[str] = []
        self.events: list[JobEvent] = []
        self.client = EngineClient(workspace, self.deaths.append)
        self._news = asyncio.Event()

    def kinds(self, job: str) -> list[str]:
        return [event.event.kind for event in self.events if event.job == job]

    def ask(self, request: Any) -> asyncio.Task[Reply]:
        return asyncio.create_task(self.client.ask(request, self._hear))

    def optimize(self, id_: str, settings: dict[str, Any], target: str = "scale.py::scale") -> asyncio.Task[Reply]:
        return self.ask(Optimize(id=id_, directory=self.workspace, target=target, settings=settings))

    async def until(self, job: str, kind: str, deadline_s: float = 120.0) -> None:
        """Wait for an event of a job."""
        async with asyncio.timeout(deadline_s):
            while kind not in self.kinds(job):
                self._news.clear()
                await self._news.wait()

    def _hear(self, event: JobEvent) -> None:
        self.events.append(event)
        self._news.set()


@asynccontextmanager
async def engine(workspace: Path) -> AsyncIterator[Asked]:
    """An engine for a workspace with `scale.py` in it."""
    (workspace / ".kernel-lsp").mkdir(exist_ok=True)
    (workspace / "scale.py").write_text(SCALE)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    asked = Asked(workspace)
    try:
        yield asked
    finally:
        await asked.client.close()
