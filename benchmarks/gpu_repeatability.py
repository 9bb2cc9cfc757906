"""The same kernel against itself, again and again: how often is a difference claimed, and how far do its times spread?

    python benchmarks/gpu_repeatability.py [--repeats 20] [--out FOLDER] [--device 0]

Each repeat prepares the kernel anew in two processes, with buffers of their own, and times them in turn as a candidate
and its baseline are timed. The result is one JSON file (by default under ``benchmarks/results``); the exit status is 1
when a kernel was claimed faster or slower than itself more than once, or when medians of a kernel over 20 us spread by
more than 2 %.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundLaunch, BoundOperation, BoundTensor, ScalarArgument, TensorArgument
from kernel_lsp.process.confinement import sandbox_level
from kernel_lsp.process.interpreter import find_python
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.verify.timing.operation import AGAIN, OURS, PREPARE_DEADLINE_S, TimingNoise
from kernel_lsp.verify.timing.result import measurement, ratio
from kernel_lsp.verify.timing.rounds import (
    Round,
    Subject,
    TimingPlan,
    aligned,
    end,
    measure_in_turn,
    prepare,
)

RESULTS = Path(__file__).resolve().parent / "results"
LOAD_DEADLINE_S = 120.0
THEIRS = "the same in another process"
MAX_CLAIMS = 1
MAX_SPREAD, SPREAD_FROM_US = 0.02, 20.0
KERNELS = """\
extern "C" __global__ void scale(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 2.0f * x[i] + 1.0f;
}
extern "C" __global__ void row_sums(const float* x, float* out, int n) {
    __shared__ float partial[256];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += 256) sum += x[(size_t)blockIdx.x * n + i];
    partial[threadIdx.x] = sum;
    for (int step = 128; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
    }
    if (threadIdx.x == 0) out[blockIdx.x] = partial[0];
}
extern "C" __global__ void transpose(const float* x, float* out, int n) {
    int column = blockIdx.x * 32 + threadIdx.x, row = blockIdx.y * 8 + threadIdx.y;
    out[(size_t)column * n + row] = x[(size_t)row * n + column];
}
extern "C" __global__ void polynomial(const float* x, float* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = x[i], sum = 0.0f;
    for (int step = 0; step < 2000; ++step) sum = sum * value + 0.5f;
    out[i] = sum;
}
"""


@dataclass(frozen=True)
class Kernel:
    """One kernel at one size; `x` and `out` are f32."""

    name: str
    function: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    n: int
    x_shape: tuple[int, ...]
    out_shape: tuple[int, ...]

    @property
    def operation(self) -> BoundOperation:
        arguments = (
            TensorArgument(tensor="x"),
            TensorArgument(tensor="out"),
            ScalarArgument(cuda_type="int", value=self.n),
        )
        launch = BoundLaunch(
            kernel=self.function, grid=self.grid, block=self.block, shared_bytes=0, arguments=arguments
        )
        tensors = (
            BoundTensor(name="x", dtype=DType.F32, shape=self.x_shape, role="input"),
            BoundTensor(name="out", dtype=DType.F32, shape=self.out_shape, role="output"),
        )
        return BoundOperation(name=self.function, dims={}, tensors=tensors, steps=(launch,))


def scale(n: int) -> Kernel:
    return Kernel(f"scale {n >> 20} Mi", "scale", (n // 256, 1, 1), (256, 1, 1), n, (n,), (n,))


ALL = (
    scale(1 << 20),
    Kernel("row sums 4096 x 2048", "row_sums", (4096, 1, 1), (256, 1, 1), 2048, (4096, 2048), (4096,)),
    scale(8 << 20),
    Kernel("transpose 4096", "transpose", (128, 512, 1), (32, 8, 1), 4096, (4096, 4096), (4096, 4096)),
    scale(64 << 20),
    Kernel("polynomial 8 Mi", "polynomial", (32768, 1, 1), (256, 1, 1), 8 << 20, (8 << 20,), (8 << 20,)),
)


@dataclass(frozen=True)
class Repeat:
    """One timing of a kernel beside itself."""

    claim: str
    ratio: float
    low: float
    high: float
    noise_floor: float
    ours_us: float
    theirs_us: float
    warm_us: float
    operator_us: float
    elapsed_s: float
    prepare_s: float
    rounds: list[dict[str, Any]] = field(default_factory=list)
    """With ``--keep-rounds``: for each subject of a round its two blocks, each with the cold samples and their sets of
    buffers, so that another decision can be tried on the same samples."""


@dataclass
class Report:
    """All repeats of one kernel."""

    kernel: str
    repeats: list[Repeat] = field(default_factory=list)

    @property
    def n_claims(self) -> int:
        return sum(repeat.claim != "no difference" for repeat in self.repeats)

    @property
    def median_us(self) -> float:
        return statistics.median(repeat.ours_us for repeat in self.repeats)

    @property
    def spread(self) -> float:
        """The largest distance of a median from the median of all, relative."""
        return max(abs(repeat.ours_us / self.median_us - 1) for repeat in self.repeats)

    @property
    def is_good(self) -> bool:
        return self.n_claims <= MAX_CLAIMS and (self.median_us < SPREAD_FROM_US or self.spread <= MAX_SPREAD)


def main() -> int:
    arguments = parse_arguments()
    reports = asyncio.run(run(arguments))
    return 0 if all(report.is_good for report in reports) else 1


async def run(arguments: argparse.Namespace) -> list[Report]:
    """Every kernel's report; what is known is written after each."""
    python = await find_python(None)
    folder = Path(tempfile.mkdtemp(prefix="repeatability-"))
    try:
        level = sandbox_level(arguments.sandbox)
        async with Worker(python, sandbox=level) as mine, Worker(python, sandbox=level) as other:
            noise = TimingNoise(arguments.device, seed=0)
            facts: dict[str, Any] = {}
            reports: list[Report] = []
            for kernel in ALL:
                workers = (mine, other)
                reports.append(await repeat(kernel, workers, arguments, folder, noise, facts))
                write(arguments, reports, facts)
                print(line_of(reports[-1]), flush=True)
        return reports
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def repeat(
    kernel: Kernel,
    workers: tuple[Worker, Worker],
    arguments: argparse.Namespace,
    folder: Path,
    noise: TimingNoise,
    facts: dict[str, Any],
) -> Report:
    x = folder / f"{kernel.name}.bin"
    np.random.default_rng(0).standard_normal(kernel.x_shape, dtype=np.float32).tofile(x)
    for worker in workers:
        request = {"candidate": kernel.name, "device": arguments.device, "kernels": [kernel.function], "text": KERNELS}
        loaded = await worker.ask("load", {**request, "file_name": "kernels.cu"}, deadline_s=LOAD_DEADLINE_S)
        assert loaded["loaded"], loaded["log"]
    report = Report(kernel.name)
    for number in range(arguments.repeats):
        found = await time_once(kernel, workers, x, number, noise, facts)
        report.repeats.append(found if arguments.keep_rounds else replace(found, rounds=[]))
    x.unlink()
    return report


async def time_once(
    kernel: Kernel,
    workers: tuple[Worker, Worker],
    x: Path,
    number: int,
    noise: TimingNoise,
    facts: dict[str, Any],
) -> Repeat:
    started = time.monotonic()
    ours = await subject(OURS, kernel, workers[0], x)
    again = [await subject(AGAIN, kernel, workers[0], x, ours.n_calls)] if noise.needs_self_pair(ours) else []
    theirs = await aligned(await subject(THEIRS, kernel, workers[1], x), ours)
    prepared = time.monotonic()
    rounds = await measure_in_turn([ours, *again], [theirs], TimingPlan(), seed=number)
    for each in again:
        noise.add_self_pair(ours, each, rounds)
    found = ratio(ours, theirs, rounds, await noise.between(ours, theirs), number)
    mine, other = (measurement(each, rounds, kernel.operation, number) for each in (ours, theirs))
    for each in (ours, *again, theirs):
        seen = await end(each)
        assert seen["n_unequal"] == 0, seen
    facts.update({name: getattr(mine, name) for name in ("gpu", "gpu_uuid", "driver", "torch_version", "date")})
    facts.setdefault("clocks", {})[kernel.name] = mine.clocks.model_dump(mode="json")
    return Repeat(
        claim=found.claim,
        ratio=found.value,
        low=found.low,
        high=found.high,
        noise_floor=found.noise_floor,
        ours_us=mine.time_us,
        theirs_us=other.time_us,
        warm_us=mine.warm_us or 0.0,
        operator_us=mine.operator_us or 0.0,
        elapsed_s=time.monotonic() - started,
        prepare_s=prepared - started,
        rounds=[samples_of(each) for each in rounds.kept],
    )


def samples_of(measured: Round) -> dict[str, Any]:
    """Return the cold samples of a round by subject and block, in nanoseconds, and their sets of buffers."""
    return {
        name: [{"ns": [round(1e3 * us) for us in block.cold_us], "places": block.places} for block in blocks]
        for name, blocks in measured.blocks.items()
    }


async def subject(name: str, kernel: Kernel, worker: Worker, x: Path, n_calls: int = 0) -> Subject:
    entry = {"name": "x", "path": str(x), "dtype": "f32", "shape": list(kernel.x_shape)}
    request = {
        "candidate": kernel.name,
        "operation": kernel.operation.model_dump(mode="json"),
        "inputs": [entry],
        "n_calls": n_calls,
    }
    return await prepare(name, name, worker, "prepare_candidate", request, PREPARE_DEADLINE_S)


# --- below: reporting


def line_of(report: Report) -> str:
    repeats = report.repeats
    claims = ", ".join(f"{n} {claim}" for claim, n in Counter(repeat.claim for repeat in repeats).items())
    floors = [repeat.noise_floor for repeat in repeats]
    seconds = [repeat.elapsed_s for repeat in repeats]
    return (
        f"{report.kernel:<22} {report.median_us:>8.2f} us  spread {report.spread:6.2%}  "
        f"ratio {min(r.ratio for r in repeats):.4f} to {max(r.ratio for r in repeats):.4f}  "
        f"floor {min(floors):.2%} to {max(floors):.2%}  {claims}; "
        f"{statistics.median(seconds):.2f} s each, at most {max(seconds):.2f}, "
        f"{statistics.median(r.prepare_s for r in repeats):.2f} s of it to prepare"
    )


def write(arguments: argparse.Namespace, reports: list[Report], facts: dict[str, Any]) -> None:
    folder, indent = arguments.out, None if arguments.keep_rounds else 1
    folder.mkdir(parents=True, exist_ok=True)
    gpu = str(facts["gpu"]).lower().replace(" ", "_")
    path = folder / f"gpu_repeatability-{gpu}-{facts['date']}.json"
    summaries = [
        {"kernel": r.kernel, "n_claims": r.n_claims, "median_us": r.median_us, "spread": r.spread, "is_good": r.is_good}
        for r in reports
    ]
    content = {**facts, "summary": summaries, "reports": [asdict(report) for report in reports]}
    path.write_text(json.dumps(content, indent=indent) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--device", type=int, default=0)
    parser.add_argument("--keep-rounds", action="store_true", help="write every sample, too")
    parser.add_argument("--sandbox", default="auto", help="how the workers are confined, as the setting says")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
