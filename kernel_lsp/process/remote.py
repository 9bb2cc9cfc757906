"""A worker on another machine: its files are copied there, and run under the Python there. The connection is the user's
own OpenSSH's, or a slot of a Ray cluster (`ray_cluster.py`).

The relay (`worker/relay.py`) keeps it there. Requests name files by their paths here. Their bytes go along: inputs
before a request, outputs after its answer. Nothing is installed there, and all files go with the connection.
"""

from __future__ import annotations

import asyncio
import io
import json
import signal
import tarfile
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from kernel_lsp.errors import ConnectionLostError, EnvironmentProblem, KernelLspError
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.process.channel import Stream
from kernel_lsp.process.profiles import CACHE_VARIABLES
from kernel_lsp.process.supervisor import Answered, Died, Overran, _TailOutput
from kernel_lsp.process.worker_client import WORKER_PROGRAM, activity, as_error

WORKER_FOLDER = WORKER_PROGRAM.parent
RELAY = WORKER_FOLDER / "relay.py"
LAUNCHER = Path(__file__).with_name("confined_worker.py")
LOADER = "import sys;b=sys.stdin.buffer;exec(compile(b.read(int(b.readline())),sys.argv[1],sys.argv[2]))"
"""Program of the command line there: it runs the relay's text, which comes over stdin."""
GREETING_DEADLINE_S = 13.0
"""Seconds from starting ssh to the relay's greeting: with the command's own start, less than 20 s."""
START_DEADLINE_S = 60.0
"""Seconds to send the worker's files, 0.7 MB, over a slow connection."""
RECONNECT_S = 18.0
"""Seconds for which a machine that was reached before is tried again."""
PAUSES_S = (0.2, 0.5, 1.0, 2.0, 4.0)
GRACE_S = 20.0
"""Seconds beyond a request's deadline, which the relay keeps, until the connection counts as lost."""
PING_S = 10.0
SMALL_BYTES = 1 << 18
"""Largest file that is sent in one piece with its request."""
FORK_SERVER = ("fork_server",)
"""Arguments of a worker that answers `renew` (`worker/fork_server.py`)."""
LOST_WORDS = "the connection to {} was lost"


class Place(ABC):
    """A place where workers can be started: a machine behind ssh, a slot of a cluster. `python` is its interpreter with
    torch; empty for the one that runs the relay."""

    python = ""
    reconnect_s = RECONNECT_S
    greeting_deadline_s = GREETING_DEADLINE_S
    is_confined = False
    """Workers start through `confined_worker.py`, which travels along: the Python there is 3.11 or later."""

    def __init__(self, name: str) -> None:
        self.name, self.was_reached = name, False

    @abstractmethod
    async def open(self, link: Link) -> Stream:
        """Return a stream to a loader there. Raises EnvironmentProblem."""

    @abstractmethod
    def problem(self, returncode: int, stderr: str) -> EnvironmentProblem:
        """Return the error of a connection that did not come about."""

    @abstractmethod
    def silence(self) -> EnvironmentProblem:
        """Return the error of a place that does not answer in time."""

    async def connect(self, arguments: Sequence[str] = ()) -> Link:
        """Return a connection with the worker started. Tries again for a while where the place was reached before.
        Raises EnvironmentProblem, ConnectionLostError when it was reached before."""
        ends, pauses = time.monotonic() + self.reconnect_s, iter(PAUSES_S)
        while True:
            link = Link(self, arguments)
            try:
                await link.open()
            except EnvironmentProblem as problem:
                await link.close()
                pause_s = next(pauses, PAUSES_S[-1])
                if not self.was_reached:
                    raise
                if time.monotonic() + pause_s > ends:
                    raise ConnectionLostError(problem.message, next_step=problem.next_step) from None
                await asyncio.sleep(pause_s)
            except BaseException:
                await link.close()
                raise
            else:
                self.was_reached = True
                return link


class Link:
    """One connection, with one worker behind it."""

    def __init__(self, place: Place, arguments: Sequence[str]) -> None:
        """`arguments` are the worker's."""
        self._place, self._arguments = place, tuple(arguments)
        self._opened: Stream | None = None
        self._stderr = _TailOutput()
        self._tasks: list[asyncio.Task[Any]] = []
        self._writing = asyncio.Lock()
        self._answers: deque[tuple[Mapping[str, Any], asyncio.Future[Answered | Died | Overran]]] = deque()
        self._small: list[bytes] = []
        self._is_fetching = False
        self._sent: dict[str, tuple[int, int, int]] = {}
        self._failure: KernelLspError | None = None
        self._ending: Died | Overran | None = None
        self.has_ended = False

    @property
    def is_alive(self) -> bool:
        return not self.has_ended and self._opened is not None and self._opened.is_open

    @property
    def pid(self) -> int:
        """Return the process id of ssh. Raises RuntimeError when the connection is none of a process."""
        if self._opened is None or self._opened.process is None:
            raise RuntimeError("the connection has no process here")
        return self._opened.process.pid

    def drain(self, process: asyncio.subprocess.Process) -> None:
        """Keep the end of what the connection's process writes to stderr."""
        self._tasks.append(asyncio.create_task(self._stderr.drain(process.stderr)))

    async def open(self) -> None:
        """Connect, and start the relay and the worker. Raises EnvironmentProblem."""
        text = RELAY.read_bytes()
        try:
            async with asyncio.timeout(self._place.greeting_deadline_s):
                self._opened = await self._place.open(self)
                await self._write(b"%d\n" % len(text), text)
                await self._greeted()
            async with asyncio.timeout(START_DEADLINE_S):
                await self._start_worker()
        except TimeoutError:
            raise self._place.silence() from None
        except OSError:  # its machine was lost while it started
            raise self._place.problem(-1, self._stderr.text()) from None
        self._tasks += [asyncio.create_task(self._receive()), asyncio.create_task(self._ping())]

    async def ask(self, request: Mapping[str, Any], deadline_s: float) -> Answered | Died | Overran:
        """Send the request's inputs and the request, and fetch its outputs. Raises ConnectionLostError, and
        EnvironmentProblem where files cannot be written there."""
        for path in _inputs_of(request) if self._ending is None else ():
            await self._put(path)
        return await self._asked(request, deadline_s)

    async def signal(self, number: int) -> None:
        """Send a signal to the worker and what it started."""
        with suppress(ConnectionLostError):
            await self._send({"do": "signal", "number": number})

    def kill(self) -> None:
        """Begin to end the connection, which counts as ended at once; the relay ends with it."""
        self.has_ended = True
        if self._opened is not None:
            self._opened.kill()

    async def close(self) -> None:
        """End the connection. What it left there ends with it."""
        self.has_ended = True
        if self._opened is not None:
            await self._opened.close()
        await end_tasks(*self._tasks)
        self._end()

    @property
    def _stream(self) -> Stream:
        assert self._opened is not None, "the connection was not opened"
        return self._opened

    async def _greeted(self) -> None:
        """Skip what a login shell prints."""
        while not (line := await self._stream.reader.readline()).startswith(b'{"is": "greeting"'):
            if not line:
                returncode = await self._stream.status()
                if self._tasks:  # until all of stderr is read
                    await asyncio.wait(self._tasks, timeout=1.0)
                raise self._place.problem(returncode, self._stderr.text())

    async def _start_worker(self) -> None:
        packed = _packed(self._place.is_confined)
        program = [*WORKER_PROGRAM.parts[-2:]]
        header = {
            "do": "start",
            "n": len(packed),
            "program": program,
            "arguments": self._arguments,
            "launcher": [*LAUNCHER.parts[-3:]] if self._place.is_confined else [],
            "python": self._place.python,
            "caches": CACHE_VARIABLES,
        }
        await self._send(header, packed)
        line = await self._stream.reader.readline()
        frame = json.loads(line) if line else {"is": "failed", "message": "the connection was lost"}
        if frame["is"] == "failed":
            raise self._cannot_store(frame["message"])

    def _cannot_store(self, message: str) -> EnvironmentProblem:
        return EnvironmentProblem(
            f"{self._place.name} cannot store the worker's files: {message}",
            next_step="free space in its temporary folder, or set TMPDIR there",
        )

    async def _asked(self, request: Mapping[str, Any], deadline_s: float) -> Answered | Died | Overran:
        if self._ending is not None:
            return self._ending
        answer: asyncio.Future[Answered | Died | Overran] = asyncio.get_running_loop().create_future()
        self._answers.append((request, answer))
        asked = {"do": "ask", "request": request, "deadline_s": deadline_s, "fetches": "outputs" in request}
        await self._send(asked)
        while not answer.done():
            await asyncio.wait([answer], timeout=deadline_s + GRACE_S)
            if not answer.done() and not self._is_fetching:
                self._end()
        found = await answer
        return Overran(deadline_s, "") if isinstance(found, Overran) else found

    async def _put(self, path: Path) -> None:
        """Send a file unless this very file was sent."""
        seen = path.stat()
        key = (seen.st_ino, seen.st_size, seen.st_mtime_ns)
        if self._sent.get(str(path)) != key:
            content = path.read_bytes() if seen.st_size <= SMALL_BYTES else await asyncio.to_thread(path.read_bytes)
            frame = {"do": "put", "name": str(path), "n": len(content)}
            if len(content) <= SMALL_BYTES:  # goes with the request
                self._small += [json.dumps(frame).encode() + b"\n", content]
            else:
                await self._send(frame, content)
            self._sent[str(path)] = key

    async def _send(self, frame: Mapping[str, Any], content: bytes = b"") -> None:
        if self._failure is not None:
            raise self._failure
        if not self.is_alive:
            raise self._lost()
        await self._write(json.dumps(frame).encode() + b"\n", content)

    async def _write(self, *parts: bytes) -> None:
        async with self._writing:
            small, self._small = self._small, []
            await self._stream.write(b"".join([*small, parts[0]]), *parts[1:])

    async def _ping(self) -> None:
        while True:
            await asyncio.sleep(PING_S)
            with suppress(KernelLspError):
                await self._send({"do": "ping"})

    async def _receive(self) -> None:
        """Hand out answers and files in the order of their requests, until the connection ends."""
        reader = self._stream.reader
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                await self._take(json.loads(line), reader)
        finally:
            self._end()

    async def _take(self, frame: Mapping[str, Any], stream: asyncio.StreamReader) -> None:
        match frame["is"]:
            case "answer":
                await self._fetch(frame["answer"], stream)
                self._answer(Answered(frame["answer"]))
            case "overran":
                self._over(Overran(0.0, ""))
            case "died":
                self._over(Died(frame["returncode"], frame["stderr"]))
            case "failed":
                self._fail(frame)

    async def _fetch(self, reply: Mapping[str, Any], stream: asyncio.StreamReader) -> None:
        """Receive the files of an answer, which follow it."""
        request = self._answers[0][0] if self._answers else {}
        self._is_fetching = True
        for path in map(Path, _outputs_of(request, reply)):
            frame = json.loads(await stream.readline() or b'{"is": "lost"}')
            if frame["is"] != "file":
                self._fail(frame) if frame["is"] == "failed" else self._end()
                break
            content = await stream.readexactly(frame["n"])
            path.parent.mkdir(parents=True, exist_ok=True)
            if len(content) <= SMALL_BYTES:
                path.write_bytes(content)
            else:
                await asyncio.to_thread(path.write_bytes, content)
        self._is_fetching = False

    def _over(self, ending: Died | Overran) -> None:
        """Remember how the worker ended: it may have done so before a request came."""
        self.has_ended, self._ending = True, self._ending or ending
        self._answer(ending)

    def _answer(self, answer: Answered | Died | Overran) -> None:
        if self._answers and not (waiting := self._answers.popleft()[1]).done():
            waiting.set_result(answer)

    def _fail(self, frame: Mapping[str, Any]) -> None:
        """Fail the transfer that could not be made, and all that is asked later: a file is missing there."""
        self._failure = self._cannot_store(frame["message"])
        self._end(self._failure)

    def _end(self, error: KernelLspError | None = None) -> None:
        """Fail all pending requests."""
        self.has_ended = True
        for _, waiting in self._answers:
            if not waiting.done():
                waiting.set_exception(error or self._lost())
                waiting.exception()  # it may be that nobody waits any more
        self._answers.clear()

    def _lost(self) -> ConnectionLostError:
        words = LOST_WORDS.format(self._place.name)
        return ConnectionLostError(words, next_step="repeat the command: it goes on where it stopped")


class RemoteWorker:
    """A worker on another machine, with the part of `Worker`'s interface that devices need. Use as ``async with``."""

    def __init__(self, place: Place, arguments: Sequence[str] = ()) -> None:
        """`arguments` are the worker's."""
        self._place, self._arguments = place, arguments
        self._link: Link | None = None
        self._turn, self._starting = asyncio.Lock(), asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> RemoteWorker:
        """Connect, unless that was done. Raises EnvironmentProblem."""
        async with self._starting:
            if self._link is None:
                self._link = await self._place.connect(self._arguments)
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
        if self._link is None:
            raise RuntimeError("there is no connection")
        return self._link.pid

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
            raise EnvironmentProblem(f"{self._place.name} did not finish {activity(command)} within {deadline_s:g} s")
        if isinstance(answer, Died):
            raise EnvironmentProblem(f"the worker on {self._place.name} ended while {activity(command)}")
        if "error" in answer.reply:
            raise as_error(answer.reply["error"])
        return answer.reply

    def _signal(self, number: int) -> None:
        if self._link is not None:
            task = asyncio.create_task(self._link.signal(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)


def _inputs_of(request: Mapping[str, Any]) -> list[Path]:
    return [Path(entry["path"]) for entry in request.get("inputs", ())]


def _outputs_of(request: Mapping[str, Any], reply: Mapping[str, Any]) -> Sequence[str]:
    """Return the files that the answer says were written."""
    written = [*reply.get("outputs", ()), *reply.get("again", ())] if "outputs" in request else []
    return [entry["path"] for entry in written]


@cache
def _packed(is_confined: bool) -> bytes:
    """Return the worker's folder as a tar, without bytecode, and what confines it beside it."""
    packed = io.BytesIO()
    folders = {WORKER_FOLDER: WORKER_FOLDER.parent}
    if is_confined:
        folders[LAUNCHER.parent] = LAUNCHER.parents[2]
    files = {path: root for folder, root in folders.items() for path in _texts(folder)}
    if is_confined:
        files |= {LAUNCHER.parents[1] / name: LAUNCHER.parents[2] for name in ("__init__.py", "errors.py")}
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, root in files.items():
            archive.add(path, path.relative_to(root))
    return packed.getvalue()


def _texts(folder: Path) -> list[Path]:
    return sorted(each for each in folder.rglob("*") if each.is_file() and "__pycache__" not in each.parts)
