"""The resources of one command: a worker under the user's interpreter, a compiler, a target GPU for estimates, and a
private scratch folder. Everything ends with the session."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Callable, Sequence, Set
from contextlib import AsyncExitStack, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Protocol

from kernel_lsp.config import Settings
from kernel_lsp.core.plan import LaunchPlan
from kernel_lsp.core.task import TargetSource, Task
from kernel_lsp.errors import EnvironmentProblem, KernelLspError, SettingError
from kernel_lsp.gpu.specs import GpuSpec, find_gpu, has_gpu, known_gpu
from kernel_lsp.process.async_tasks import end_tasks
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.interpreter import site_packages
from kernel_lsp.process.ray_cluster import RayCluster
from kernel_lsp.process.remote import FORK_SERVER, RemoteWorker
from kernel_lsp.process.ssh import Machine
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.toolchain.nvrtc.build_cache import BuildCache
from kernel_lsp.toolchain.nvrtc.compile import Compiler
from kernel_lsp.toolchain.nvrtc.discovery import find_toolchain
from kernel_lsp.verify.cpu.cpu_device import CpuDevice
from kernel_lsp.verify.devices.building import build_ahead
from kernel_lsp.verify.devices.device_names import parse_device
from kernel_lsp.verify.gpu.checks import MeasuringGpu
from kernel_lsp.verify.gpu.gpu_device import GpuDevice
from kernel_lsp.verify.gpu.slot import GpuSlot, SlotWorker
from kernel_lsp.verify.session.pipeline import MAX_SLOTS, MIN_SLOTS, N_SLOTS, Platform
from kernel_lsp.verify.session.several_gpus import GpuProcess, SpreadVerifier, Start
from kernel_lsp.verify.session.start import SessionStart, gpu_number, may_use_gpu
from kernel_lsp.verify.session.verifier import Verifier
from kernel_lsp.verify.timing.baseline_cache import BaselineCache
from kernel_lsp.verify.timing.baselines import N_COMPILED_MODES, Baselines, TimingWorker
from kernel_lsp.verify.timing.operation import OperationTimer

FIRST_CAPTURE_NUMBER = 1 << 16
"""Lowest number of a mutated capture; above every index of a task folder's configuration."""
WARM_DEADLINE_S = 120.0


class Session:
    """The resources of one command. Use as ``async with``. Raises EnvironmentProblem or SettingError when something is
    missing."""

    def __init__(
        self,
        settings: Settings,
        start: SessionStart | None = None,
        *,
        full_wait_s: float = 0.0,
        wait_end: float = inf,
        peers: Sequence[str] = (),
        n_slots: int = N_SLOTS,
        is_one_of_several: bool = False,
    ) -> None:
        """`start` was entered already; `full_wait_s` and `wait_end` are as `MeasuringGpu`'s, `peers` as
        `OperationTimer`'s. `n_slots` candidates are compiled and screened at a time. `is_one_of_several`: other
        processes have the other GPUs of this machine, so that verdicts name this one's index."""
        self.settings, self._full_wait_s, self._peers = settings, full_wait_s, peers
        self._wait_end = wait_end
        self._n_slots, self._is_one_of_several = n_slots, is_one_of_several
        self._stack = AsyncExitStack()
        self._start = start
        self.gpu: GpuSpec
        self._compiler: Compiler
        self._device_name = parse_device(settings.device)
        self._gpus: list[SessionGpu] = []
        """The GPUs of the session; the first opens with it, others when it is known how many there are."""
        self._cluster: RayCluster | None = None
        self._folder_numbers = itertools.count()
        self._capture_numbers = itertools.count(FIRST_CAPTURE_NUMBER)
        self._cpus: dict[bool, CpuDevice] = {}
        """Warm executors of verifiers with and without a GPU, which may be asked at the same time."""

    async def __aenter__(self) -> Session:
        async with AsyncExitStack() as stack:
            self.gpu = find_gpu(self.settings.target_gpu)
            if self._start is None:
                n_compiled_modes = N_COMPILED_MODES if self._full_wait_s > 0 else 0
                start = SessionStart(self.settings, n_compiled_modes=n_compiled_modes)
                self._start = await stack.enter_async_context(start)
            self._start.check()
            toolchain = find_toolchain(
                self.settings.cuda_directory, user_site_packages=site_packages(self.worker.python)
            )
            cache = BuildCache(self.settings.cache_directory)
            self._compiler = await stack.enter_async_context(
                Compiler(
                    toolchain,
                    cache=cache,
                    n_processes=self._n_slots,
                    deadline_s=self.settings.compile_deadline_s,
                    sandbox=self.sandbox,
                )
            )
            if self._device_name.ray is not None:
                if not self._device_name.ray.address and not has_gpu():
                    step = "use --device cpu, or name a cluster: --device ray://HOST:10001"
                    raise EnvironmentProblem("this machine has no GPU for a Ray of our own", next_step=step)
                self._cluster = await stack.enter_async_context(RayCluster(self._device_name.ray))
            stack.push_async_callback(self._close_gpus)
            if self.is_remote or may_use_gpu(self.settings):
                self._start_gpu(gpu_number(self.settings))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._started.kill()
        await self._stack.aclose()

    @property
    def _started(self) -> SessionStart:
        assert self._start is not None, "the session was not entered"
        return self._start

    @property
    def worker(self) -> Worker:
        """Return the worker that captures."""
        return self._started.worker

    @property
    def scratch(self) -> Path:
        """Return the session's folder, which its workers may write to."""
        return self._started.scratch

    @property
    def include_directories(self) -> tuple[Path, ...]:
        """Return the folders of the headers that kernels are compiled with."""
        return self._compiler.toolchain.include_directories

    @property
    def sandbox(self) -> SandboxLevel:
        """Return the confinement of this session's processes."""
        return self._started.sandbox

    def new_worker(self, python: Path) -> Worker:
        """Return an unstarted worker with the deadline, folders and confinement of this session."""
        return self._started.new_worker(python)

    def new_folder(self, name: str) -> Path:
        """Return an empty folder that is removed with the session."""
        folder = self.scratch / f"{name}-{next(self._folder_numbers)}"
        folder.mkdir(parents=True)
        return folder

    async def gpu_index(self) -> int | None:
        """Return the GPU that the settings select; None to use the executor alone. Raises SettingError when it is
        missing.

        Does not wait for a GPU to open: `verifier` does. Measurements are of that GPU; the target GPU of estimates
        stays that of the settings.
        """
        kind = self._device_name.kind
        if kind == "cpu" or (kind == "auto" and not self._gpus):
            return None
        if not self._gpus:
            raise await self._no_gpu()
        return self._gpus[0].index

    @property
    def is_remote(self) -> bool:
        """Check whether candidates run on another machine: host code runs on this one alone."""
        return self._device_name.is_remote

    async def capture(self, source: TargetSource, *, with_backward: bool, for_device: bool = False) -> Task:
        """Return the target as a task. `for_device`: give up as soon as another machine is known to be out of reach,
        since a network's capture takes minutes. Raises TargetError, EnvironmentProblem."""
        capturing = asyncio.ensure_future(self.worker.capture(source, with_backward=with_backward))
        if not (for_device and self.is_remote):
            return await capturing
        opening = asyncio.ensure_future(self.gpu_device())
        try:
            await asyncio.wait([capturing, opening], return_when=asyncio.FIRST_COMPLETED)
            if not capturing.done():
                await opening
            return await capturing
        finally:
            await end_tasks(capturing, opening)

    def begin(self, text: str, plan: LaunchPlan) -> None:
        """Begin to build a kernel and to load it into an executor, while its task is captured. The next `verifier`
        reuses both."""
        self._cpu(uses_gpu=True).executors.start_with(
            lambda: build_ahead(self._compiler, text, plan, self.gpu, None),
            lambda: self._build_for_device(text, plan),
        )

    async def verifier(self, source: TargetSource, task: Task, *, uses_gpu: bool = True) -> Verifier:
        """Return the verifier of the last captured task, from `source`; it ends with the session. Without `uses_gpu`
        candidates run on the PTX executor alone. From then on `gpu` is the remote GPU, where there is one that we know
        and the settings name no target."""
        devices = await self._gpu_devices() if uses_gpu and await self.gpu_index() is not None else []
        if devices and self.is_remote:
            self.gpu = gpu_of_estimates(self.settings, devices[0].facts.name)
        measured_on = [await self._measuring_gpu(task, device) for device in devices]
        platform = Platform(
            worker=self.worker,
            compiler=self._compiler,
            gpu=self.gpu,
            directory=self.new_folder("cases"),
            cpu=self._cpu(uses_gpu=uses_gpu),
            seed=self.settings.seed,
            capture_numbers=self._capture_numbers,
        )
        others = await self._gpu_processes(source, task, devices[0]) if devices else []
        verifier = (
            SpreadVerifier(source, task, platform, measured_on, others)
            if others
            else Verifier(source, task, platform, measured_on)
        )
        return await self._stack.enter_async_context(verifier)

    async def gpu_device(self) -> GpuDevice | None:
        """Return the session's GPU, once it is open. None when the settings leave the choice open and torch cannot use
        it.

        Raises SettingError when it was asked for.
        """
        if not self._gpus:
            return None
        try:
            return await self._gpus[0].device()
        except EnvironmentProblem:
            if self._device_name.kind == "auto":
                return None
            if self.is_remote:
                raise
            raise await self._no_gpu() from None

    def new_remote_worker(self) -> RemoteWorker | None:
        """Return an unstarted worker beside the session's GPU; None where that is this machine's."""
        worker = self._gpus[0].new_worker() if self._gpus else None
        return worker if isinstance(worker, RemoteWorker) else None

    async def timer(self, task: Task, device: GpuDevice) -> OperationTimer:
        """Return the timer of this task's candidates on the session's GPU; it ends with the session."""
        baselines = Baselines(
            next(gpu for gpu in self._gpus if gpu.has(device)).timing_worker,
            BaselineCache(self.settings.cache_directory),
            device=device.index,
            peers=self._peers,
            starts_ahead=self._full_wait_s > 0,
        )
        patience_s, seed = self.settings.baseline_wait_s, self.settings.seed
        timer = OperationTimer(task, baselines, patience_s=patience_s, seed=seed)
        return await self._stack.enter_async_context(timer)

    def _cpu(self, *, uses_gpu: bool) -> CpuDevice:
        """Return the executors, which tasks use one after another: they keep nothing of a task."""
        if uses_gpu not in self._cpus:
            folder = self.new_folder("evaluate")
            cpu = CpuDevice(self.worker, folder, self._n_slots, sandbox=self.sandbox, is_beside_gpu=uses_gpu)
            self._stack.push_async_callback(cpu.close)
            self._cpus[uses_gpu] = cpu
        return self._cpus[uses_gpu]

    async def _build_for_device(self, text: str, plan: LaunchPlan) -> str | None:
        """Build for the session's GPU. It opens later than a compiler, but mostly has the target GPU's architecture:
        the same build."""
        return await build_ahead(self._compiler, text, plan, self.gpu, await self.gpu_device())

    async def _measuring_gpu(self, task: Task, device: GpuDevice) -> MeasuringGpu:
        wait_s = max(self.settings.baseline_wait_s, self._full_wait_s)
        return MeasuringGpu(device, await self.timer(task, device), wait_s, self._wait_end)

    async def _no_gpu(self) -> SettingError:
        seen, device = await self.worker.describe(), self.settings.device
        return SettingError(
            f"device '{device}' was asked for, and torch in {self.worker.python} sees "
            + (f"{len(seen.devices)} GPUs" if seen.has_cuda else "no GPU"),
            next_step="use --device cpu, or name an interpreter whose torch sees it with --python",
        )

    async def _gpu_devices(self) -> list[GpuDevice]:
        """Return the GPUs whose candidates this process evaluates, once they are open: one, or the slots of a cluster.
        Raises SettingError for GPUs of several kinds."""
        first = await self.gpu_device()
        if first is None or self._cluster is None:
            return [] if first is None else [first]
        for index in range(len(self._gpus), self._cluster.address.n_slots or self._cluster.n_gpus):
            self._start_gpu(index)
        devices = [first, *await self._those_that_open(self._gpus[1:])]
        self._refuse_several_kinds({device.facts.name for device in devices})
        return devices

    async def _gpu_processes(self, source: TargetSource, task: Task, first: GpuDevice) -> list[GpuProcess]:
        """Return the processes of the other GPUs of this machine, where all are asked for. Raises SettingError for GPUs
        of several kinds."""
        if self._device_name.index is not None or self._cluster is not None or first.facts.n_devices < 2:
            return []
        self._refuse_several_kinds({*(await self.worker.describe()).devices})
        n_slots = max(MIN_SLOTS, min(MAX_SLOTS, (os.cpu_count() or 1) // (2 * first.facts.n_devices)))
        starts = (
            Start(
                settings=self.settings.model_copy(update={"device": f"cuda:{index}", "python": self.worker.python}),
                source=source,
                with_backward=task.backward is not None,
                full_wait_s=self._full_wait_s,
                peers=tuple(self._peers),
                n_slots=n_slots,
            )
            for index in range(1, first.facts.n_devices)
        )
        return [GpuProcess(start) for start in starts]

    def _refuse_several_kinds(self, kinds: Set[str]) -> None:
        """Raise SettingError for GPUs of several kinds, whose times order no candidates."""
        if len(kinds) > 1:
            raise SettingError(
                f"{self.settings.device} needs GPUs of one kind: {', '.join(sorted(kinds))}",
                next_step="name one: cuda:N, ray://HOST:PORT?type=H100",
            )

    async def _those_that_open(self, gpus: Sequence[SessionGpu]) -> list[GpuDevice]:
        """Return the GPUs of a cluster that open in time: others may use the rest."""
        opened = await asyncio.gather(*(gpu.device() for gpu in gpus), return_exceptions=True)
        for problem in opened:
            if isinstance(problem, BaseException) and not isinstance(problem, EnvironmentProblem):
                raise problem
        return [device for device in opened if isinstance(device, GpuDevice)]

    def _start_gpu(self, index: int) -> None:
        make_worker: Callable[[], GpuWorker] = partial(self.new_worker, self.worker.python)
        make_candidate_worker: Callable[[], GpuWorker] | None = None
        place, seen_index = "", index
        if (remote := self._device_name.remote) is not None:
            machine = Machine(remote.host, user=remote.user, port=remote.port, python=remote.python)
            make_worker, place = partial(RemoteWorker, machine), f"on {remote.destination}"
        elif self._cluster is not None:
            there, seen_index = self._cluster.slot(index), 0
            make_worker, make_candidate_worker = partial(RemoteWorker, there), partial(RemoteWorker, there, FORK_SERVER)
            place = f"({there.name})"
        elif self._device_name.index is None or self._is_one_of_several:
            place = f"(cuda:{index})"
        slot = GpuSlot(
            make_candidate_worker or make_worker,
            seen_index,
            self.scratch / f"gpu-{index}",
            self._compiler,
            renews=make_candidate_worker is not None,
            place=place,
            is_local=not self.is_remote,
        )
        self._gpus.append(SessionGpu(slot, make_worker, self._started.compilers))

    async def _close_gpus(self) -> None:
        await asyncio.gather(*(gpu.close() for gpu in self._gpus))


def gpu_of_estimates(settings: Settings, device: str) -> GpuSpec:
    """Return the remote GPU called `device`, where we know it and the settings name no target; else the settings'
    target. Raises SettingError for a target that is not known."""
    is_open = "target_gpu" not in settings.model_fields_set
    return (known_gpu(device) if is_open else None) or find_gpu(settings.target_gpu)


class GpuWorker(SlotWorker, TimingWorker, Protocol):
    """A worker for candidates and for PyTorch's times: a `Worker`, or a `RemoteWorker`."""


class SessionGpu:
    """One GPU, the worker that candidates run in, and a spare worker for PyTorch's own times."""

    def __init__(
        self,
        slot: GpuSlot,
        make_worker: Callable[[], GpuWorker],
        started: deque[Worker],
    ) -> None:
        """`make_worker` returns workers that are not started. Those of `started` run here already: timing takes them
        first. Call from within a running event loop."""
        self._make_worker, self._started = make_worker, started
        self._device = GpuDevice(slot)
        self._opening = asyncio.create_task(self._open())
        self._spare: GpuWorker | None = make_worker()
        self._warming = asyncio.create_task(self._warm(self._spare))

    @property
    def index(self) -> int:
        """Return its index among the GPUs that torch sees."""
        return self._device.index

    async def device(self) -> GpuDevice:
        """Return the GPU, once it is open. Raises EnvironmentProblem when torch does not see it."""
        return await asyncio.shield(self._opening)

    def has(self, device: GpuDevice) -> bool:
        """Check whether this is the device's GPU."""
        return self._device is device

    def timing_worker(self) -> GpuWorker:
        """Return a worker that never held a candidate: the spare one first, then those that were started."""
        spare, self._spare = self._spare, None
        if spare is not None:
            return spare
        return self._started.popleft() if self._started else self._make_worker()

    def new_worker(self) -> GpuWorker:
        """Return an unstarted worker for this GPU."""
        return self._make_worker()

    async def close(self) -> None:
        """Close the unused workers."""
        # Their errors were reported to the callers that asked for the GPU.
        await end_tasks(self._opening, self._warming)
        await self._device.__aexit__(None, None, None)
        if self._spare is not None:
            await self._spare.__aexit__(None, None, None)

    async def _open(self) -> GpuDevice:
        device = await self._device.__aenter__()
        with suppress(KernelLspError):  # it is built again when needed, and reports its error then
            await device.slot.prepare_canary()
        return device

    async def _warm(self, worker: GpuWorker) -> None:
        with suppress(KernelLspError):  # without it the worker starts as slowly as a new one
            await worker.__aenter__()
            await worker.converse("open_device", {"device": self.index}, deadline_s=WARM_DEADLINE_S)
