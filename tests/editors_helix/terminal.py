"""Run a program in its own pseudo-terminal and read its screen."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pyte

COLUMNS, LINES = 140, 40
LOOK_S = 0.05
AT_ONCE_BYTES = 1 << 16
GRACE_S = 5.0


class Terminal:
    """Starts `argv` at once. `close` ends the program and its children."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], directory: Path) -> None:
        self._screen = pyte.Screen(COLUMNS, LINES)
        self._stream = pyte.ByteStream(self._screen)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment, "TERM": "xterm-256color"},
            cwd=directory,
            start_new_session=True,
        )
        os.close(theirs)

    def type(self, keys: str) -> None:
        """Press these keys, one after the other."""
        os.write(self._ours, keys.encode())

    def until(self, what: str, holds: Callable[[str], bool], deadline_s: float) -> str:
        """Wait until `holds` accepts the screen, and return it. Raises AssertionError with the screen when late."""
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            self._look()
            if holds(self.text()):
                return self.text()
        raise AssertionError(f"not within {deadline_s} s: {what}. The screen is:\n{self.text()}")

    def text(self) -> str:
        """Return the text on the screen."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def close(self) -> None:
        """End the program, and whatever is left of its session's group."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(GRACE_S)
        os.close(self._ours)

    def _look(self) -> None:
        ready, _, _ = select.select([self._ours], [], [], LOOK_S)
        if ready:
            with suppress(OSError):  # the program has ended: its screen stays
                self._stream.feed(os.read(self._ours, AT_ONCE_BYTES))
