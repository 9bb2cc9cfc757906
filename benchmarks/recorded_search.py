"""Searches on a GPU, whose prompts quote what was measured there; replies by hand.

    python benchmarks/recorded_search.py run STATE SEARCH [--only NAME]... [--device cuda]  # begin, or go on
    python benchmarks/recorded_search.py prompts STATE SEARCH                        # which prompts have no reply
    python benchmarks/recorded_search.py keep STATE SEARCH                           # into recorded_runs/

SEARCH is a row of SEARCHES. `run` starts ``kernel-lsp optimize --model manual`` for each of its tasks, `refine` from
the fastest kernels that the task's recordings hold (as MEASURED) and the others from the generator's, and ends when
every search is over or waits for replies: prompts are ``STATE/SEARCH/prompts/KEY.prompt.md``, and a reply goes into
``KEY.reply.md`` beside it. STATE may move between machines as long as its path is the same there. `keep` writes a
recording and its kernels for each task, whether its search is over or not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recorded_replay import exported_kernels
from recorded_tasks import REFINED, ROOT, STRATEGIES, RecordedTask, copy_target, read_tasks

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.evolve.archive.archive import FOLDER_NAME, Archive
from kernel_lsp.evolve.archive.model_records import record_run

MEASURED = ROOT / "benchmarks" / "results" / "recorded_runs-nvidia_h200-2026-11-21.json"
REFINED_TASKS = (
    "cross_entropy",
    "layernorm",
    "softmax_temperature",
    "group_norm_silu",
    "gelu_mlp",
    "rms_norm",
    "add_rms_norm",
    "swiglu",
    "sgd_momentum",
)
"""Those whose best kernel leaves room above the floor, or is slower than PyTorch's best."""
N_GIVEN = 3
"""Kernels that a refining search begins from."""
FAR_TASKS = ("top_k", "kl_divergence", "normalize_image")
"""Chosen by hand among the f32 forward tasks of `suite/practical` that memory traffic bounds, have short kernels, and
took 1.25 to 8 times their limit on 28 November 2026; others of the suite are as far from theirs."""


@dataclass(frozen=True)
class Search:
    """Hold the tasks of a search and its replies for each. `is_refining` starts from recorded kernels."""

    tasks: tuple[str, ...]
    generations: int
    proposals: int
    is_refining: bool = False

    @property
    def settings(self) -> dict[str, str]:
        """Nobody replies while it runs, torch.compile's modes are worth waiting for, and six proposals are too few to
        divide. Forty replies are wanted whatever they gain, and a repair would be one more."""
        common = {"KERNEL_LSP_MANUAL_WAIT_S": "0", "KERNEL_LSP_BASELINE_WAIT_S": "60", "KERNEL_LSP_ISLANDS": "1"}
        whole = {"KERNEL_LSP_EARLY_STOP": "off", "KERNEL_LSP_REPAIR_ROUNDS": "0"}
        return common if self.is_refining else common | whole


SEARCHES = {
    REFINED: Search(REFINED_TASKS, 2, 3, is_refining=True),
    "evolve": Search(FAR_TASKS, 4, 10),
    "best-of-n": Search(FAR_TASKS, 1, 40),
}
N_TASKS_AT_ONCE = 5
"""Each has several processes that compile, and three or more that hold a CUDA context."""
OVER, WAITING = "over", "waits for replies"
EXIT_INTERRUPTED = 130
"""Exit status of `kernel-lsp optimize`, where it waits for replies, too."""
END_S = 20.0
TAIL_CHARACTERS = 1500


def main() -> int:
    options = _options()
    search, state = SEARCHES[options.search], options.state.absolute() / options.search
    tasks = [task for task in read_tasks() if task.name in (options.only or search.tasks)]
    if options.command == "run":
        return asyncio.run(_run_all(search, tasks, state, options.device, options.deadline_s))
    if options.command == "prompts":
        print("\n".join(path.name for path in _unanswered(state)))
        return 0
    for task in tasks:
        _keep(options.search, task, state / task.name)
    return 0


# --- below: running


async def _run_all(search: Search, tasks: Sequence[RecordedTask], state: Path, device: str, deadline_s: float) -> int:
    side_by_side, ending = asyncio.Semaphore(N_TASKS_AT_ONCE), time.monotonic() + deadline_s

    async def one(task: RecordedTask) -> str:
        async with side_by_side:
            end, said = await _run(search, task, state / task.name, device, ending - time.monotonic())
        print(f"{task.name}: {end}" + ("" if end in (OVER, WAITING) else f"\n{said}"), flush=True)
        return end

    ends = await asyncio.gather(*(one(task) for task in tasks))
    print(f"{ends.count(OVER)} searches are over, {ends.count(WAITING)} wait for {len(_unanswered(state))} replies")
    return 0 if all(end in (OVER, WAITING) for end in ends) else 1


async def _run(search: Search, task: RecordedTask, folder: Path, device: str, deadline_s: float) -> tuple[str, str]:
    """Return how it ended, and what it said last. A search that is cut short goes on in the next call."""
    before = _status(folder)
    if before == "finished" or deadline_s <= 0:
        return OVER if before == "finished" else "not begun in time", ""
    arguments = ["optimize", "--resume", "last"] if before else _begin(search, task, folder, device)
    log = folder / "log.txt"
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "kernel_lsp",
            *arguments,
            cwd=folder,
            env=_environment(search, folder.parent),
            stdout=out,
            stderr=out,
        )
        try:
            status = await asyncio.wait_for(process.wait(), deadline_s)
        except TimeoutError:
            await _end(process)
            return "cut short", ""
    end = WAITING if status == EXIT_INTERRUPTED else f"failed with status {status}"
    return OVER if _status(folder) == "finished" else end, log.read_text(errors="replace")[-TAIL_CHARACTERS:]


async def _end(process: asyncio.subprocess.Process) -> None:
    """In order, so that the run can go on where it was; or else at once."""
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), END_S)
    except TimeoutError:
        process.kill()
        await process.wait()


def _begin(search: Search, task: RecordedTask, folder: Path, device: str) -> list[str]:
    """The command line of a new search, in a workspace of its own."""
    (folder / FOLDER_NAME).mkdir(parents=True, exist_ok=True)
    target = copy_target(task, folder)
    given = folder / "given"
    given.mkdir(exist_ok=True)
    seeds = []
    for name, text in _fastest(task) if search.is_refining else ():
        (given / f"{name}.cu").write_text(text)
        seeds += ["--seed-kernel", f"given/{name}.cu"]
    size = ["--generations", str(search.generations), "--proposals", str(search.proposals)]
    strategy = ["--strategy", "evolve" if search.is_refining else folder.parent.name]
    out = ["--model", "manual:../prompts", "--out", str(folder.parent / f"out_{task.name}")]
    backward = ["--backward"] if task.backward else []
    return ["optimize", target, *seeds, *size, *strategy, "--device", device, *out, *backward]


def _fastest(task: RecordedTask) -> list[tuple[str, str]]:
    """Names and texts of the fastest recorded kernels, one of each name."""
    found = json.loads(MEASURED.read_text())["tasks"][task.name]["kernels"]
    times = {each["candidate"]: _total_us(each) for strategy in STRATEGIES for each in found.get(strategy, ())}
    ranked = sorted((times[id_], name, text) for id_, name, text in _recorded(task) if times.get(id_))
    best: dict[str, str] = {}
    for _, name, text in ranked:
        best.setdefault(name, text)
    return list(best.items())[:N_GIVEN]


def _total_us(facts: dict[str, Any]) -> float:
    """Return the time of all operations together; 0 for a kernel that is not right."""
    return sum(times["ours_us"] for times in facts["times"].values()) if facts["outcome"] == "correct" else 0.0


def _recorded(task: RecordedTask) -> Iterator[tuple[str, str, str]]:
    """Candidate id, name and text of each recorded kernel."""
    for strategy in STRATEGIES:
        if task.kernels(strategy).is_file():
            for kernel in json.loads(task.kernels(strategy).read_text()):
                if kernel["kernel"]:
                    candidate = Candidate(text=kernel["kernel"], origin=Origin(proposer="user"))
                    yield candidate.id, kernel["name"], kernel["kernel"]


def _status(folder: Path) -> str:
    """Return the status of the folder's run; empty where none has begun."""
    if not (folder / FOLDER_NAME / "archive.sqlite3").is_file():
        return ""
    with Archive(folder) as archive:
        return next((run.status for run in archive.runs()), "")


def _environment(search: Search, state: Path) -> dict[str, str]:
    """With a cache that goes where the state goes: times of PyTorch's modes hold for the same GPU."""
    cache = {"KERNEL_LSP_CACHE_DIRECTORY": str(state / "cache")}
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, **search.settings, **cache, "PYTHONPATH": path}


def _unanswered(state: Path) -> list[Path]:
    """Prompts without a reply."""
    prompts = sorted((state / "prompts").glob("*.prompt.md"))
    return [path for path in prompts if not path.with_name(path.name.replace(".prompt.", ".reply.")).exists()]


# --- below: keeping


def _keep(strategy: str, task: RecordedTask, folder: Path) -> None:
    """A proposal need not be settled: its repair may wait for a reply for ever. Its `outcome` is empty then."""
    if not _status(folder):
        return
    with Archive(folder) as archive:
        record_run(archive, archive.run("last").run_id, task.recording(strategy))
    kernels = exported_kernels(folder)
    task.kernels(strategy).write_text(json.dumps(kernels, indent=1) + "\n")
    print(f"{task.name}: kept {len(kernels)} kernels")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "prompts", "keep"))
    parser.add_argument("state", type=Path)
    parser.add_argument("search", choices=tuple(SEARCHES))
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--deadline-s", type=float, default=540.0, help="searches that are not over then are cut short")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
