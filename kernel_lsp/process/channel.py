"""A long-lived child that both sides send JSON lines to at any time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from kernel_lsp.process.supervisor import STDERR_TAIL_BYTES, _start, _TailOutput, kill_group

DRAIN_S = 0.5


class Channel:
    """The child is a group of its own and dies when we die. What it prints on stderr is kept, up to a bound."""

    def __init__(
        self, argv: Sequence[str | Path], *, environment: Mapping[str, str] | None = None, directory: Path | None = None
    ) -> None:
        self._argv, self._environment, self._directory = argv, environment, directory
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = _TailOutput(STDERR_TAIL_BYTES)
        self._drain: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Of the child. Raises RuntimeError before `start`."""
        return self._running().pid

    @property
    def returncode(self) -> int:
        """How the child ended, negative for a signal; -1 while it runs."""
        returncode = self._process.returncode if self._process is not None else None
        return -1 if returncode is None else returncode

    async def start(self) -> None:
        """Start the program. Raises OSError when it cannot be started."""
        self._process = await _start(self._argv, self._environment, self._directory)
        self._drain = asyncio.create_task(self._stderr.drain(self._process.stderr))

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue one message. One to a child that has ended is lost: `messages` ends and says so."""
        stdin = self._running().stdin
        if stdin is not None and not stdin.is_closing():
            with suppress(BrokenPipeError, ConnectionResetError):
                stdin.write(json.dumps(message).encode() + b"\n")

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """What the child says, until it ends. A line that is no JSON object ends it, too: the child is broken."""
        stdout = self._running().stdout
        while stdout is not None and (line := await stdout.readline()).endswith(b"\n"):
            try:
                message = json.loads(line)
            except ValueError:
                break
            if not isinstance(message, dict):
                break
            yield message

    def end_input(self) -> None:
        """Close the child's stdin: there are no more messages."""
        stdin = self._running().stdin
        if stdin is not None:
            stdin.close()

    async def wait(self, at_most_s: float) -> None:
        """Until the child has ended, or so long."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._running().wait(), at_most_s)

    async def close(self, grace_s: float = 0.0) -> None:
        """End the child: by the end of its input and up to `grace_s` of waiting, then by killing its group."""
        process = self._process
        if process is None:
            return
        self.end_input()
        if grace_s > 0:
            await self.wait(grace_s)
        await kill_group(process)
        if self._drain is not None:
            await asyncio.wait([self._drain], timeout=DRAIN_S)
            self._drain.cancel()

    def stderr(self) -> str:
        """The end of what the child printed on stderr."""
        return self._stderr.text()

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the child was not started")
        return self._process
