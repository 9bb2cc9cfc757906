"""One engine per workspace, started when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kernel_lsp.engine.client import EngineClient
from kernel_lsp.evolve.run.request import find_workspace

OnDeath = Callable[[Path, str], None]


class Engines:
    """`on_death` hears of each engine that ended by itself, with its workspace and how."""

    def __init__(self, on_death: OnDeath) -> None:
        self._on_death = on_death
        self._engines: dict[Path, EngineClient] = {}

    def of(self, directory: Path) -> EngineClient:
        """The engine of the workspace that the directory is in."""
        workspace = find_workspace(directory)
        if workspace not in self._engines:
            self._engines[workspace] = EngineClient(workspace, lambda how: self._on_death(workspace, how))
        return self._engines[workspace]

    @property
    def pids(self) -> list[int]:
        """Of those that run."""
        return [engine.pid for engine in self._engines.values() if engine.pid]

    async def close(self) -> None:
        """End all engines and their jobs."""
        await asyncio.gather(*(engine.close() for engine in self._engines.values()))
