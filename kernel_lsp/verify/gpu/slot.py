"""One GPU and its worker: kept warm, replaced after any loss, proven by the canary, and given up when the canary fails
repeatedly.

A candidate may take the worker with it at any moment. An illegal address makes its CUDA context useless, and an endless
loop has to be killed. That is an outcome (`Lost`), and the next candidate gets a worker that the canary proved.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Built
from kernel_lsp.errors import ConnectionLostError, EnvironmentProblem, KernelLspError
from kernel_lsp.plan.binding import bind
from kernel_lsp.plan.parser import parse
from kernel_lsp.process.supervisor import Answered, Died, Overran
from kernel_lsp.process.worker_client import activity, as_error
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest, Compiler
from kernel_lsp.verify.model.resolved_kernel import kernel_names
from kernel_lsp.verify.timing.rounds import GRAPH, SubjectFailed, end, prepare

OPEN_DEADLINE_S = 120.0
"""Seconds to import torch and create a context, on a cold disk."""
CANARY_DEADLINE_S = 60.0
WARM_UP_DEADLINE_S = 60.0
N_CANARY_FAILURES = 3
"""Consecutive canary failures, each in a new worker, before the GPU is given up."""
MAX_DISCONNECTED = 10
"""Consecutive losses of the connection to another machine, with the same work, before it is given up."""
REPEAT = "repeat the command when the connection is stable: it goes on where it stopped"
ONE_KIND = "ask for one kind of GPU: ray://HOST:PORT?type=H100"
TORCH_THERE = "install torch with CUDA there, or name another Python of that machine"
CANARY = "canary"
WARM_UP = "warm-up"
RENEW = "renew"
N_ELEMENTS = 64 * 256
CANARY_TEXT = """// kernel-lsp: 1
// op: canary(x: i32[N]) -> (out: i32[N])
// where: N % 256 == 0
// launch: canary_blocks<<<N // 256, 256>>>(x, out)

// Each block of 256 elements reversed through shared memory, three times itself plus one.
__global__ void canary_blocks(const int* __restrict__ x, int* __restrict__ out) {
    __shared__ int block[256];
    int i = blockIdx.x * 256 + threadIdx.x;
    block[threadIdx.x] = x[i];
    __syncthreads();
    out[i] = 3 * block[255 - threadIdx.x] + 1;
}
"""


@dataclass(frozen=True)
class GpuFacts:
    """A worker's description of its GPU."""

    name: str
    uuid: str
    architecture: str
    total_bytes: int
    driver: str
    torch_version: str
    n_devices: int = 1
    """GPUs that torch sees there."""


@dataclass(frozen=True)
class Lost:
    """The worker is gone, or useless. `was_killed`: something outside killed it, apparently not the candidate;
    `is_disconnected`: it was on another machine, and the connection was lost. `deadline_s` is the deadline that it
    missed, 0 otherwise."""

    message: str
    was_killed: bool = False
    deadline_s: float = 0.0
    is_disconnected: bool = False


def lost_by(end: Died | Overran, command: str, deadline_s: float) -> Lost:
    """Return the loss of a process that gave no answer to a command."""
    if isinstance(end, Overran):
        return Lost(f"its process did not finish {activity(command)} within {deadline_s:g} s", deadline_s=deadline_s)
    last = next((line for line in reversed(end.stderr.splitlines()) if line.strip()), "")
    ending = f"signal {-end.returncode}" if end.returncode < 0 else f"exit status {end.returncode}"
    message = f"its process ended while {activity(command)} ({ending}) {last.strip()[:200]}".strip()
    return Lost(message, was_killed=end.returncode == -signal.SIGKILL)


@dataclass(frozen=True)
class OutOfService:
    """The GPU is given up for the lifetime of this slot."""

    reason: str


class SlotWorker(Protocol):
    """The part of a worker's interface that a slot needs; `process.worker_client.Worker` is one."""

    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, *_: object) -> None: ...
    @property
    def is_alive(self) -> bool: ...
    @property
    def pid(self) -> int: ...
    async def converse(
        self, command: str, arguments: Mapping[str, Any], *, deadline_s: float
    ) -> Answered | Died | Overran: ...


class GpuSlot:
    """One GPU and its worker. Use as ``async with``. `facts` are known from then on. One caller at a time."""

    facts: GpuFacts

    def __init__(
        self,
        make_worker: Callable[[], SlotWorker],
        index: int,
        directory: Path,
        compiler: Compiler,
        *,
        renews: bool = False,
        place: str = "",
        is_local: bool = True,
    ) -> None:
        """`make_worker` returns a worker that is not started. `renews`: it answers `renew`, and every candidate gets a
        process of its own. `place` says where the GPU is, as in ``on user@host`` or ``cuda:1``; empty for the one of
        this machine. What runs lies below `directory`."""
        self.place, self.is_local, self.directory = place, is_local, directory
        self.index, self._make_worker, self.renews, self._is_used = index, make_worker, renews, False
        self._compiler = compiler
        self._worker: SlotWorker | None = None
        self._standby: asyncio.Task[SlotWorker] | None = None
        self._is_suspect = False
        self._canary: Canary | None = None
        self._n_canary_failures = self._n_disconnected = 0
        self._out_of_service: OutOfService | None = None
        self.n_replaced = 0
        self.loss: Lost | None = None
        """The first loss since `ready`, if any."""

    async def __aenter__(self) -> GpuSlot:
        """Raises EnvironmentProblem when torch does not see the GPU."""
        opened = await self._open()
        if isinstance(opened, Lost):
            await self._close()
            raise EnvironmentProblem(
                f"no worker on {f'GPU {self.index} {self.place}'.rstrip()}: {opened.message}",
                next_step="use --device cpu" if self.is_local else TORCH_THERE,
            )
        self.facts = opened
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the worker. None starts from then on."""
        self._out_of_service = OutOfService("the session has ended")
        await self._close()
        await self._close_standby()

    @property
    def pid(self) -> int:
        """Return the id of the worker's process. Raises RuntimeError when there is none."""
        if self._worker is None:
            raise RuntimeError("there is no worker")
        return self._worker.pid

    @property
    def is_healthy(self) -> bool:
        """Check whether the worker can be trusted with another request."""
        return self._worker is not None and self._worker.is_alive and not self._is_suspect

    async def ready(self) -> OutOfService | None:
        """Ensure a worker that can be trusted with the next candidate: proven if there was a crash before. None when
        there is one."""
        while self._out_of_service is None:
            if self.is_healthy and not await self._renewed():
                self._is_suspect = True
            if self.is_healthy:
                self.loss, self._is_used = None, True
                return None
            was_disconnected, self.loss = self.loss is not None and self.loss.is_disconnected, None
            try:
                problem = await self._replace(has_standby=not was_disconnected)
            except ConnectionLostError as error:
                self.loss = Lost(error.message, was_killed=True, is_disconnected=True)  # for the next candidate's turn
                raise
            self._is_suspect = bool(problem)
            if self._is_disconnected_again(problem):
                continue
            self._n_canary_failures = self._n_canary_failures + 1 if problem else 0
            if self._n_canary_failures >= N_CANARY_FAILURES:
                await self._close()
                self._out_of_service = OutOfService(
                    f"{self.facts.name} (GPU {self.index}) is quarantined: a known good kernel failed on it "
                    f"{N_CANARY_FAILURES} times in a row, last: {problem}"
                )
        return self._out_of_service

    async def _renewed(self) -> bool:
        """Exchange a used process for another one, where the worker can. Return False when that fails."""
        if not (self.renews and self._is_used):
            return True
        self._is_used = False
        return isinstance(await self.ask(RENEW, {}, deadline_s=OPEN_DEADLINE_S), dict)

    def _is_disconnected_again(self, problem: str) -> bool:
        """Check whether the canary failed for the connection alone. Raises EnvironmentProblem when it always does."""
        is_again = bool(problem) and self.loss is not None and self.loss.is_disconnected
        self._n_disconnected = self._n_disconnected + 1 if is_again else 0
        if self._n_disconnected >= MAX_DISCONNECTED:
            raise EnvironmentProblem(f"{problem}, {MAX_DISCONNECTED} times in a row", next_step=REPEAT)
        return is_again

    async def prepare_canary(self) -> Canary:
        """Build the canary, once. Raises EnvironmentProblem."""
        if self._canary is None:
            self._canary = await build_canary(self._compiler, self.facts.architecture, self.directory)
        return self._canary

    async def warm_up(self) -> None:
        """Run what every candidate runs once, so that the first does not pay for first uses. Errors are ignored: they
        recur where they are reported."""
        await self.ask("warm_up", {"path": str(self.directory / "warm-up.bin")}, deadline_s=WARM_UP_DEADLINE_S)
        request = {"device": self.index, "method": GRAPH}
        with suppress(SubjectFailed):
            probe = await prepare(WARM_UP, WARM_UP, self, "prepare_probe", request, WARM_UP_DEADLINE_S)
            block = {"subject": WARM_UP, "n_samples": 1, "n_warm_samples": 1, "n_operator_calls": 1}
            await self.ask("time_block", block, deadline_s=WARM_UP_DEADLINE_S)
            await end(probe)

    async def ask(self, command: str, arguments: Mapping[str, Any], *, deadline_s: float) -> dict[str, Any] | Lost:
        """Send one request. After `Lost` the next `ready` replaces the worker."""
        answer = await self._asked(command, arguments, deadline_s)
        if isinstance(answer, Lost):
            self.loss = self.loss or answer
        return answer

    async def _asked(self, command: str, arguments: Mapping[str, Any], deadline_s: float) -> dict[str, Any] | Lost:
        if self._worker is None:
            return Lost("there is no worker")
        try:
            answer = await self._worker.converse(command, {"device": self.index, **arguments}, deadline_s=deadline_s)
        except ConnectionLostError as error:
            self._is_suspect = True
            return Lost(error.message, was_killed=True, is_disconnected=True)
        match answer:
            case Answered({"status": "timed_out"} as reply):
                overran = Lost(str(reply["message"]), deadline_s=float(arguments.get("run_deadline_s", deadline_s)))
                self.loss = self.loss or overran  # before requests that wait lose the worker to its end
                await self._close()  # the device continues until its process ends
                return overran
            case Answered(reply):
                if reply.get("status") in ("crashed", "out_of_memory"):
                    self._is_suspect = True
                return reply
            case _:
                self._is_suspect = True
                return lost_by(answer, command, deadline_s)

    async def _open(self) -> GpuFacts | Lost:
        standby, self._standby = self._standby, None
        self._worker = await self._started(standby)
        self._is_suspect = self._is_used = False
        reply = await self.ask("open_device", {}, deadline_s=OPEN_DEADLINE_S)
        if isinstance(reply, Lost):
            return reply
        if "error" in reply:
            return Lost(reply["error"]["message"])
        return GpuFacts(
            name=reply["gpu"],
            uuid=reply["uuid"],
            architecture=reply["architecture"],
            total_bytes=int(reply["total_bytes"]),
            driver=reply["driver"],
            torch_version=reply["torch_version"],
            n_devices=int(reply["n_devices"]),
        )

    async def _started(self, standby: asyncio.Task[SlotWorker] | None) -> SlotWorker:
        """Return the standby worker. One that failed to start may have found another machine unreachable."""
        if standby is not None:
            with suppress(KernelLspError):
                return await standby
        return await self._start_worker()

    async def _start_worker(self) -> SlotWorker:
        """Start a worker and open its device where possible. `_open` asks again, and receives the error."""
        worker = self._make_worker()
        try:
            await worker.__aenter__()
            with suppress(ConnectionLostError):
                await worker.converse("open_device", {"device": self.index}, deadline_s=OPEN_DEADLINE_S)
        except BaseException:
            await worker.__aexit__(None, None, None)
            raise
        return worker

    async def _close(self) -> None:
        if self._worker is not None:
            await self._worker.__aexit__(None, None, None)
            self._worker = None

    async def _close_standby(self) -> None:
        """Close the unused standby worker without waiting for a start that may take minutes."""
        standby, self._standby = self._standby, None
        if standby is None:
            return
        standby.cancel()
        await asyncio.wait([standby])
        if not standby.cancelled() and standby.exception() is None:
            await standby.result().__aexit__(None, None, None)

    async def _replace(self, *, has_standby: bool) -> str:
        """Replace the worker and prove it by the canary. Returns its problem, empty when there is none. `has_standby`:
        start the next one beside it."""
        await self._close()
        self.n_replaced += 1
        opened = await self._open()
        if isinstance(opened, GpuFacts) and (opened.name, opened.architecture) != (
            self.facts.name,
            self.facts.architecture,
        ):
            raise ConnectionLostError(f"{self.facts.name} came back as {opened.name}", next_step=ONE_KIND)
        if has_standby:  # one candidate that loses its worker is often followed by another; a lost machine is not
            self._standby = asyncio.create_task(self._start_worker())
        return opened.message if isinstance(opened, Lost) else await self._prove()

    async def _prove(self) -> str:
        """Run the canary. Returns its problem, empty when there is none."""
        canary, folder = await self.prepare_canary(), self.directory / f"canary-{self.n_replaced}"
        try:
            loaded = await self.ask("load", load_request(CANARY, canary.built), deadline_s=CANARY_DEADLINE_S)
            ran = await self.ask("check", _canary_request(canary, folder), deadline_s=CANARY_DEADLINE_S)
            await self.ask("unload", {"candidate": CANARY}, deadline_s=CANARY_DEADLINE_S)
            problem = _problem(loaded) or _problem(ran)
            right = await asyncio.to_thread(canary.is_right, folder / "out.bin")
            return problem or ("" if right else "it gave a wrong answer")
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def load_request(candidate_id: str, built: Built) -> dict[str, Any]:
    """Return the arguments of `load`: the machine code where there is one, else the PTX for the driver to assemble."""
    code = {"cubins": built.cubins} if built.cubins else {"ptx": built.ptx}
    return {"candidate": candidate_id, "symbols": built.symbols, "kernels": list(built.symbols), **code}


def _canary_request(canary: Canary, folder: Path) -> dict[str, Any]:
    bound: BoundOperation = canary.bound
    x = {"name": "x", "path": str(canary.input_path), "dtype": "i32", "shape": list(bound.tensor("x").shape)}
    return {
        "candidate": CANARY,
        "case": CANARY,
        "operation": bound.model_dump(mode="json"),
        "inputs": [x],
        "outputs": {"out": str(folder / "out.bin")},
        "again": {"out": str(folder / "again.bin")},
    }


def raise_if_environment(reply: Mapping[str, Any]) -> None:
    """Raise EnvironmentProblem for an answer that blames the machine, not the candidate."""
    error = as_error(reply["error"]) if "error" in reply else None
    if isinstance(error, EnvironmentProblem):
        raise error


def _problem(reply: dict[str, Any] | Lost) -> str:
    if isinstance(reply, Lost):
        return reply.message
    raise_if_environment(reply)
    if "error" in reply:
        return str(reply["error"]["message"])
    if reply.get("loaded") is False:
        return str(reply["log"])
    if reply.get("status", "ran") != "ran":
        return str(reply["message"])
    return "it differs from run to run" if reply.get("spread") else ""


@dataclass(frozen=True)
class Canary:
    """The built canary with its inputs in a file."""

    built: Built
    bound: BoundOperation
    input_path: Path

    def is_right(self, output_path: Path) -> bool:
        """Check whether the file holds the known answer."""
        try:
            return bool(np.array_equal(np.fromfile(output_path, dtype=np.int32), _answer()))
        except OSError:
            return False


async def build_canary(compiler: Compiler, architecture: str, directory: Path) -> Canary:
    """Compile the canary and write its inputs. Raises EnvironmentProblem when even this does not compile."""
    plan = parse(CANARY_TEXT).plan
    assert plan is not None
    bound = bind(plan.forward, {"x": (N_ELEMENTS,)}, {}, kernel_signatures(CANARY_TEXT))
    names = tuple(sorted(kernel_names(bound)))
    request = BuildRequest(text=CANARY_TEXT, name_expressions=names, architecture=architecture)
    built = await compiler.compile(request)
    if not isinstance(built, Built):
        raise EnvironmentProblem(
            f"the compiler does not build a known good kernel ({built.kind})", next_step="run `kernel-lsp doctor`"
        )
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "canary-x.bin"
    _inputs().tofile(path)
    return Canary(built, bound, path)


def _inputs() -> np.ndarray:
    return np.arange(N_ELEMENTS, dtype=np.int32)


def _answer() -> np.ndarray:
    return 3 * _inputs().reshape(-1, 256)[:, ::-1].reshape(-1) + 1
