"""A worker on another machine: its files are copied there over the user's own OpenSSH, and run under the Python there.

The relay (`worker/relay.py`) keeps it there. Requests name files by their paths here. Their bytes go along: inputs
before a request, outputs after its answer. Nothing is installed there, and all files go with the connection.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import tarfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from kernel_lsp.errors import ConnectionLostError, EnvironmentProblem, KernelLspError
from kernel_lsp.process.profiles import CACHE_VARIABLES
from kernel_lsp.process.supervisor import (
    STDERR_TAIL_BYTES,
    Answered,
    Died,
    Overran,
    _start,
    _TailOutput,
    kill_group,
    scrubbed_environment,
)
from kernel_lsp.process.worker_client import WORKER_PROGRAM, as_error

WORKER_FOLDER = WORKER_PROGRAM.parent
RELAY = WORKER_FOLDER / "relay.py"
LOADER = "import sys;b=sys.stdin.buffer;exec(compile(b.read(int(b.readline())),sys.argv[1],sys.argv[2]))"
"""Program of the command line there: it runs the relay's text, which comes over stdin."""
SSH_OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": "10",
    "ServerAliveInterval": "5",
    "ServerAliveCountMax": "2",
    "LogLevel": "ERROR",
}
"""No question is asked, and a connection that has died is noticed within 15 s. All else is the user's configuration."""
SSH_VARIABLES = ("SSH_AUTH_SOCK", "SSH_AGENT_PID", "USER", "LOGNAME", "KRB5CCNAME", "XDG_RUNTIME_DIR")
GREETING_DEADLINE_S = 18.0
"""Seconds from starting ssh to the relay's greeting."""
START_DEADLINE_S = 60.0
"""Seconds to send the worker's files, 0.7 MB, over a slow connection."""
RECONNECT_S = 18.0
"""Seconds for which a machine that was reached before is tried again."""
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0)
GRACE_S = 20.0
"""Seconds beyond a request's deadline, which the relay keeps, until the connection counts as lost."""
PING_S = 10.0
NOT_FOUND, SSH_FAILED = 127, 255
LOST_WORDS = "the connection to {} was lost"
HINTS = (
    ("Host key verification failed", "its host key is not known", "connect once with `ssh {}` and accept its key"),
    ("IDENTIFICATION HAS CHANGED", "its host key has changed", "ask its administrator, then `ssh-keygen -R` its name"),
    (
        "Permission denied",
        "it accepts none of your keys",
        "make `ssh {}` work without a password (ssh-copy-id)",
    ),
    ("Could not resolve", "its name is not known", "correct the name, or add it to ~/.ssh/config"),
    (
        "Connection refused",
        "it refuses connections on that port",
        "start its server, or give its port: ssh://HOST:PORT",
    ),
    ("timed out", "it does not answer", "check that it is on and that the network lets you through"),
    ("No route to host", "it cannot be reached", "check that it is on and that the network lets you through"),
)
"""What ssh says, in short, and what to do."""


class Machine:
    """A machine that ssh reaches. `port` and `user` may be empty: the user's configuration has them."""

    def __init__(self, host: str, *, user: str = "", port: str = "", python: str = "python3", ssh: str = "ssh") -> None:
        self.name, self.python = f"{user}@{host}" if user else host, python
        self._command = [ssh, "-T", *(f"-o{key}={value}" for key, value in SSH_OPTIONS.items())]
        self._command += [*(["-p", port] if port else []), "--", self.name]
        self.was_reached = False

    def command(self) -> list[str]:
        """Return the command that runs the loader there."""
        return [*self._command, f"exec {_quoted(self.python)} -c '{LOADER}' relay exec"]

    async def connect(self) -> Link:
        """Return a connection with the worker started. Tries again for a while where the machine was reached before.
        Raises EnvironmentProblem."""
        ends, pauses = time.monotonic() + RECONNECT_S, iter(PAUSES_S)
        while True:
            link = Link(self)
            try:
                await link.open()
            except EnvironmentProblem:
                await link.close()
                pause_s = next(pauses, PAUSES_S[-1])
                if not self.was_reached or time.monotonic() + pause_s > ends:
                    raise
                await asyncio.sleep(pause_s)
            except BaseException:
                await link.close()
                raise
            else:
                self.was_reached = True
                return link

    def problem(self, returncode: int, stderr: str) -> EnvironmentProblem:
        """Return the error of a connection that did not come about."""
        last = next((line.strip() for line in reversed(stderr.splitlines()) if line.strip()), f"status {returncode}")
        for words, what, next_step in HINTS:
            if words in stderr:
                return EnvironmentProblem(f"{self.name}: {what}", next_step=next_step.format(self.name))
        if returncode == NOT_FOUND:
            step = f"name its Python with torch: ssh://{self.name}/path/to/python"
            return EnvironmentProblem(f"{self.name} has no program {self.python}", next_step=step)
        return EnvironmentProblem(f"{self.name}: {last[:200]}", next_step=f"make `ssh {self.name}` work")


class Link:
    """One connection, with one worker behind it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.process: asyncio.subprocess.Process | None = None
        self._stderr = _TailOutput(STDERR_TAIL_BYTES)
        self._tasks: list[asyncio.Task[Any]] = []
        self._writing = asyncio.Lock()
        self._answers: deque[asyncio.Future[Answered | Died | Overran]] = deque()
        self._files: deque[tuple[Path, asyncio.Future[None]]] = deque()
        self._sent: dict[str, tuple[int, int, int]] = {}
        self._failure: KernelLspError | None = None
        self._ending: Died | Overran | None = None
        self.has_ended = False

    @property
    def is_alive(self) -> bool:
        return not self.has_ended and self.process is not None and self.process.returncode is None

    async def open(self) -> None:
        """Start ssh, the relay and the worker. Raises EnvironmentProblem."""
        extra = {name: os.environ[name] for name in SSH_VARIABLES if name in os.environ}
        try:
            self.process = await _start(self._machine.command(), scrubbed_environment(extra), None)
        except OSError as error:
            raise EnvironmentProblem(f"ssh cannot be started ({error.strerror})", next_step="install OpenSSH") from None
        self._tasks.append(asyncio.create_task(self._stderr.drain(self.process.stderr)))
        text = RELAY.read_bytes()
        try:
            async with asyncio.timeout(GREETING_DEADLINE_S):
                await self._write(b"%d\n" % len(text), text)
                await self._greeted()
            async with asyncio.timeout(START_DEADLINE_S):
                await self._start_worker()
        except TimeoutError:
            raise EnvironmentProblem(
                f"{self._machine.name} does not answer", next_step=f"make `ssh {self._machine.name}` work at once"
            ) from None
        self._tasks += [asyncio.create_task(self._receive()), asyncio.create_task(self._ping())]

    async def ask(self, request: Mapping[str, Any], deadline_s: float) -> Answered | Died | Overran:
        """Send the request's inputs and the request, and fetch its outputs. Raises ConnectionLostError, and
        EnvironmentProblem where files cannot be written there."""
        for path in _inputs_of(request) if self._ending is None else ():
            await self._put(path)
        answer = await self._asked(request, deadline_s)
        if isinstance(answer, Answered):
            for name in _outputs_of(request, answer.reply):
                await self._get(Path(name))
        return answer

    async def signal(self, number: int) -> None:
        """Send a signal to the worker and what it started."""
        with suppress(ConnectionLostError):
            await self._send({"do": "signal", "number": number})

    def kill(self) -> None:
        """Begin to end the connection, which counts as ended at once; the relay ends with it."""
        self.has_ended = True
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.kill()

    async def close(self) -> None:
        """End the connection. What it left there ends with it."""
        self.has_ended = True
        if self.process is not None:
            if self.process.stdin is not None:
                self.process.stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.process.wait(), CLOSE_S)
            await kill_group(self.process)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end()

    # --- below: opening

    async def _greeted(self) -> None:
        """Skip what a login shell prints."""
        assert self.process is not None
        assert self.process.stdout is not None
        while not (line := await self.process.stdout.readline()).startswith(b'{"is": "greeting"'):
            if not line:
                returncode = await self.process.wait()
                await asyncio.wait(self._tasks, timeout=1.0)
                raise self._machine.problem(returncode, self._stderr.text())

    async def _start_worker(self) -> None:
        packed = _packed(WORKER_FOLDER)
        program = [WORKER_FOLDER.name, WORKER_PROGRAM.name]
        header = {
            "do": "start",
            "n": len(packed),
            "program": program,
            "python": self._machine.python,
            "caches": CACHE_VARIABLES,
        }
        await self._send({**header, "python": self._machine.python}, packed)
        assert self.process is not None
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        frame = json.loads(line) if line else {"is": "failed", "message": "the connection was lost"}
        if frame["is"] == "failed":
            raise self._cannot_store(frame["message"])

    def _cannot_store(self, message: str) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"{self._machine.name} cannot store the worker's files: {message}",
            next_step="free space in its temporary folder, or set TMPDIR there",
        )

    # --- below: frames

    async def _asked(self, request: Mapping[str, Any], deadline_s: float) -> Answered | Died | Overran:
        if self._ending is not None:
            return self._ending
        answer: asyncio.Future[Answered | Died | Overran] = asyncio.get_running_loop().create_future()
        self._answers.append(answer)
        await self._send({"do": "ask", "request": request, "deadline_s": deadline_s})
        try:
            async with asyncio.timeout(deadline_s + GRACE_S):
                found = await answer
        except TimeoutError:
            self._end()
            raise self._lost() from None
        return Overran(deadline_s, "") if isinstance(found, Overran) else found

    async def _put(self, path: Path) -> None:
        """Send a file unless this very file was sent."""
        seen = path.stat()
        key = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
        if self._sent.get(str(path)) != key:
            content = await asyncio.to_thread(path.read_bytes)
            await self._send({"do": "put", "name": str(path), "n": len(content)}, content)
            self._sent[str(path)] = key

    async def _get(self, path: Path) -> None:
        fetched: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._files.append((path, fetched))
        await self._send({"do": "get", "name": str(path)})
        await fetched

    async def _send(self, frame: Mapping[str, Any], content: bytes = b"") -> None:
        if self._failure is not None:
            raise self._failure
        if not self.is_alive:
            raise self._lost()
        await self._write(json.dumps(frame).encode() + b"\n", content)

    async def _write(self, *parts: bytes) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        async with self._writing:
            try:
                for part in parts:
                    self.process.stdin.write(part)
                    await self.process.stdin.drain()
            except (BrokenPipeError, ConnectionResetError):
                return  # the reader reports the end, with its reason

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            with suppress(KernelLspError):
                await self._send({"do": "ping"})

    async def _receive(self) -> None:
        """Hand out answers and files in the order of their requests, until the connection ends."""
        assert self.process is not None
        assert self.process.stdout is not None
        try:
            while (line := await self.process.stdout.readline()).endswith(b"\n"):
                await self._take(json.loads(line), self.process.stdout)
        finally:
            self._end()

    async def _take(self, frame: Mapping[str, Any], stream: asyncio.StreamReader) -> None:
        match frame["is"]:
            case "answer":
                self._answer(Answered(frame["answer"]))
            case "overran":
                self._over(Overran(0.0, ""))
            case "died":
                self._over(Died(frame["returncode"], frame["stderr"]))
            case "file":
                path, fetched = self._files.popleft()
                content = await stream.readexactly(frame["n"])
                path.parent.mkdir(parents=True, exist_ok=True)
                await asyncio.to_thread(path.write_bytes, content)
                fetched.set_result(None)
            case "failed":
                self._fail(frame)

    def _over(self, ending: Died | Overran) -> None:
        """Remember how the worker ended: it may have done so before a request came."""
        self.has_ended, self._ending = True, self._ending or ending
        self._answer(ending)

    def _answer(self, answer: Answered | Died | Overran) -> None:
        if self._answers and not (waiting := self._answers.popleft()).done():
            waiting.set_result(answer)

    def _fail(self, frame: Mapping[str, Any]) -> None:
        """Fail the transfer that could not be made, and all that is asked later: a file is missing there."""
        self._failure = self._cannot_store(frame["message"])
        self._end(self._failure)

    def _end(self, error: KernelLspError | None = None) -> None:
        """Fail everything that waits."""
        self.has_ended = True
        waits: list[asyncio.Future[Any]] = [*self._answers, *(fetched for _, fetched in self._files)]
        for waiting in waits:
            if not waiting.done():
                waiting.set_exception(error or self._lost())
                waiting.exception()  # it may be that nobody waits any more
        self._answers.clear()
        self._files.clear()

    def _lost(self) -> ConnectionLostError:
        words = LOST_WORDS.format(self._machine.name)
        return ConnectionLostError(words, next_step="repeat the command: it goes on where it stopped")


CLOSE_S = 2.0
"""Seconds for ssh to end when its input has ended."""


class RemoteWorker:
    """A worker on another machine, with the part of `Worker`'s interface that devices need. Use as ``async with``."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._link: Link | None = None
        self._turn, self._starting = asyncio.Lock(), asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> RemoteWorker:
        """Connect, unless that was done. Raises EnvironmentProblem."""
        async with self._starting:
            if self._link is None:
                self._link = await self._machine.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._link is not None:
            await self._link.close()

    @property
    def is_alive(self) -> bool:
        return self._link is not None and self._link.is_alive

    @property
    def pid(self) -> int:
        """Process id of the connection. Raises RuntimeError before the start."""
        if self._link is None or self._link.process is None:
            raise RuntimeError("there is no connection")
        return self._link.process.pid

    def kill(self) -> None:
        """Begin to end it."""
        if self._link is not None:
            self._link.kill()

    def hold(self) -> None:
        """Suspend it, e.g. while something else is timed."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Resume after `hold`."""
        self._signal(signal.SIGCONT)

    async def converse(
        self, command: str, arguments: Mapping[str, Any], *, deadline_s: float
    ) -> Answered | Died | Overran:
        """Send any command; return its outcome as a value. Raises ConnectionLostError, EnvironmentProblem."""
        async with self._turn:
            if self._link is None:
                raise RuntimeError("there is no connection")
            try:
                return await self._link.ask({"command": command, **arguments}, deadline_s)
            except asyncio.CancelledError:
                self._link.kill()  # its state would be unknown
                raise

    async def ask(self, command: str, arguments: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any]:
        """Send any command. Raises its error."""
        answer = await self.converse(command, arguments, deadline_s=deadline_s)
        if isinstance(answer, Overran):
            raise EnvironmentProblem(f"{self._machine.name} did not finish '{command}' within {deadline_s:g} s")
        if isinstance(answer, Died):
            raise EnvironmentProblem(f"the worker on {self._machine.name} ended during '{command}'")
        if "error" in answer.reply:
            raise as_error(answer.reply["error"])
        return answer.reply

    def _signal(self, number: int) -> None:
        if self._link is not None:
            task = asyncio.create_task(self._link.signal(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


# --- below: files of a request


def _inputs_of(request: Mapping[str, Any]) -> list[Path]:
    return [Path(entry["path"]) for entry in request.get("inputs", ())]


def _outputs_of(request: Mapping[str, Any], reply: Mapping[str, Any]) -> Sequence[str]:
    """Return the files that the answer says were written."""
    written = [*reply.get("outputs", ()), *reply.get("again", ())] if "outputs" in request else []
    return [entry["path"] for entry in written]


@cache
def _packed(folder: Path) -> bytes:
    """Return the folder as a tar, without bytecode."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted(each for each in folder.rglob("*") if each.is_file() and "__pycache__" not in each.parts):
            archive.add(path, Path(folder.name) / path.relative_to(folder))
    return packed.getvalue()


def _quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"
