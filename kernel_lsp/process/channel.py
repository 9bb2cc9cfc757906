"""Exchange JSON lines with a long-lived child process, asynchronously in both directions, over its pipes or over a UNIX
socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp.process.supervisor import _start, _TailOutput, kill_group

DRAIN_S = 0.5


class Channel:
    """The child leads its own process group and dies with us. Its stderr is kept, up to a bound."""

    def __init__(
        self, argv: Sequence[str | Path], *, environment: Mapping[str, str] | None, directory: Path | None = None
    ) -> None:
        self._argv, self._environment, self._directory = argv, environment, directory
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = _TailOutput()
        self._drain: asyncio.Task[None] | None = None

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        """Process id of the child. Raises RuntimeError before `start`."""
        return self._running().pid

    @property
    def returncode(self) -> int:
        """Exit status of the child, negative for a signal; -1 while it runs."""
        returncode = self._process.returncode if self._process is not None else None
        return -1 if returncode is None else returncode

    async def start(self) -> None:
        """Start the program. Raises OSError when it cannot be started."""
        self._process = await _start(self._argv, self._environment, self._directory)
        self._drain = asyncio.create_task(self._stderr.drain(self._process.stderr))

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue one message. After the child's end it is lost: `messages` ends and reports that."""
        stdin = self._running().stdin
        if stdin is not None and not stdin.is_closing():
            with suppress(BrokenPipeError, ConnectionResetError):
                stdin.write(json.dumps(message).encode() + b"\n")

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the child's messages until it ends. A line that is not a JSON object ends the stream: the child is
        broken."""
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
        """Close the child's stdin, after the last message."""
        stdin = self._running().stdin
        if stdin is not None:
            stdin.close()

    async def wait(self, at_most_s: float) -> None:
        """Wait for the child's end, up to a timeout."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._running().wait(), at_most_s)

    async def close(self, grace_s: float = 0.0) -> None:
        """End the child: close its input, wait up to `grace_s`, then kill its group."""
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
        """Return the end of the child's stderr."""
        return self._stderr.text()

    def _running(self) -> asyncio.subprocess.Process:
        if self._process is None:
            raise RuntimeError("the child was not started")
        return self._process


CLOSE_S = 2.0
"""Maximum seconds for the program to end once its input has ended."""


@dataclass(frozen=True)
class Stream:
    """Bytes in both directions. `process` is the program behind pipes; None for a socket."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    process: asyncio.subprocess.Process | None = None

    @property
    def is_open(self) -> bool:
        """Check that neither end has closed it."""
        if self.process is not None and self.process.returncode is not None:
            return False
        return not self.reader.at_eof() and not self.writer.is_closing()

    async def write(self, *parts: bytes) -> None:
        """Write all parts. Ignores an end that is gone: the reader reports that, with its reason."""
        with suppress(BrokenPipeError, ConnectionResetError):
            for part in parts:
                self.writer.write(part)
                await self.writer.drain()

    async def status(self) -> int:
        """Return the exit status once the other end has closed the stream; 0 for a socket."""
        return await self.process.wait() if self.process is not None else 0

    def kill(self) -> None:
        """Begin to end it at once."""
        if self.process is None:
            self.writer.close()
        elif self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()

    async def close(self) -> None:
        """Close it, and wait for the program to end."""
        self.writer.close()
        if self.process is not None:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), CLOSE_S)
            await kill_group(self.process)
