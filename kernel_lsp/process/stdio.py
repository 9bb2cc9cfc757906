"""JSON lines over a program's stdin and stdout, with stdout reserved for them."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import BinaryIO

from kernel_lsp.core.model import Noun
from kernel_lsp.process.supervisor import MAX_MESSAGE_BYTES


def claim_stdout() -> BinaryIO:
    """Return the real stdout, and redirect other output of this process to stderr."""
    private = os.dup(sys.stdout.fileno())
    os.set_inheritable(private, False)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return os.fdopen(private, "wb", buffering=0)


async def open_stdin() -> asyncio.StreamReader:
    """Return the lines of stdin as a stream."""
    reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    return reader


def write_line(stream: BinaryIO, noun: Noun) -> None:
    """Write one whole message. Raises BrokenPipeError when the reader is gone."""
    data = memoryview(noun.model_dump_json().encode() + b"\n")
    while data:
        data = data[stream.write(data) or 0 :]
