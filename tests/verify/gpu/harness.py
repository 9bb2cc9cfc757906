"""A GPU device over workers whose GPU is made of Python, and candidates whose kernels' names say what they do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.verdict import Built
from kernel_lsp.plan.binding import bind
from kernel_lsp.plan.parser import parse_or_raise
from kernel_lsp.process.case_files import CaseFiles, CaseTensor, Rounding, Slices
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.source.cuda import kernel_signatures
from kernel_lsp.toolchain.nvrtc.compile import BuildRequest
from kernel_lsp.verify.devices.device import DeviceCase, KernelBuild
from kernel_lsp.verify.gpu.gpu_device import GpuDevice
from kernel_lsp.verify.gpu.gpu_kernel import GpuFailure, GpuJob, GpuReport
from kernel_lsp.verify.gpu.slot import GpuSlot, SlotWorker
from kernel_lsp.verify.model.cases import Case, StageTimes
from kernel_lsp.verify.oracle.compare import Expectation
from kernel_lsp.verify.timing.result import NotTimed, TimedOperation
from kernel_lsp.verify.timing.rounds import Asker

HERE = Path(__file__).resolve().parent
FAKE, SICK, TWO = HERE / "fake_worker.py", HERE / "sick_worker.py", HERE / "two_gpus_worker.py"
LIGHT = HERE / "light_worker.py"
LARGE, SMALL = 1 << 16, 1000
TEXT = """// kernel-lsp: 1
// op: affine(x: f32[N]) -> (out: f32[N])
// launch: {name}<<<ceil_div(N, 256), 256>>>(x, out, N)

__global__ void {name}(const float* x, float* out, int N) {{}}
"""


class StubCompiler:
    """Gives every name the symbol that a compiler would."""

    async def compile(self, request: BuildRequest) -> Built:
        return built(*request.name_expressions)


class NoClock:
    """Times nothing."""

    async def wait_for_baselines(self, operation: TimedOperation, *, at_least_s: float = 0.0) -> None:
        """Nothing to wait for."""

    async def has_baselines(self, operation: TimedOperation, *, at_least_s: float = 0.0) -> bool:
        return True

    async def offer(self, operation: TimedOperation) -> None:
        pass

    async def time_operation(self, worker: Asker, operation: TimedOperation) -> NotTimed:
        return NotTimed("no clock here")


def built(*names: str) -> Built:
    return Built(architecture="sm_90", ptx="//", symbols={name: f"_Z{len(name)}{name}PKfPfi" for name in names})


def build(name: str) -> KernelBuild:
    return KernelBuild(name, built(name))


def worker(program: Path = FAKE) -> Worker:
    return Worker(Path(sys.executable), sandbox=SandboxLevel.NONE, program=program)


@asynccontextmanager
async def gpu(folder: Path, make_worker: Callable[[], SlotWorker] = worker) -> AsyncIterator[GpuDevice]:
    """A device with lock files of its own."""
    compiler: Any = StubCompiler()
    slot = GpuSlot(make_worker, 0, folder / "gpu", compiler)
    async with GpuDevice(slot, lock_directory=folder) as device:
        yield device


async def run(
    device: GpuDevice,
    folder: Path,
    name: str,
    sizes: Sequence[int] = (LARGE, SMALL),
    *,
    may_vary: bool = False,
    coming: Sequence[asyncio.Task[DeviceCase | None]] = (),
    slices: Slices | None = None,
) -> GpuReport | GpuFailure:
    """Return the verdict of a candidate whose kernel has that name."""
    cases = [case(folder, name, n, slices) for n in sizes]
    job = GpuJob(
        build=build(name),
        cases=cases,
        timed=cases[:1],
        timer=NoClock(),
        may_vary=may_vary,
        rechecks=True,
        seed=0,
        coming=coming,
    )
    return await device.evaluate(job, StageTimes())


def case(folder: Path, name: str, n: int, slices: Slices | None = None) -> DeviceCase:
    """2 x + 1 for n elements, compared at some of them alone where there are slices."""
    text = TEXT.format(name=name)
    bound = bind(parse_or_raise(text, "kernel.cu").forward, {"x": (n,)}, {}, kernel_signatures(text))
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    path = folder / f"x-{n}.bin"
    x.tofile(path)
    reference = 2 * x.astype(np.float64) + 1
    native = (2 * x + 1).astype(np.float64)
    if slices is not None:
        at = np.concatenate([np.arange(start, end) for start, end in slices.ranges])
        reference, native = reference[at], native[at]
    rounding = Rounding(
        n_finite=len(reference),
        reference_l2=float(np.linalg.norm(reference)),
        native_l2=float(np.linalg.norm(native - reference)),
        native_max=float(np.abs(native - reference).max()),
        response_l2=0.0,
        response_max=0.0,
    )
    files = CaseFiles(
        family="normal",
        seed=0,
        inputs=(CaseTensor("x", path, DType.F32, (n,)),),
        slices=slices,
    )
    expectation = Expectation("out", DType.F32, reference, None, rounding, slices=slices)
    what = Case("forward", (("N", n),), "normal", 0, "forward", is_captured=n == LARGE)
    return DeviceCase(what, bound, files, (expectation,))
