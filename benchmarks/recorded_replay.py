"""Measure what recorded replies are worth on the CPU executor: the searches that they were written for run once more.

Where prompts have changed since they were recorded, a search cannot be replayed; then each reply's kernel is judged
alone.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recorded_tasks import ROOT, STRATEGIES, RecordedTask, copy_target

from kernel_lsp.config import load_settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.session.session import Session

GENERATIONS, PROPOSALS = 2, 2
"""Size of each recording: four proposals, repairs beside them."""
REPLAY_DEADLINE_S = 900
PRICES = (3, 15)
"""Prices of prompts and replies: an assumption, like the next."""
CHARACTERS_PER_TOKEN = 4
KEPT = (
    "slot",
    "round",
    "operator",
    "name",
    "outcome",
    "time_us",
    "time_kind",
    "best_before_us",
    "feedback",
    "kernel",
)


@dataclass(frozen=True)
class Replayed:
    """The kernels of one recording with their outcomes. `is_search` says that the search was run again."""

    task: RecordedTask
    strategy: str
    kernels: list[dict[str, Any]]
    is_search: bool

    @property
    def right(self) -> list[dict[str, Any]]:
        return [kernel for kernel in self.kernels if kernel["outcome"] == "correct"]


def replay_all(tasks: Sequence[RecordedTask]) -> int:
    """Replay every recording of the tasks, keep the kernels beside it, and print a table."""
    found = [_replay(task, strategy) for task, strategy in _recorded(tasks)]
    print(f"{'task':<22}{'strategy':<12}{'replies':>8}{'right':>7}{'verified':>10}{'best us':>9}{'seeds us':>9}")
    shares = []
    for each in found:
        best = min((kernel["time_us"] for kernel in each.right if kernel["time_us"]), default=math.nan)
        seeds = next((kernel["best_before_us"] for kernel in each.kernels if kernel["best_before_us"]), math.nan)
        counts = f"{len(each.kernels):>8}{len(each.right):>7}{'yes' if each.right else 'no':>10}"
        note = "" if each.is_search else "  prompts have changed: each kernel alone"
        print(f"{each.task.name:<22}{each.strategy:<12}{counts}{best:>9.2f}{seeds:>9.2f}{note}")
        shares += [best / seeds] if each.strategy == "evolve" else []
    if shares:
        spread = f"{statistics.median(shares):.2f}x ({min(shares):.2f}x to {max(shares):.2f}x)"
        print(f"estimated time of the best reply of a search against the best seed: median {spread}")
    verified = {each.task.name for each in found if each.right}
    print(f"{len(verified)} of {len({each.task.name for each in found})} tasks have a right kernel from a reply")
    n_right, n_replies = sum(len(each.right) for each in found), sum(len(each.kernels) for each in found)
    print(f"{n_right} of {n_replies} replies are right; two strategies share those to the same prompts")
    accepted = {kernel["kernel"] for each in found for kernel in each.right}
    _print_cost([each.task.recording(each.strategy) for each in found], len(accepted))
    print("times are estimates for the GPU that the recordings name; `measure` measures")
    return 0


# --- below: one recording


def _recorded(tasks: Sequence[RecordedTask]) -> Iterator[tuple[RecordedTask, str]]:
    for task in tasks:
        for strategy in STRATEGIES:
            if task.recording(strategy).is_file():
                yield task, strategy


def _replay(task: RecordedTask, strategy: str) -> Replayed:
    """A reply without a prompt that asks for it is missing from the search."""
    path = task.kernels(strategy)
    kept = json.loads(path.read_text()) if path.is_file() else []
    kernels = _searched(task, strategy)
    if is_search := {kernel["kernel"] for kernel in kept} <= {kernel["kernel"] for kernel in kernels}:
        path.write_text(json.dumps(kernels, indent=1) + "\n")
    else:
        kernels = asyncio.run(_all_of(judged_alone(task, kept)))
    return Replayed(task, strategy, kernels, is_search)


def _searched(task: RecordedTask, strategy: str) -> list[dict[str, Any]]:
    """Return what became of each reply in the search that asked for it."""
    with tempfile.TemporaryDirectory() as parent:
        # Prompts quote the seeds, and these name their task's folder as seen from where the kernel will lie.
        folder, out = Path(parent) / task.name, Path(parent) / f"out_{task.name}"
        folder.mkdir()
        target = copy_target(task, folder)
        search = ["--generations", str(GENERATIONS), "--proposals", str(PROPOSALS), "--strategy", strategy]
        replay = ["--model", "manual", "--replay", str(task.recording(strategy)), "--device", "cpu", "--out", str(out)]
        backward = ["--backward"] if task.backward else []
        _kernel_lsp(["optimize", target, *search, *replay, *backward], folder)
        return exported_kernels(folder)


def exported_kernels(folder: Path) -> list[dict[str, Any]]:
    """The replies' kernels in the folder's last run, with what became of them."""
    _kernel_lsp(["export", "last", "--format", "jsonl", "--out", "rows.jsonl"], folder)
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in KEPT} for row in rows]


async def judged_alone(task: RecordedTask, kernels: Sequence[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    """The kernels as they were kept, with what is said of them today."""
    async with Session(load_settings(ROOT, {"device": "cpu"})) as session:
        source = read_target(task.target, ROOT)
        captured = await session.capture(source, with_backward=task.backward)
        verifier = await session.verifier(source, captured)
        for kernel in kernels:
            candidate = Candidate(text=kernel["kernel"], origin=Origin(proposer="user"))
            verdict = await verifier.verify(candidate, "screen")
            time_us = sum(comparison.ours.time_us for comparison in verdict.times.values())
            yield {**kernel, "outcome": verdict.outcome.kind, "time_us": time_us or None}


async def _all_of(judged: AsyncIterator[dict[str, Any]]) -> list[dict[str, Any]]:
    return [kernel async for kernel in judged]


def _kernel_lsp(arguments: Sequence[str | Path], directory: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "kernel_lsp", *map(str, arguments)]
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=REPLAY_DEADLINE_S, check=False
    )
    if done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _print_cost(recordings: Sequence[Path], n_accepted: int) -> None:
    """Return what the same prompts and replies would cost. Nobody counted tokens: a chat does not say them, nor what a
    model thought before it replied."""
    lines = [json.loads(line) for path in recordings for line in path.read_text().splitlines()]
    asked = {line["key"]: line for line in lines if "request" in line}
    n_prompt = sum(len(message["content"]) for line in asked.values() for message in line["request"]["messages"])
    n_reply = sum(len(line["outcome"].get("text", "")) for line in asked.values())
    prompt_usd, reply_usd = (price / 1e6 / CHARACTERS_PER_TOKEN for price in PRICES)
    cost = n_prompt * prompt_usd + n_reply * reply_usd
    print(f"{len(asked)} different replies: {n_prompt} characters of prompts, {n_reply} of replies")
    print(
        f"at {PRICES[0]}:{PRICES[1]} US dollars a million tokens, {CHARACTERS_PER_TOKEN} characters each, thinking not"
    )
    print(f"counted: ${cost:.2f}, ${cost / max(n_accepted, 1):.3f} for each accepted kernel")
