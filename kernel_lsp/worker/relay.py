"""Keep a worker on another machine: its files, its process, and their end. Standard library only, Python 3.9 and later.

Sent as text over the stdin of an interpreter there (`kernel_lsp.process.remote`), so nothing is installed. Frames in
both directions are one line of JSON, followed by `n` bytes where it says so. The first frame brings this folder as a
tar. All files lie in one private folder. It goes with this process, which ends with its connection.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from typing import Any, BinaryIO

GREETING = "kernel-lsp relay 1"
PREFIX = "kernel-lsp-remote-"
LEASH = "KERNEL_LSP_LEASH"
"""Variable with the descriptor of a pipe that ends with whoever started the relay."""
SILENCE_S = 60.0
"""Seconds without a frame after which the other side is gone: it sends one every few seconds."""
MEMORY_FOLDER, MIN_FREE_IN_MEMORY_BYTES = "/dev/shm", 16 << 30
STDERR_TAIL_BYTES = 64 << 10
END_S = 5.0
"""Seconds to wait for the end of a killed worker."""
PIECE_BYTES = 1 << 20


class Relay:
    """One worker and the folder with its files."""

    def __init__(self, frames: BinaryIO, answers: BinaryIO) -> None:
        self._frames, self._answers = frames, answers
        self._writing, self._ending = threading.Lock(), threading.RLock()  # a signal may come during the end
        self._process: subprocess.Popen[bytes] | None = None
        self._folder, self._stderr, self._fetches, self._ends = "", b"", False, False
        self._heard, self._deadline = time.monotonic(), 0.0

    def serve(self) -> None:
        """Handle frames until the connection ends."""
        self._send({"is": "greeting", "said": GREETING})
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, lambda *_: self.end())
        threading.Thread(target=self._watch, daemon=True).start()
        if LEASH in os.environ:
            threading.Thread(target=self._follow, args=(int(os.environ.pop(LEASH)),), daemon=True).start()
        try:
            while line := self._frames.readline():
                self._heard = time.monotonic()
                self._handle(json.loads(line))
        finally:
            self.end()

    def end(self) -> None:
        """Kill the worker with its group, remove all files, and exit."""
        with self._ending:
            self._ends = True  # a worker that is killed with its relay was not killed by its candidate
            if self._process is not None:
                self._kill(signal.SIGKILL)
                with contextlib.suppress(subprocess.TimeoutExpired):  # e.g. stuck in a driver
                    self._process.wait(timeout=END_S)
            if self._folder:
                shutil.rmtree(self._folder, ignore_errors=True)
            os._exit(0)

    def _handle(self, frame: dict[str, Any]) -> None:
        try:
            getattr(self, f"_do_{frame['do']}")(frame)
        except OSError as error:
            self._send({"is": "failed", "do": frame["do"], "message": error.strerror or str(error)})

    def _do_start(self, frame: dict[str, Any]) -> None:
        """Unpack the worker's files and start it."""
        packed = self._frames.read(frame["n"])
        _sweep(_parent())
        self._folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=_parent())
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(self._folder)
        own = {name: os.path.join(self._folder, "cache", folder) for name, folder in frame["caches"].items()}
        environment = {**os.environ, **own, "TMPDIR": self._folder, "KERNEL_LSP_FILES": self._path("")}
        confined = [sys.executable, "-I", "-S", os.path.join(self._folder, *frame["launcher"])]
        program = [frame["python"] or sys.executable, os.path.join(self._folder, *frame["program"])]
        self._process = subprocess.Popen(
            [*(confined if frame["launcher"] else []), *program, *frame["arguments"]],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},  # read what is there, and write nothing beside it
            start_new_session=True,
        )
        self._send({"is": "started"})  # before its end can be reported
        draining = threading.Thread(target=self._drain, args=(self._process,), daemon=True)
        draining.start()
        threading.Thread(target=self._forward, args=(self._process, draining), daemon=True).start()

    def _do_put(self, frame: dict[str, Any]) -> None:
        """Write a file. Its bytes are read to their end even where it cannot be written. Raises EOFError where the
        connection ends before."""
        left, path = frame["n"], self._path(frame["name"])
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                while left:
                    piece = self._frames.read(min(left, PIECE_BYTES))
                    if not piece:
                        raise EOFError
                    left -= len(piece)
                    file.write(piece)
                    self._heard = time.monotonic()
        finally:
            while left and (piece := self._frames.read(min(left, PIECE_BYTES))):
                left -= len(piece)

    def _do_get(self, frame: dict[str, Any]) -> None:
        """Send a file and remove it."""
        path = self._path(frame["name"])
        with open(path, "rb") as file, self._writing:
            self._write({"is": "file", "n": os.fstat(file.fileno()).st_size})
            shutil.copyfileobj(file, self._answers, PIECE_BYTES)
            self._answers.flush()
        os.unlink(path)

    def _do_ask(self, frame: dict[str, Any]) -> None:
        """Pass a request on. Its deadline is counted here, where a slow connection costs nothing."""
        self._deadline, self._fetches = time.monotonic() + frame["deadline_s"], frame["fetches"]
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # its end is reported by `_forward`
                self._process.stdin.write(json.dumps(frame["request"]).encode() + b"\n")
                self._process.stdin.flush()

    def _do_signal(self, frame: dict[str, Any]) -> None:
        self._kill(frame["number"])

    def _do_ping(self, _: dict[str, Any]) -> None:
        """Do nothing: hearing it is all."""

    def _send(self, frame: dict[str, Any]) -> None:
        with self._writing:
            self._write(frame)
            self._answers.flush()

    def _write(self, frame: dict[str, Any]) -> None:
        try:
            self._answers.write(json.dumps(frame).encode() + b"\n")
        except OSError:
            self.end()

    def _path(self, name: str) -> str:
        """Return the place of a file that the other side calls `name`, which is absolute there."""
        files = os.path.join(self._folder, "files")
        path = os.path.normpath(files + name)
        if not path.startswith(files):
            raise OSError(f"{name} lies outside")
        return path

    def _kill(self, number: int) -> None:
        if self._process is None:
            return
        has_ended = self._process.poll() is not None
        if has_ended and os.path.exists(f"/proc/{self._process.pid}"):
            return  # another process has its number
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _forward(self, process: subprocess.Popen[bytes], draining: threading.Thread) -> None:
        """Send each answer with the files that it names, then the worker's end."""
        assert process.stdout is not None
        for line in process.stdout:
            self._deadline, answer = 0.0, json.loads(line)
            self._send({"is": "answer", "answer": answer})
            for entry in [*answer.get("outputs", ()), *answer.get("again", ())] if self._fetches else ():
                self._handle({"do": "get", "name": entry["path"]})
        returncode = process.wait()
        draining.join(END_S)
        if not self._ends:
            self._send({"is": "died", "returncode": returncode, "stderr": self._stderr.decode(errors="replace")})

    def _drain(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._stderr = (self._stderr + line)[-STDERR_TAIL_BYTES:]

    def _follow(self, leash: int) -> None:
        """End with the process that holds the other end of a pipe, or when that closes it."""
        os.read(leash, 1)
        self.end()

    def _watch(self) -> None:
        """End what overruns: the worker at its deadline, this process when nobody is heard."""
        while True:
            time.sleep(0.1)
            now = time.monotonic()
            if self._deadline and now > self._deadline:
                self._deadline = 0.0
                self._send({"is": "overran"})
                self._kill(signal.SIGKILL)
            if now - self._heard > SILENCE_S:
                self.end()


def _parent() -> str:
    """Return the folder for files: in memory where there is plenty."""
    may_be_in_memory = "TMPDIR" not in os.environ and os.access(MEMORY_FOLDER, os.W_OK)
    if may_be_in_memory and shutil.disk_usage(MEMORY_FOLDER).free >= MIN_FREE_IN_MEMORY_BYTES:
        return MEMORY_FOLDER
    return tempfile.gettempdir()


def _sweep(parent: str) -> None:
    """Remove folders of this user whose process was killed."""
    for name in os.listdir(parent):
        found = re.match(PREFIX + r"(\d+)-", name)
        path = os.path.join(parent, name)
        is_left = found and not os.path.exists(f"/proc/{found[1]}") and os.path.exists("/proc/self")
        with contextlib.suppress(FileNotFoundError):  # another relay sweeps, too
            if is_left and os.lstat(path).st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)


if __name__ == "__main__":
    Relay(sys.stdin.buffer, sys.stdout.buffer).serve()
