"""PyTorch's baselines of a task, each in a fresh process that never held a candidate, prepared in the background.

Eager is ready at once. The modes of `torch.compile` take from seconds to minutes. They are prepared side by side, large
jobs one after the other, and pause while something is timed. One that fails or times out is a result with its reason.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from kernel_lsp.core.digest import SHORT_DIGITS, sha256_of
from kernel_lsp.core.measurement import EAGER, BaselineResult, MissingBaseline, TimedBaseline
from kernel_lsp.errors import KernelLspError
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.verify.timing.baseline_cache import BaselineCache, BaselineKey
from kernel_lsp.verify.timing.rounds import Asker, Subject, SubjectFailed, end, prepare

MODES = {
    EAGER: "eager",
    "compile": "default",
    "compile reduce-overhead": "reduce-overhead",
    "compile max-autotune": "max-autotune",
}
"""Name in reports -> mode of `torch.compile`."""
N_COMPILED_MODES = len(MODES) - 1
PREPARE_DEADLINES_S = {EAGER: 120.0, "compile": 240.0, "compile reduce-overhead": 240.0, "compile max-autotune": 900.0}
NEAR = 1.1
"""Modes that take at most so many times the fastest one's time stay ready and are measured with it: noise may order
them either way, and preparing one again takes half a minute."""
PEER_DEADLINE_S = 240.0
PEER_MODE = "peer:"
"""Prefix of a mode that calls ``FILE::NAME`` of another library instead of the reference."""
NOT_STARTED = "not compiled yet"
AT_ONCE_SHARE, AT_ONCE_BYTES = 16, 4 << 30
"""Divisor of the GPU's memory, and bytes where that is unknown, up to which all modes prepare an operation at once,
each with copies and intermediates of its own."""
OUT_OF_MEMORY = "out of memory"
"""Part of the message of a mode that found too little memory. It is prepared once more, when no other one is."""
IDLE_DEADLINE_S = 5.0
"""Maximum seconds to wait for the work that a held process has launched: max-autotune launches a slow choice several
times before it looks at the time."""
MAX_DISCONNECTED = 10
"""Losses of the connection to another machine after which a baseline is given up."""


class TimingWorker(Asker, Protocol):
    """A worker process; `process.worker_client.Worker` is one. `hold` pauses it, `go_on` resumes it."""

    async def __aenter__(self) -> Any: ...
    async def __aexit__(self, *_: object) -> None: ...
    def hold(self) -> None: ...
    def go_on(self) -> None: ...


@dataclass(frozen=True)
class Job:
    """One operation of a task at one set of shapes, of `n_bytes` in all its tensors. `request` is `prepare_baseline`'s
    without the mode."""

    task_hash: str
    configuration: str
    request: Mapping[str, Any] = field(repr=False)
    n_bytes: int = 0

    @property
    def job_id(self) -> str:
        return sha256_of(f"{self.task_hash} {self.configuration}", SHORT_DIGITS)


class Baselines:
    """All baselines on one GPU. Use as ``async with``; `names` can leave some out."""

    def __init__(
        self,
        make_worker: Callable[[], TimingWorker],
        cache: BaselineCache,
        *,
        device: int | str,
        names: Sequence[str] = tuple(MODES),
        peers: Sequence[str] = (),
        starts_ahead: bool = False,
    ) -> None:
        """`make_worker` returns a worker that is not started. `device` is an index, or ``cpu`` for the host's clock.
        `peers` are functions ``FILE::NAME`` that compute the task with another library, each a baseline by its name.
        `starts_ahead`: the processes of `torch.compile`'s modes start and import it before there is a job."""
        modes = {name: MODES[name] for name in names}
        modes |= {peer.rpartition("::")[2]: f"{PEER_MODE}{peer}" for peer in peers}
        self._cache, self.device, self._names = cache, device, tuple(modes)
        self._modes = {name: _Mode(name, mode, make_worker) for name, mode in modes.items()}
        self._known: dict[tuple[str, str], BaselineResult] = {}
        self._recorded: set[tuple[str, str]] = set()
        self._offered: list[Job] = []
        self._warming: asyncio.Task[None] | None = None
        self._starts_ahead = starts_ahead
        self._starting: dict[str, asyncio.Task[None]] = {}
        self._preparing: dict[str, asyncio.Task[None]] = {}
        self._large_jobs = asyncio.Lock()
        self._crowded_out: set[tuple[str, str]] = set()
        self._nothing_is_timed = asyncio.Event()
        self._nothing_is_timed.set()

    async def __aenter__(self) -> Baselines:
        """Start eager's process, so that it has torch and a context before the first candidate."""
        worker = await self._modes[EAGER].start()
        self._warming = asyncio.create_task(_warm_up(worker, self.device))
        compiled = [name for name in self._names if name != EAGER and name in MODES] if self._starts_ahead else ()
        self._starting = {name: asyncio.create_task(self._modes[name].start_compiler(self.device)) for name in compiled}
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_tasks(*self._preparing.values(), *self._starting.values(), self._warming)
        await asyncio.gather(*(mode.close() for mode in self._modes.values()))

    async def offer(self, job: Job) -> None:
        """Prepare eager for this job, and begin to prepare the other baselines."""
        await self._modes[EAGER].prepare(job)
        self._recall(job)
        if job.job_id not in (offered.job_id for offered in self._offered):
            self._offered.append(job)
        for name in self._names:
            if name != EAGER and (name not in self._preparing or self._preparing[name].done()):
                self._preparing[name] = asyncio.create_task(self._prepare_mode(name))

    async def wait(self, job: Job, at_most_s: float) -> None:
        """Wait until this job's baselines are final, at most `at_most_s`."""
        deadline = time.monotonic() + at_most_s
        while not self.is_complete(job):
            preparing = [task for task in self._preparing.values() if not task.done()]
            left_s = deadline - time.monotonic()
            if not preparing or left_s <= 0:
                return
            await asyncio.wait(preparing, timeout=min(left_s, PROGRESS_S), return_when=asyncio.FIRST_COMPLETED)

    def is_complete(self, job: Job) -> bool:
        """Check whether each baseline is ready, was timed and is not the best, or is permanently unavailable."""
        return not any(self._is_wanted(name, job) for name in self._names)

    def subjects(self, job: Job) -> list[Subject]:
        """Return the subjects to measure with a candidate: eager, everything that has no time yet, and the best
        compiled ones."""
        ready = [subject for name in self._names if isinstance(subject := self._modes[name].subject(job), Subject)]
        wanted = {EAGER, *self._near_best(job)}
        return [subject for subject in ready if subject.name in wanted or (job.job_id, subject.name) not in self._known]

    def ranking_subjects(self, job: Job) -> list[Subject]:
        """Return the fastest baseline that is ready, to measure a candidate beside that is only ranked. Empty while a
        mode of `torch.compile` that is ready has no time; eager, which every full timing has, needs none."""
        ready = {subject.name: subject for subject in self.subjects(job)}
        if any((job.job_id, name) not in self._known for name in ready if name != EAGER):
            return []
        fastest = ready.get(self._best_prepared(job)) or ready.get(EAGER)
        return [fastest] if fastest is not None else []

    def rearranged(self, job: Job, subject: Subject) -> None:
        """Record that a subject now has other calls per sample."""
        self._modes[subject.name].rearranged(job, subject)

    def others(self, job: Job, measured: Sequence[str]) -> list[BaselineResult]:
        """Return the known results of the baselines that were not `measured` just now: an earlier time, or why there is
        none."""
        found = []
        for name in self._names:
            if name in measured:
                continue
            missing = self._modes[name].subject(job)
            known = self._known.get((job.job_id, name))
            if known is not None:
                found.append(known)
            elif isinstance(missing, MissingBaseline):
                found.append(missing)
        return found

    async def record(self, job: Job, timed: TimedBaseline) -> None:
        """Remember a time, on disk, too. Ends a process that no job needs any more."""
        if (job.job_id, timed.name) not in self._recorded:
            self._recorded.add((job.job_id, timed.name))
            self._cache.keep(self._key(job, timed.name), timed)
        self._known[job.job_id, timed.name] = timed.model_copy(update={"ratio": None})
        for name in self._names:
            if name != EAGER and self._is_done_with(name):
                await self._modes[name].close()

    async def drop(self, job: Job, failed: SubjectFailed) -> None:
        """Record that a baseline's process failed while it was timed. Its process is replaced for the next job."""
        await self._modes[failed.name].fail(job, failed)

    @asynccontextmanager
    async def held(self) -> AsyncIterator[bool]:
        """Pause what is being compiled while something is timed; yield whether the GPU has ended what that had
        launched. Eager goes on: it is the one that is asked."""
        self._nothing_is_timed.clear()
        busy = [mode for mode in self._modes.values() if mode.is_preparing]
        held = [mode for mode in busy if mode.name != EAGER]
        for mode in held:
            mode.hold()
        try:
            yield not busy or await self._wait_until_idle()
        finally:
            for mode in held:
                mode.go_on()
            self._nothing_is_timed.set()

    async def _prepare_mode(self, name: str) -> None:
        """Prepare job by job until this mode is wanted for none."""
        if name in self._starting:
            await asyncio.shield(self._starting[name])
        while (job := next((job for job in self._offered if self._is_wanted(name, job)), None)) is not None:
            is_retried = (job.job_id, name) in self._crowded_out
            if is_retried or job.n_bytes > self._at_once_bytes(job):
                async with self._large_jobs:
                    while is_retried and any(mode.is_preparing for mode in self._modes.values()):
                        await asyncio.sleep(PROGRESS_S)
                    await self._prepare(name, job)
            else:
                await self._prepare(name, job)

    async def _wait_until_idle(self) -> bool:
        """Wait until the work that held processes have launched is done; return False where it is not done in time.
        Errors recur where eager is timed."""
        with suppress(KernelLspError):
            worker = await self._modes[EAGER].start()
            request = {"device": self.device, "at_most_s": IDLE_DEADLINE_S}
            answer = await worker.ask("wait_until_idle", request, deadline_s=PREPARE_DEADLINES_S[EAGER])
            return not isinstance(answer, dict) or bool(answer.get("is_idle", True))
        return True

    def _at_once_bytes(self, job: Job) -> int:
        eager = self._modes[EAGER].subject(job)
        total_bytes = int(eager.facts.get("total_bytes", 0)) if isinstance(eager, Subject) else 0
        return total_bytes // AT_ONCE_SHARE or AT_ONCE_BYTES

    async def _prepare(self, name: str, job: Job) -> None:
        await self._nothing_is_timed.wait()
        mode, is_first = self._modes[name], (job.job_id, name) not in self._crowded_out
        failed = await mode.prepare(job, may_recur=is_first) if self._is_wanted(name, job) else None
        if failed is None:
            return
        is_out_of_memory = _is_out_of_memory(failed)
        if is_out_of_memory and is_first:
            self._crowded_out.add((job.job_id, name))
            return
        missing = MissingBaseline(name=name, reason=failed.message, is_final=True)
        self._known[job.job_id, name] = missing
        if not (failed.is_gone or is_out_of_memory):  # PyTorch's error is reproducible; what others occupied is not
            self._cache.keep(self._key(job, name), missing)

    def _is_wanted(self, name: str, job: Job) -> bool:
        """Check whether a baseline is not ready and has no time, or is the one to compare with."""
        subject = self._modes[name].subject(job)
        if isinstance(subject, Subject) or subject.is_final:
            return False
        return (job.job_id, name) not in self._known or name == self._best_prepared(job)

    def _is_done_with(self, name: str) -> bool:
        """Check whether the baseline has a time for every job, and another one is clearly faster."""
        return all(
            (job.job_id, name) in self._known
            and all((job.job_id, other) in self._known for other in self._names if other != EAGER)
            and name not in self._near_best(job)
            for job in self._offered
        )

    def _best_prepared(self, job: Job) -> str:
        """Return the fastest of those but eager with a time; empty without any."""
        times = self._compiled_us(job)
        return min(times, key=lambda name: times[name], default="")

    def _near_best(self, job: Job) -> list[str]:
        """Return those but eager whose time is near the fastest one's."""
        times = self._compiled_us(job)
        return [name for name, time_us in times.items() if time_us <= NEAR * min(times.values())]

    def _compiled_us(self, job: Job) -> dict[str, float]:
        return {
            name: known.measurement.time_us
            for name in self._names
            if name != EAGER and isinstance(known := self._known.get((job.job_id, name)), TimedBaseline)
        }

    def _recall(self, job: Job) -> None:
        """Load what earlier sessions measured. The key needs eager's facts."""
        for name in self._names:
            if name != EAGER and (job.job_id, name) not in self._known:
                kept = self._cache.find(self._key(job, name))
                if kept is not None:
                    self._known[job.job_id, name] = kept

    def _key(self, job: Job, name: str) -> BaselineKey:
        eager = self._modes[EAGER].subject(job)
        facts = eager.facts if isinstance(eager, Subject) else {}
        return BaselineKey(
            task_hash=job.task_hash,
            configuration=job.configuration,
            name=name,
            gpu_uuid=str(facts.get("gpu_uuid", "")),
            driver=str(facts.get("driver", "")),
            torch_version=str(facts.get("torch_version", "")),
        )


PROGRESS_S = 0.2
"""Seconds between two checks of a wait for baselines."""


def hash_of(value: Any) -> str:
    """Return the hash of a JSON value."""
    return sha256_of(json.dumps(value, sort_keys=True))


async def _warm_up(worker: TimingWorker, device: int | str) -> None:
    """Time something small in the process. Errors are ignored: they recur where they are reported."""
    request = {"device": device, "method": "graph"}
    with suppress(SubjectFailed):
        await end(await prepare(EAGER, "warm-up", worker, "prepare_probe", request, PREPARE_DEADLINES_S[EAGER]))


def _is_out_of_memory(failed: SubjectFailed) -> bool:
    return OUT_OF_MEMORY in failed.message.lower()


class _Mode:
    """One baseline's process, and its subjects by job."""

    def __init__(self, name: str, mode: str, make_worker: Callable[[], TimingWorker]) -> None:
        self.name, self._mode, self._make_worker = name, mode, make_worker
        self._worker: TimingWorker | None = None
        self._ready: dict[str, Subject] = {}
        self._missing: dict[str, MissingBaseline] = {}
        self.is_preparing = self._is_held = False

    async def start(self) -> TimingWorker:
        if self._worker is None:
            worker = self._make_worker()
            await worker.__aenter__()
            self._worker = worker
            if self._is_held:  # a timing began meanwhile
                worker.hold()
        return self._worker

    async def start_compiler(self, device: int | str) -> None:
        """Start the process and have it import what `torch.compile` needs, which takes longer than most compilations.
        Errors recur where they are reported."""
        self.is_preparing = True
        try:
            worker = await self.start()
            request = {"device": device, "mode": self._mode}
            await worker.ask("prepare_compiler", request, deadline_s=PREPARE_DEADLINES_S[EAGER])
        except KernelLspError:
            await self.close()
        finally:
            self.is_preparing = False

    async def close(self) -> None:
        """End the process; what it had prepared is lost."""
        worker, self._worker = self._worker, None
        self._ready.clear()
        if worker is not None:
            await worker.__aexit__(None, None, None)

    def subject(self, job: Job) -> Subject | MissingBaseline:
        """Return the subject, or why there is none. While the process compiles, or is stopped since it did when a
        timing began, nothing in it can be timed."""
        if job.job_id in self._missing:
            return self._missing[job.job_id]
        if self.is_preparing or self._is_held:
            return MissingBaseline(name=self.name, reason="being compiled", is_final=False)
        waiting = MissingBaseline(name=self.name, reason=NOT_STARTED, is_final=False)
        return self._ready.get(job.job_id, waiting)

    async def prepare(self, job: Job, *, may_recur: bool = False) -> SubjectFailed | None:
        """Prepare once. A failure is returned once, and is final for the job; not too little memory, if it `may_recur`.
        After the loss of a connection it is prepared again."""
        if job.job_id in self._ready or job.job_id in self._missing:
            return None
        self.is_preparing = True
        try:
            self._ready[job.job_id] = await self._prepared(job)
            return None
        except SubjectFailed as failure:
            failed = failure
        finally:
            self.is_preparing = False
        failed.is_disconnected = False
        if may_recur and _is_out_of_memory(failed):
            await self.close()
        else:
            await self.fail(job, failed)
        return failed

    def rearranged(self, job: Job, subject: Subject) -> None:
        self._ready[job.job_id] = subject

    async def fail(self, job: Job, failed: SubjectFailed) -> None:
        """Record that this job has no time. A lost process is replaced for the next job; after the loss of a
        connection, for this one, too."""
        self._ready.pop(job.job_id, None)
        if failed.is_disconnected:
            await self.close()
            return
        self._missing[job.job_id] = MissingBaseline(name=self.name, reason=failed.message, is_final=True)
        if failed.is_gone or "CUDA" in failed.message:
            await self.close()

    def hold(self) -> None:
        self._is_held = True
        if self._worker is not None:
            self._worker.hold()

    def go_on(self) -> None:
        self._is_held = False
        if self._worker is not None:
            self._worker.go_on()

    async def _prepared(self, job: Job) -> Subject:
        for _ in range(MAX_DISCONNECTED - 1):
            try:
                return await self._prepared_once(job)
            except SubjectFailed as failed:
                if not failed.is_disconnected:
                    raise
            await self.close()
        return await self._prepared_once(job)

    async def _prepared_once(self, job: Job) -> Subject:
        try:
            worker = await self.start()
        except KernelLspError as error:
            raise SubjectFailed(self.name, error.message, is_gone=True) from error
        request = {**job.request, "mode": self._mode}
        deadline_s = PREPARE_DEADLINES_S.get(self.name, PEER_DEADLINE_S)
        return await prepare(self.name, f"{job.job_id}-{self.name}", worker, "prepare_baseline", request, deadline_s)
