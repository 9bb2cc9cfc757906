"""A run of candidates of which half do something terrible: is any verdict lost, given twice, or wrong afterwards?

    python3 benchmarks/gpu_faults.py [--n 200] [--n-faults 100] [--depth full|screen] [--seed 0] [--device cuda]
                                     [--out FOLDER]

Candidates are evaluated as in a search, several under way at once. Faults, at random places: illegal address, loop
without end, device assert, more memory than there is, a worker killed from outside (SIGKILL), a compiler that does not
come to an end, ten megabytes of compiler output, a full scratch disk (where a small file system can be mounted). Every
right candidate must come out right; each fault must come out as what it is, or as what cannot be told, and never as
right. Kernels misbehave in one block at the captured size alone, so that the executor's screen lets them pass.
Candidates get full verdicts, times included. What is known is written every ten seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_facts import gpu_facts

from kernel_lsp.config import load_settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.session.session import Session

ROOT = Path(__file__).resolve().parent.parent
TASK = """import torch


# kernel-lsp: x=f32[512, 2048]
def affine(x: torch.Tensor) -> torch.Tensor:
    return x * 2.0 + 1.0
"""
TEXT = """// kernel-lsp: 1
// op: affine(x: f32[B, D]) -> (out: f32[B, D])
{scratch}// launch: affine_rows<{block}><<<B, {block}>>>(x, out, {scratch_argument}D)

#include <cassert>
{before}
// Candidate {number}: one block per row.
template <int BLOCK>
__global__ void affine_rows(const float* __restrict__ x, float* __restrict__ out, {scratch_parameter}int D) {{
    long row = static_cast<long>(blockIdx.x) * D;
    bool is_fault = blockIdx.x == 300 && D == 2048;
    {fault}
    for (int i = threadIdx.x; i < D; i += BLOCK) out[row + i] = x[row + i] * 2.0f + 1.0f;
}}
"""
FAULTS = {
    "illegal address": "if (is_fault) *reinterpret_cast<volatile int*>(16) = 1;",
    "endless loop": "while (is_fault && *const_cast<const volatile float*>(x) != 12345.0f) {}",
    "device assert": "assert(!is_fault);",
}
SCRATCH = "f32[1 + min(D // 2048, 1) * 200000000]"
"""800 MB at the captured size, when another process has taken nearly all of the device's memory."""
LEFT_BYTES = 128 << 20
HOG = f"""
import sys, torch
kept = None
for line in sys.stdin:
    if line.strip() == "take":
        kept = torch.empty(torch.cuda.mem_get_info()[0] - {LEFT_BYTES}, dtype=torch.uint8, device="cuda")
    else:
        kept = None
        torch.cuda.empty_cache()
    print("done", flush=True)
"""
COMPILER_HANG = """
template <int N, int M> struct Slow {
    static constexpr long value = Slow<N - 1, M>::value + Slow<N - 1, M + (1 << N)>::value;
};
template <int M> struct Slow<0, M> { static constexpr long value = M; };
static_assert(Slow<28, 1>::value != 0, "two to the 28th templates");
"""
LONG_OUTPUT = '#warning "' + 480 * "w" + '"\n'
N_WARNINGS = 7000
"""Each is told in three lines: over ten megabytes."""
COMPILE_DEADLINE_S = 8.0
KILLED, DISK, MEMORY = "worker killed", "full disk", "out of memory"
HANG, OUTPUT = "compiler hang", "long compiler output"
ALONE = (DISK, MEMORY)
"""They change what the whole machine has."""
RIGHT = "right"
EXPECTED = {
    RIGHT: {"correct"},
    "illegal address": {"crashed"},
    "endless loop": {"timed_out"},
    "device assert": {"crashed"},
    MEMORY: {"crashed"},
    KILLED: {"correct"},
    HANG: {"timed_out", "build_failed"},
    OUTPUT: {"correct"},
    DISK: {"unsupported"},
}
DISK_BYTES = 512 << 20
WRITE_EVERY_S = 10.0


@dataclass(frozen=True)
class Planned:
    """A candidate and what it does."""

    candidate: Candidate
    kind: str


class Hog:
    """A process that takes the device's memory, and gives it back."""

    def __init__(self, python: Path) -> None:
        self._command = [str(python), "-c", HOG]

    def __enter__(self) -> Hog:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Hardly any memory is left inside."""
        self._say("take")
        try:
            yield
        finally:
            self._say("give")

    def _say(self, word: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        self._process.stdout.readline()


def main() -> int:
    options = _options()
    with _small_disk() as disk:
        kinds = [*FAULTS, MEMORY, KILLED, HANG, OUTPUT, *([DISK] if disk is not None else [])]
        planned = plan_run(options.n, options.n_faults, kinds, options.seed)
        report = asyncio.run(Run(planned, options, disk).run())
    print(json.dumps({key: value for key, value in report.items() if key != "verdicts"}))
    return 0 if report["is_survived"] else 1


def plan_run(n: int, n_faults: int, kinds: list[str], seed: int) -> list[Planned]:
    """`n` candidates of different texts, `n_faults` of them faulty, each kind about equally often, in random order."""
    draw = random.Random(seed)
    chosen = [kinds[i % len(kinds)] for i in range(n_faults)] + [RIGHT] * (n - n_faults)
    draw.shuffle(chosen)
    return [Planned(_candidate(number, kind), kind) for number, kind in enumerate(chosen)]


class Run:
    """All candidates in one session, with what has to be done from outside done while they are under way."""

    def __init__(self, planned: list[Planned], options: argparse.Namespace, disk: Path | None) -> None:
        self._planned, self._options, self._disk = planned, options, disk
        self._verdicts: list[tuple[int, Verdict]] = []
        self._written = self._started = time.monotonic()
        self._alone = asyncio.Lock()

    async def run(self) -> dict[str, Any]:
        """The report on all."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "task.py").write_text(TASK)
            overrides = {
                "device": self._options.device,
                "cache_directory": Path(folder) / "cache",
                "compile_deadline_s": COMPILE_DEADLINE_S,
            }
            async with Session(load_settings(ROOT, overrides)) as session:
                self._session = session
                source = read_target("task.py::affine", Path(folder))
                task = await session.capture(source, with_backward=False)
                self._verifier = await session.verifier(source, task)
                self._facts = await gpu_facts(session)
                self._started = time.monotonic()
                with Hog(session.worker.python) as hog:
                    await self._evaluate_all(hog)
                return self._write()

    async def _evaluate_all(self, hog: Hog) -> None:
        """Each with its place in the plan, as they come. What needs the whole machine's state (a full disk) is
        alone."""
        slots = asyncio.Semaphore(self._verifier.n_slots)
        pending: list[asyncio.Task[None]] = []
        for position, each in enumerate(self._planned):
            if each.kind in ALONE:
                await asyncio.gather(*pending)
                pending = []
                with _filled(self._disk) if each.kind == DISK and self._disk is not None else hog.holding():
                    verdict = await self._evaluate(each.candidate)
                self._keep(position, verdict)
            else:
                pending.append(asyncio.create_task(self._one(slots, position, each)))
        await asyncio.gather(*pending)

    async def _one(self, slots: asyncio.Semaphore, position: int, each: Planned) -> None:
        async with slots:
            if each.kind == KILLED:
                async with self._alone:
                    verdict = await self._evaluate_and_kill(each.candidate)
            else:
                verdict = await self._evaluate(each.candidate)
        self._keep(position, verdict)

    async def _evaluate(self, candidate: Candidate) -> Verdict:
        return await self._verifier.verify(candidate, self._options.depth)

    async def _evaluate_and_kill(self, candidate: Candidate) -> Verdict:
        """The worker that holds the candidate dies by a signal in the middle of its turn."""
        device = await self._session.gpu_device()
        running = asyncio.create_task(self._evaluate(candidate))
        while device is not None and not running.done():
            if device.current_candidate == candidate.id:
                with suppress(ProcessLookupError, RuntimeError):  # it is being replaced: then the next one is killed
                    os.kill(device.slot.pid, signal.SIGKILL)
                    break
            await asyncio.sleep(0.002)
        return await running

    def _keep(self, position: int, verdict: Verdict) -> None:
        self._verdicts.append((position, verdict))
        if time.monotonic() - self._written > WRITE_EVERY_S:
            self._write()

    def _write(self) -> dict[str, Any]:
        """Keep what is known by now, also on disk."""
        elapsed_s, self._written = time.monotonic() - self._started, time.monotonic()
        report = _report(self._planned, self._verdicts, elapsed_s, self._verifier.device_name, self._options)
        report |= self._facts
        folder = Path(self._options.out)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"gpu_faults-{report['gpu_file']}-{report['date']}.json"
        path.write_text(json.dumps(report, indent=1) + "\n")
        return report


def _candidate(number: int, kind: str) -> Candidate:
    needs_scratch = kind == MEMORY
    text = TEXT.format(
        number=number,
        block=(64, 128, 256, 512)[number % 4],
        fault=FAULTS.get(kind, ""),
        before={HANG: COMPILER_HANG, OUTPUT: LONG_OUTPUT * N_WARNINGS}.get(kind, ""),
        scratch=f"// scratch: scratch: {SCRATCH}\n" if needs_scratch else "",
        scratch_argument="scratch, " if needs_scratch else "",
        scratch_parameter="float* scratch, " if needs_scratch else "",
    )
    return Candidate(text=text, origin=Origin(proposer="user", description=kind))


def _report(
    planned: list[Planned],
    verdicts: list[tuple[int, Verdict]],
    elapsed_s: float,
    device: str,
    options: argparse.Namespace,
) -> dict[str, Any]:
    positions = Counter(position for position, _ in verdicts)
    lost = [position for position in range(len(planned)) if positions[position] == 0]
    mixed_up = [p for p, verdict in verdicts if verdict.candidate_id != planned[p].candidate.id]
    unexpected = [
        {
            "position": p,
            "kind": planned[p].kind,
            "outcome": v.outcome.kind,
            "message": str(getattr(v.outcome, "message", ""))[:300],
        }
        for p, v in verdicts
        if v.outcome.kind not in EXPECTED[planned[p].kind]
    ]
    duplicated = [p for p, n in positions.items() if n > 1]
    outcomes = Counter((planned[p].kind, v.outcome.kind) for p, v in verdicts)
    return {
        "date": datetime.date.today().isoformat(),
        "device": device,
        "gpu_file": device.split(",")[0].lower().replace(" ", "_"),
        "n": len(planned),
        "n_faults": sum(each.kind != RIGHT for each in planned),
        "seed": options.seed,
        "depth": options.depth,
        "elapsed_s": round(elapsed_s, 1),
        "outcomes": {f"{kind} -> {outcome}": n for (kind, outcome), n in sorted(outcomes.items())},
        "lost": lost,
        "duplicated": duplicated,
        "mixed_up": mixed_up,
        "unexpected": unexpected,
        "is_survived": not (lost or duplicated or mixed_up or unexpected),
        "verdicts": [
            {"position": p, "kind": planned[p].kind, "outcome": v.outcome.kind, "evaluate_s": round(v.evaluate_s, 3)}
            for p, v in verdicts
        ],
    }


# --- below: a disk that can be full


@contextmanager
def _small_disk() -> Iterator[Path | None]:
    """A small file system for scratch files; None where none can be mounted. ``$TMPDIR`` leads there meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", folder]
        if sys.platform != "linux" or os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
            yield None
            return
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        try:
            yield Path(folder)
        finally:
            tempfile.tempdir = None
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before
            subprocess.run(["umount", "-l", folder], capture_output=True, check=False)


@contextmanager
def _filled(disk: Path) -> Iterator[None]:
    """Not a byte is left inside."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                continue
    try:
        yield
    finally:
        filler.unlink()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--n-faults", type=int, default=100)
    parser.add_argument("--depth", choices=("full", "screen"), default="full")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results"))
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
