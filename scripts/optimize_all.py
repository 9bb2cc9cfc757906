"""Optimizes every example, or every file of the KernelBench-style corpus, on the CPU, and prints a table and the rate.

    python scripts/optimize_all.py examples
    python scripts/optimize_all.py corpus [--only softmax] [--jobs 2] [--generations 1] [--proposals 4]

Each target is a `kernel-lsp optimize` of its own in a fresh folder, so nothing here knows more than a user does. A
kernel that a file brings along is checked with `kernel-lsp check`. Exit status: 0 when all ended with a verified kernel
(for the corpus: when none ended with a traceback), 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
CORPUS = ROOT / "tests" / "kernelbench_style"
DEADLINE_S = 300.0
REASON_CHARACTERS = 90


@dataclass(frozen=True)
class Job:
    """One command to run. `name` is what the table calls it."""

    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Result:
    """Outcome of a job. `status` is ``verified``, ``none`` (no kernel found), ``refused``, ``traceback`` or
    ``timed out``."""

    name: str
    status: str
    detail: str
    elapsed_s: float


def main() -> int:
    options = parse_arguments()
    jobs = example_jobs(options) if options.what == "examples" else corpus_jobs(options)
    chosen = [job for job in jobs if options.only in job.name]
    if not chosen:
        print(f"nothing is called {options.only}", file=sys.stderr)
        return 2
    started = time.monotonic()
    results = list(run_all(chosen, options.jobs))
    print_summary(results, time.monotonic() - started)
    if options.what == "examples":
        return int(any(result.status != "verified" for result in results))
    return int(any(result.status in ("traceback", "timed out") for result in results))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Optimize every example or corpus file on the CPU.")
    parser.add_argument("what", choices=("examples", "corpus"))
    parser.add_argument("--only", default="", help="just the targets whose name contains this")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once")
    parser.add_argument("--generations", default="1")
    parser.add_argument("--proposals", default="4")
    return parser.parse_args()


def example_jobs(options: argparse.Namespace) -> Iterable[Job]:
    for example in tomllib.loads((EXAMPLES / "examples.toml").read_text())["example"]:
        target = str(EXAMPLES / example["target"])
        passes = ("--backward",) if example["backward"] else ()
        name = example["target"] + (" (forward, backward)" if passes else "")
        yield Job(name, (*optimize_arguments(target, options), *passes))
        if "kernel" in example:
            kernel = str(EXAMPLES / example["kernel"])
            yield Job(example["kernel"], ("check", kernel, "--device", "cpu", "--json"))


def corpus_jobs(options: argparse.Namespace) -> Iterable[Job]:
    for file in sorted(CORPUS.glob("level*/*.py")):
        yield Job(f"{file.parent.name}/{file.stem}", optimize_arguments(str(file), options))


def optimize_arguments(target: str, options: argparse.Namespace) -> tuple[str, ...]:
    search = ("--generations", options.generations, "--proposals", options.proposals)
    return ("optimize", target, "--device", "cpu", "--json", *search)


def run_all(jobs: list[Job], n_at_once: int) -> Iterable[Result]:
    with ThreadPoolExecutor(n_at_once) as pool:
        for result in pool.map(run_one, jobs):
            print(f"{result.status:10} {result.elapsed_s:6.1f} s  {result.name:55} {result.detail}", flush=True)
            yield result


def run_one(job: Job) -> Result:
    """Run the command in a folder of its own. A folder with a pyproject.toml is a workspace."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kernel-lsp-") as folder:
        Path(folder, "pyproject.toml").touch()
        out = ("--out", folder) if job.arguments[0] == "optimize" else ()
        command = [sys.executable, "-m", "kernel_lsp", *job.arguments, *out]
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            stdout, stderr = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Result(job.name, "timed out", f"after {DEADLINE_S:.0f} s", time.monotonic() - started)
    status, detail = judge(process.returncode, stdout, stderr)
    return Result(job.name, status, detail, time.monotonic() - started)


def judge(returncode: int, stdout: str, stderr: str) -> tuple[str, str]:
    """Status and detail from what the command said."""
    lines = [line for line in stderr.strip().splitlines() if line.strip()]
    last = lines[-1].strip() if lines else f"exit status {returncode}"
    if "Traceback (most recent call last)" in stderr or returncode not in (0, 1, 2):
        return "traceback", last[:REASON_CHARACTERS]
    if returncode == 2:
        return "refused", next((line for line in lines if line.startswith("error:")), last)[:REASON_CHARACTERS]
    reply = json.loads(stdout)
    detail = reply.get("reason") or reply["outcome"].get("message", reply["outcome"]["kind"])
    return ("verified" if returncode == 0 else "none"), " ".join(detail.split())[:REASON_CHARACTERS]


def print_summary(results: list[Result], elapsed_s: float) -> None:
    n_verified = sum(result.status == "verified" for result in results)
    print(
        f"\n{n_verified} of {len(results)} verified on the CPU ({n_verified / len(results):.0%}) in {elapsed_s:.0f} s"
    )
    for status in ("none", "refused", "traceback", "timed out"):
        names = [result.name for result in results if result.status == status]
        if names:
            print(f"{status}: {len(names)}: {', '.join(names)}")


if __name__ == "__main__":
    sys.exit(main())
