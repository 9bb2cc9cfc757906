"""One engine process per workspace, started on first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kernel_lsp.config import find_workspace
from kernel_lsp.engine.client import EngineClient

OnDeath = Callable[[Path, str], None]


class Engines:
    """`on_death` receives each engine that ended unexpectedly, with its workspace and exit description."""

    def __init__(self, on_death: OnDeath) -> None:
        self._on_death = on_death
        self._engines: dict[Path, EngineClient] = {}

    def of(self, directory: Path) -> EngineClient:
        """Return the engine of the workspace that contains the directory."""
        workspace = find_workspace(directory)
        if workspace not in self._engines:
            self._engines[workspace] = EngineClient(workspace, lambda how: self._on_death(workspace, how))
        return self._engines[workspace]

    @property
    def pids(self) -> list[int]:
        """Return the process ids of the running engines."""
        return [engine.pid for engine in self._engines.values() if engine.pid]

    async def close(self) -> None:
        """End all engines and their jobs."""
        await asyncio.gather(*(engine.close() for engine in self._engines.values()))
