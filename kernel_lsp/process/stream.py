"""The two ends of a connection to a worker elsewhere: a program's pipes, or a UNIX socket."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from kernel_lsp.process.supervisor import kill_group

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
