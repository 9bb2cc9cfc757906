"""Measure how long a full verdict takes on a GPU, cold and warm, and how many come in a minute.

    python3 benchmarks/gpu_verdict.py [--target FILE.py::symbol]... [--direction forward|backward]...
                                      [--n-warm 8] [--n-throughput 30] [--out FOLDER]

*First ever* is `kernel-lsp check` in a new process with an empty cache: where PyTorch was installed without bytecode,
as in many containers, its workers compile all of its modules then, once per machine. *Cold* is the same command once
more: a new process, with nothing in the cache but that bytecode. (Our own package has bytecode before, as after an
installation.) *Warm* is a session that has reached one verdict on the task: then each candidate is a text that was
never compiled. *Throughput* is candidates handed over at once, with compilers and executors on the CPU's cores beside
the GPU. Candidates are the generator's own schedules. A verdict is full when it is of depth ``full``: all families,
hidden shapes, every configuration, and times with an interval. The result is one JSON file, written anew after each
target, so that a run that is cut short keeps what it has.
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_facts import compile_package, gpu_facts

from kernel_lsp.config import load_settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.run.search import Proposer
from kernel_lsp.generate.program import plan_program
from kernel_lsp.process.worker_client import WORKER_CACHE
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.session.verifier import Verifier

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("examples/rms_norm.py::RMSNorm", "benchmarks/targets/large_rms_norm.py::rms_norm")
COLD_DEADLINE_S = 120
DEVICE = "cuda"


def main() -> int:
    options = _options()
    compile_package()
    report: dict[str, Any] = {"date": datetime.date.today().isoformat(), "n_cpus": os.cpu_count(), "targets": {}}
    for direction in options.direction or ["forward"]:
        for target in options.target or TARGETS:
            name = target if direction == "forward" else f"{target} with backward"
            report["targets"][name] = asyncio.run(_measure(target, options, with_backward=direction == "backward"))
            print(json.dumps({name: report["targets"][name]}), flush=True)
            _write(report, Path(options.out))
    return 0


def _write(report: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    gpu = next(iter(report["targets"].values()))["device"].split(",")[0].lower().replace(" ", "_")
    (folder / f"gpu_verdict-{gpu}-{report['date']}.json").write_text(json.dumps(report, indent=1) + "\n")


async def _measure(target: str, options: argparse.Namespace, *, with_backward: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(ROOT, {"device": options.device, "cache_directory": Path(folder) / "cache"})
        async with Session(settings) as session:
            started = time.monotonic()
            source = read_target(target, ROOT)
            task = await session.capture(source, with_backward=with_backward)
            candidates = _candidates(task, session, 1 + options.n_warm + options.n_throughput)
            verifier = await session.verifier(source, task)
            first = await verifier.verify(candidates[0], "full")
            first_s = time.monotonic() - started
            warm = [await verifier.verify(c, "full") for c in candidates[1 : 1 + options.n_warm]]
            facts = await gpu_facts(session)
            throughput = await _throughput(verifier, candidates[1 + options.n_warm :])
        kernel = Path(folder) / "kernel.cu"
        kernel.write_text(candidates[0].text)
        first_ever, cold = _cold(kernel, target, options)
    return {
        "device": verifier.device_name,
        **facts,
        "first_verdict_in_session_s": round(first_s, 3),
        "warm": _summary(warm),
        "throughput": throughput,
        "first_ever": first_ever,
        "cold": cold,
        "first": _facts(first),
    }


def _candidates(task: Task, session: Session, n: int) -> list[Candidate]:
    """Schedules of the generator; when there are no more, the same ones with another name, which compile anew."""
    proposals = Proposer(plan_program(task, gpu=session.gpu), seed=1).propose(n, 0, [])
    texts = [proposal.text for proposal in proposals]
    texts += [f"{texts[i % len(texts)]}\n// variant {i}\n" for i in range(n - len(texts))]
    return [Candidate(text=text, origin=Origin(proposer="generator")) for text in texts]


async def _throughput(verifier: Verifier, candidates: list[Candidate]) -> dict[str, Any]:
    slots = asyncio.Semaphore(verifier.n_slots)

    async def one(candidate: Candidate) -> Verdict:
        async with slots:
            return await verifier.verify(candidate, "full")

    started = time.monotonic()
    verdicts = await asyncio.gather(*(one(candidate) for candidate in candidates))
    elapsed_s = time.monotonic() - started
    return {
        **_summary(verdicts),
        "n_slots": verifier.n_slots,
        "elapsed_s": round(elapsed_s, 2),
        "verdicts_per_minute": round(60 * len(verdicts) / max(elapsed_s, 1e-9), 1),
        "not_correct": [
            {"outcome": verdict.outcome.model_dump(mode="json"), "notes": list(verdict.notes), "text": candidate.text}
            for candidate, verdict in zip(candidates, verdicts, strict=True)
            if not verdict.is_correct
        ],
    }


def _cold(kernel: Path, target: str, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """The command as the first on a machine, and once more when the cache holds bytecode alone."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        first_ever = _command(kernel, target, cache, options)
        for entry in cache.iterdir():
            if entry.name != WORKER_CACHE:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        return first_ever, _command(kernel, target, cache, options)


def _command(kernel: Path, target: str, cache: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Wall time of the command, no process warm."""
    command = [sys.executable, "-m", "kernel_lsp", "check", str(kernel), "--task", target]
    started = time.monotonic()
    done = subprocess.run(
        [*command, "--device", options.device, "--json"],
        cwd=ROOT,
        env={**os.environ, "KERNEL_LSP_CACHE_DIRECTORY": str(cache)},
        capture_output=True,
        text=True,
        timeout=COLD_DEADLINE_S,
        check=False,
    )
    elapsed_s = time.monotonic() - started
    verdict = json.loads(done.stdout) if done.stdout.startswith("{") else {"outcome": {"kind": done.stderr[-500:]}}
    return {
        "wall_s": round(elapsed_s, 2),
        "evaluate_s": round(verdict.get("evaluate_s", 0.0), 2),
        "stages_s": {name: round(each, 2) for name, each in verdict.get("stages_s", {}).items()},
        "outcome": verdict["outcome"]["kind"],
    }


def _summary(verdicts: list[Verdict]) -> dict[str, Any]:
    times = sorted(verdict.evaluate_s for verdict in verdicts)
    return {
        "n": len(times),
        "n_correct": sum(verdict.is_correct for verdict in verdicts),
        "median_s": round(statistics.median(times), 3) if times else None,
        "max_s": round(times[-1], 3) if times else None,
        "all_s": [round(each, 3) for each in times],
        "stages_s": {
            name: round(statistics.median(verdict.stages_s.get(name, 0.0) for verdict in verdicts), 3)
            for name in dict.fromkeys(name for verdict in verdicts for name in verdict.stages_s)
        },
    }


def _facts(verdict: Verdict) -> dict[str, Any]:
    outcome = verdict.outcome
    return {
        "outcome": outcome.kind,
        "message": getattr(outcome, "message", ""),
        "n_cases": len(getattr(outcome, "cases", ())),
        "evaluate_s": round(verdict.evaluate_s, 3),
        "stages_s": {name: round(each, 3) for name, each in verdict.stages_s.items()},
        "times": {
            name: {
                "ours_us": round(comparison.ours.time_us, 3),
                "baseline": comparison.baseline_name,
                "baseline_us": round(comparison.baseline.time_us, 3),
            }
            for name, comparison in verdict.times.items()
        },
        "notes": list(verdict.notes),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", action="append", default=[])
    parser.add_argument("--device", default=DEVICE)
    parser.add_argument("--direction", action="append", choices=("forward", "backward"))
    parser.add_argument("--n-warm", type=int, default=8)
    parser.add_argument("--n-throughput", type=int, default=30)
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results"))
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
