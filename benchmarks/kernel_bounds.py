"""Name what bounds the kernels of job folders: ncu's figures of one cold launch each, of ours and of torch.compile's.

    python benchmarks/kernel_bounds.py FOLDER... [--out F] [--compile MODE] [--deadline-s S]

Needs a GPU, torch and ncu.
A FOLDER holds folders of tasks that `kernel_variants.py render` and `bind` have prepared. Every kernel becomes one row:
its duration under ncu (slower than in a graph: clocks are not boosted as there), the share of peak of DRAM, of the L2
cache and of the multiprocessors, occupancy, registers, and the stall that most warps wait for.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

METRICS = {
    "gpu__time_duration.sum": "time_us",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "dram_pct",
    "dram__bytes.sum": "dram_bytes",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2_pct",
    "lts__t_sector_hit_rate.pct": "l2_hit_pct",
    "l1tex__throughput.avg.pct_of_peak_sustained_active": "l1_pct",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "sm_pct",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active": "tensor_pct",
    "smsp__issue_active.avg.pct_of_peak_sustained_active": "issue_pct",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy_pct",
    "launch__registers_per_thread": "registers",
    "launch__grid_size": "n_blocks",
    "launch__block_size": "n_threads",
}
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
STALLS = [
    "long_scoreboard",
    "short_scoreboard",
    "barrier",
    "membar",
    "mio_throttle",
    "lg_throttle",
    "math_pipe_throttle",
    "wait",
    "not_selected",
    "no_instruction",
    "dispatch_stall",
    "drain",
    "branch_resolving",
    "imc_miss",
    "tex_throttle",
    "sleeping",
    "gmma",
]
"""Reasons for which a warp waits; ``long_scoreboard`` is global memory, ``short_scoreboard`` shared memory."""
ONE_TASK_S = 90.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("kernel_bounds.json"))
    parser.add_argument("--compile", default="", metavar="MODE", help="profile this mode of torch.compile, too")
    parser.add_argument("--deadline-s", type=float, default=240.0)
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    tasks = [path.parent for folder in map(Path.resolve, arguments.folders) for path in sorted(folder.rglob("task.py"))]
    if arguments.launch:
        return launch_all(tasks[0], arguments.compile)
    ends = time.monotonic() + arguments.deadline_s
    rows: list[dict[str, Any]] = []
    for task in tasks:
        if time.monotonic() > ends:
            print(f"{task.name}: not reached")
            continue
        found = profiled(task, arguments.compile, min(ONE_TASK_S, ends - time.monotonic() + 10.0))
        rows += found
        for row in found:
            print(shown(row), flush=True)
        arguments.out.write_text(json.dumps({"rows": rows}, indent=1), encoding="utf-8")
    return 0


def profiled(task: Path, mode: str, limit_s: float) -> list[dict[str, Any]]:
    """Profile one task in a process of its own. Returns one row a kernel; one with a problem where ncu has none."""
    metrics = ",".join([*METRICS, *(STALL.format(each) for each in STALLS)])
    ncu = [
        "ncu",
        "--csv",
        "--page",
        "raw",
        "--print-units",
        "base",
        "--clock-control",
        "none",
        "--nvtx",
        "--cache-control",
        "none",
    ]
    ncu += ["--profile-from-start", "off", "--metrics", metrics]
    command = [*ncu, sys.executable, __file__, "--launch", "--compile", mode, str(task)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit_s, env={**os.environ, "LC_ALL": "C"}, check=False
        )
    except subprocess.TimeoutExpired:
        return [{"task": task.name, "problem": f"no profile within {limit_s:.0f} s"}]
    lines = done.stdout.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return [{"task": task.name, "problem": (done.stdout + done.stderr)[-400:]}]
    subjects = [line.split("=", 1)[1] for line in lines if line.startswith("SUBJECT=")]
    return [
        row_of(task.name, each, subjects) for each in list(csv.DictReader(io.StringIO("\n".join(lines[start:]))))[1:]
    ]


def row_of(task: str, measured: dict[str, str], subjects: list[str]) -> dict[str, Any]:
    ranges = " ".join(value for name, value in measured.items() if "NVTX" in name or "Domain" in name)
    subject = next((each for each in sorted(subjects, key=len, reverse=True) if each in ranges), "")
    row: dict[str, Any] = {"task": task, "subject": subject, "kernel": measured.get("Kernel Name", "")[:60]}
    for metric, name in METRICS.items():
        row[name] = number(measured.get(metric, ""))
    row["time_us"] /= 1e3
    stalls = {each: number(measured.get(STALL.format(each), "")) for each in STALLS}
    row["stalls"] = {name: round(value, 2) for name, value in sorted(stalls.items(), key=lambda kv: -kv[1])[:3]}
    return row


def number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0


def shown(row: dict[str, Any]) -> str:
    if "problem" in row:
        return f"{row['task']}: {row['problem']}"
    shares = {"dram": "dram_pct", "l2": "l2_pct", "hit": "l2_hit_pct", "l1": "l1_pct", "sm": "sm_pct"}
    shares |= {"tensor": "tensor_pct", "issue": "issue_pct", "occupancy": "occupancy_pct"}
    percents = " ".join(f"{name} {row[key]:.0f}%" for name, key in shares.items())
    stalls = " ".join(f"{name} {value}" for name, value in row["stalls"].items())
    return (
        f"{row['task'][:30]:<30} {row['subject'][:24]:<24} {row['kernel'][:34]:<34} {row['time_us']:9.1f} us "
        f"{row['dram_bytes'] / 1e6:.1f} MB {percents} registers {row['registers']:.0f} "
        f"{row['n_blocks']:.0f}x{row['n_threads']:.0f} {stalls}"
    )


# --- in the process that ncu watches


def launch_all(task: Path, mode: str) -> int:
    """Launch torch.compile's and each candidate's kernels once under the profiler, after a first call without it."""
    import torch
    from kernel_variants import TaskTimer

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False

    class Launcher(TaskTimer):
        def _row(self, direction: str, subject: str, call: Any, expected: Any, outputs: Any = None) -> dict[str, Any]:
            if subject == "eager":
                return {}
            with torch.set_grad_enabled(direction == "backward"):
                call()
                self.stopwatch.flush()
                torch.cuda.synchronize()
                print(f"SUBJECT={direction} {subject}", flush=True)
                named = torch.cuda.nvtx.range_start(f"{direction} {subject}")  # of all threads: autograd has its own
                torch.cuda.cudart().cudaProfilerStart()
                call()
                torch.cuda.synchronize()
                torch.cuda.cudart().cudaProfilerStop()
                torch.cuda.nvtx.range_end(named)
            return {}

    Launcher(task, [mode] if mode else []).rows()
    return 0


if __name__ == "__main__":
    sys.exit(main())
