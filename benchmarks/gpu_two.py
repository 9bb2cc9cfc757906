"""Measure what a second GPU brings: verdicts a minute with one and with two, and whether times stay the same.

    python3 benchmarks/gpu_two.py [--target FILE.py::symbol] [--window-s 28] [--deadline-s 148] [--out FOLDER]

The same candidates get full verdicts, first on ``cuda:0`` alone, then on ``cuda:all``. Verdicts count within a window
that begins when the pipeline is full. Candidates come in a random order: the search's own puts those that are quick to
screen first, and two GPUs would get further into the slow ones. Medians of a candidate's times are compared between the
two. Then both GPUs time kernels against themselves at once (`gpu_repeatability.py`), as far as time is left; a claimed
difference is false there. The exit status is 1 when the second GPU brings less than 1.8 times the verdicts, medians
differ by more than 1.5 %, or a false claim was made.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_facts import compile_package

from kernel_lsp.config import load_settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.run.search import Proposer
from kernel_lsp.generate.program import plan_program
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.session.several_gpus import SpreadVerifier
from kernel_lsp.verify.session.verifier import Verifier

ROOT = Path(__file__).resolve().parent.parent
RAMP_S = 6.0
"""Seconds before a window, in which the first candidates all wait for compilers and executors."""
MIN_CLAIMS_S = 8.0
"""Seconds that timings of kernels against themselves need at least."""
HELD = ("gpu worker", "gpu load", "gpu cases", "gpu again", "gpu waits for executors", "gpu time")
"""Stages in which a candidate holds its GPU."""
N_CANDIDATES = 120
N_REPEATS = 10
"""Timings of each of six kernels against itself, on each GPU: 120 pairs in all, as far as time is left."""
LEAST_GAIN, MAX_DIFFERENCE = 1.8, 0.015
Phase = dict[str, Any]


def main() -> int:
    options = _options()
    ends = time.monotonic() + options.deadline_s
    compile_package()
    one = asyncio.run(_phase("cuda:0", options))
    print(json.dumps({"one": _shown(one)}), flush=True)
    two = asyncio.run(_phase("cuda:all", options))
    print(json.dumps({"two": _shown(two)}), flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    timelines = {"one": one["timeline"], "two": two["timeline"]}
    (options.out / "timeline.json").write_text(json.dumps(timelines, indent=1) + "\n")
    left_s = ends - time.monotonic()
    claims: Phase = {"n_pairs": 0, "claims": {}}
    if left_s > MIN_CLAIMS_S:
        claims = asyncio.run(_claims(left_s, options.out))
    gain = two["verdicts_per_minute"] / one["verdicts_per_minute"] if one["verdicts_per_minute"] else 0.0
    differences = _differences(one["times_us"], two["times_us"])
    report = {
        "date": datetime.date.today().isoformat(),
        "n_cpus": os.cpu_count(),
        "target": options.target,
        "one": _shown(one),
        "two": _shown(two),
        "gain": round(gain, 3),
        "n_compared": len(differences),
        "median_difference": round(statistics.median(differences), 4) if differences else None,
        "largest_difference": round(max(differences), 4) if differences else None,
        "self_pairs": claims,
    }
    print(json.dumps(report, indent=1), flush=True)
    (options.out / f"gpu_two-{report['date']}.json").write_text(json.dumps(report, indent=1) + "\n")
    is_steady = bool(differences) and statistics.median(differences) <= MAX_DIFFERENCE
    n_false = sum(claims["claims"].values()) - claims["claims"].get("no difference", 0)
    return 0 if gain >= LEAST_GAIN and is_steady and claims["n_pairs"] >= 40 and n_false == 0 else 1


async def _phase(device: str, options: argparse.Namespace) -> Phase:
    """Give candidates full verdicts for a window of time, after one that warms everything up on each GPU."""
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(ROOT, {"device": device, "cache_directory": Path(folder)})
        async with Session(settings) as session:
            source = read_target(options.target, ROOT)
            task = await session.capture(source, with_backward=False)
            verifier = await session.verifier(source, task)
            warm, *candidates = _candidates(task, session)
            n_gpus = 1
            if isinstance(verifier, SpreadVerifier):
                await verifier.open_all()
                n_gpus = 2
            await asyncio.gather(*(verifier.verify(_variant(warm, n), "full") for n in range(n_gpus)))
            found = await _throughput(verifier, candidates, options.window_s)
            losses = verifier.losses if isinstance(verifier, SpreadVerifier) else ()
            return {"device": verifier.device_name, "losses": losses, **found}


async def _throughput(verifier: Verifier, candidates: list[Candidate], window_s: float) -> Phase:
    """Count the verdicts that are reached within the window; those under way at its end are given up."""
    started, waiting, reached = time.monotonic(), iter(enumerate(candidates)), dict[int, tuple[float, Verdict]]()

    async def slot() -> None:
        for number, candidate in waiting:
            verdict = await verifier.verify(candidate, "full")
            reached[number] = time.monotonic() - started, verdict

    slots = [asyncio.create_task(slot()) for _ in range(verifier.n_slots)]
    await asyncio.wait(slots, timeout=RAMP_S + window_s)
    elapsed_s = time.monotonic() - started - RAMP_S
    for task in slots:
        task.cancel()
    await asyncio.gather(*slots, return_exceptions=True)
    correct = {number: verdict for number, (_, verdict) in reached.items() if verdict.is_correct}
    found = {number: verdict for number, (reached_s, verdict) in reached.items() if reached_s > RAMP_S}
    return {
        "n_slots": verifier.n_slots,
        "n_verdicts": len(found),
        "outcomes": dict(Counter(verdict.outcome.kind for verdict in found.values())),
        "verdicts_per_minute": round(60 * len(found) / elapsed_s, 1),
        "by_gpu": dict(Counter(map(_gpu, found.values()))),
        "held": _held(list(found.values()), elapsed_s),
        "stages_s": _median_stages(list(found.values())),
        "timeline": [
            {"n": n, "end_s": round(end_s, 2), "gpu": _gpu(verdict), "stages_s": _rounded(verdict.stages_s)}
            for n, (end_s, verdict) in reached.items()
        ],
        "times_us": {n: v.measurement.time_us for n, v in correct.items() if v.measurement is not None},
    }


def _gpu(verdict: Verdict) -> str:
    return verdict.device.split(",")[0]


def _held(verdicts: list[Verdict], window_s: float) -> dict[str, float]:
    """Return the share of the window in which each GPU was held by the candidates that got a verdict in it."""
    held: dict[str, float] = {}
    for verdict in verdicts:
        held_s = sum(verdict.stages_s.get(name, 0.0) for name in HELD)
        held[_gpu(verdict)] = held.get(_gpu(verdict), 0.0) + held_s
    return {gpu: round(seconds / window_s, 2) for gpu, seconds in held.items()}


def _rounded(stages_s: Mapping[str, float]) -> dict[str, float]:
    return {name: round(seconds, 3) for name, seconds in stages_s.items()}


def _median_stages(verdicts: list[Verdict]) -> dict[str, float]:
    """Return the median seconds that a verdict spent in each stage, waiting included; stages of a candidate overlap."""
    names = sorted({name for verdict in verdicts for name in verdict.stages_s})
    return {name: round(statistics.median(v.stages_s.get(name, 0.0) for v in verdicts), 3) for name in names}


async def _claims(left_s: float, out: Path) -> dict[str, Any]:
    """Time kernels against themselves on both GPUs at once. Every sample is written below `out`."""
    program = [sys.executable, str(ROOT / "benchmarks" / "gpu_repeatability.py"), "--repeats", str(N_REPEATS)]
    folders = [out / f"self_pairs_{device}" for device in range(2)]
    running = [
        await asyncio.create_subprocess_exec(
            *program, "--device", str(n), "--out", str(folder), "--keep-rounds", stdout=asyncio.subprocess.DEVNULL
        )
        for n, folder in enumerate(folders)
    ]
    ending = [asyncio.create_task(process.wait()) for process in running]
    _, late = await asyncio.wait(ending, timeout=max(left_s, 1.0))
    for process in running if late else ():
        if process.returncode is None:
            process.kill()
    await asyncio.gather(*ending)
    repeats = [repeat for folder in folders for path in folder.glob("*.json") for repeat in _repeats_in(path)]
    differing = [repeat for repeat in repeats if repeat["claim"] != "no difference"]
    return {
        "n_pairs": len(repeats),
        "claims": dict(Counter(repeat["claim"] for repeat in repeats)),
        "differing": differing,
        "was_cut_short": bool(late),
    }


def _repeats_in(path: Path) -> list[dict[str, Any]]:
    """Return the timings in a report of `gpu_repeatability.py`, without their samples."""
    report = json.loads(path.read_text())
    names = ("claim", "ratio", "low", "high", "noise_floor", "ours_us", "theirs_us")
    return [
        {"gpu": report["gpu_uuid"], "kernel": kernel["kernel"], **{name: repeat[name] for name in names}}
        for kernel in report["reports"]
        for repeat in kernel["repeats"]
    ]


def _candidates(task: Task, session: Session) -> list[Candidate]:
    """Return schedules of the generator; then the same ones with another text, which compile anew."""
    program = plan_program(task, gpu=session.gpu)
    first = [
        Candidate(text=proposal.text, origin=Origin(proposer="generator"))
        for proposal in Proposer(program, seed=1).propose(N_CANDIDATES, 0, [])
    ]
    default, *others = first
    random.Random(1).shuffle(others)
    first = [default, *others]
    return [*first, *(_variant(first[n % len(first)], n) for n in range(N_CANDIDATES - len(first)))]


def _variant(candidate: Candidate, number: int) -> Candidate:
    return Candidate(text=f"{candidate.text}\n// variant {number}\n", origin=candidate.origin)


def _differences(one: dict[int, float], two: dict[int, float]) -> list[float]:
    return [abs(two[number] / one[number] - 1) for number in one.keys() & two.keys()]


def _shown(phase: Phase) -> Phase:
    return {name: value for name, value in phase.items() if name not in ("times_us", "timeline")}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="examples/rms_norm.py::RMSNorm")
    parser.add_argument("--window-s", type=float, default=28.0)
    parser.add_argument("--deadline-s", type=float, default=148.0)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
