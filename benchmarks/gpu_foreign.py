"""Verdicts on kernels with host code of their own, on a GPU: how long each takes, cold and warm, and what it says.

    python3 benchmarks/gpu_foreign.py [--out FOLDER] [--torch-too]
    python3 benchmarks/gpu_foreign.py --published CHECKOUT [--out FOLDER]
    python3 benchmarks/gpu_foreign.py --page

``--published`` checks the kernels of robust-kbench's ``highlighted`` folder against its own tasks, under each
tolerance, with some commands at once, which take turns on the GPU. ``--page`` writes the newest results of both into
docs/foreign-kernels.md, and needs no GPU.

The cache is empty at first: the first verdict reads PyTorch's headers, and has them precompiled beside for the next.
With ``--torch-too`` the extension is also built as torch.utils.cpp_extension builds it. The result is one JSON file
under ``benchmarks/results``; the exit status is 1 when a verdict is not what it should be, 2 without a GPU.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "benchmarks" / "foreign"
TARGET = "benchmarks/targets/rms_norm_rows.py::rms_norm"
LARGE_TARGET = "benchmarks/targets/large_rms_norm.py::rms_norm"
RUNS = (
    ("extension, first ever", "rms_norm_extension.cu", "", "correct"),
    ("extension, another text", "rms_norm_extension.cu", "\n// another text\n", "correct"),
    ("extension, built before", "rms_norm_extension.cu", "", "correct"),
    ("extension, robust-kbench's size", "rms_norm_extension.cu", "\n// a third text\n", "correct"),
    ("extension on PyTorch's stream", "rms_norm_on_a_stream.cu", "", "correct"),
    ("extension that names pybind11", "rms_norm_on_a_stream.cu", "\n// py::arg\n", "correct"),
    ("ModelNew with load_inline", "rms_norm_model_new.py", "", "correct"),
    ("attack: work on a side stream", "side_stream.cu", "", "crashed|mismatch"),
)
"""Name of a check, its file, the addition to its text, and the verdict that it must get."""
DEADLINE_S = 200
N_JOBS = 3
"""Checks of published kernels at once."""
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "foreign-kernels.md"
MARK = re.compile(r"(<!-- gpu_foreign.py: (\w+) -->\n).*?(<!-- end -->)", re.S)
"""Parts of the page that this script writes, each between two marks; the first names it."""
TOLERANCES = ("strict", "torch", "kernelbench", "robust-kbench")
TORCH_BUILD = """
import sys, time
from torch.utils.cpp_extension import load
started = time.monotonic()
load(name="rms_norm_by_torch", sources=[sys.argv[1]], build_directory=sys.argv[2], verbose=False)
print(time.monotonic() - started)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--torch-too", action="store_true")
    parser.add_argument("--published", type=Path, metavar="CHECKOUT", help="of robust-kbench")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    if options.page:
        return write_page()
    if not torch.cuda.is_available():
        print("no CUDA device: run this on a machine with a GPU", file=sys.stderr)
        return 2
    if options.published:
        return check_published(options.published, options.out)
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as cache:
        for run in RUNS:
            found.append(verdict_of(*run, Path(cache)))
            write_results(found, None, options.out)
        by_torch_s = torch_build_s(Path(cache)) if options.torch_too else None
    path = write_results(found, by_torch_s, options.out)
    n_bad = sum(not each["is_as_it_should_be"] for each in found)
    print(f"{path}: {n_bad} of {len(found)} verdicts are not what they should be; torch's build: {by_torch_s} s")
    return 1 if n_bad else 0


def verdict_of(name: str, file: str, added: str, expected: str, cache: Path) -> dict[str, Any]:
    """One run of the command, as a user runs it."""
    kernel = cache / f"{len(added)}-{file}"
    kernel.write_text((FOLDER / file).read_text() + added)
    target = LARGE_TARGET if "robust-kbench" in name else TARGET
    found = check(name, kernel, target, cache)
    found["is_as_it_should_be"] = bool(re.fullmatch(expected, found["outcome"]))
    return found


def check_published(checkout: Path, out: Path) -> int:
    """Check each published kernel under each tolerance."""
    large = ("layernorm", "llama_ffw", "llama_rmsnorm", "resnet_block")
    kernels = sorted(checkout.glob("highlighted/*/*/kernel.cu"), key=lambda path: (path.parts[-3] in large, path))
    if not kernels:
        print(f"no published kernels in {checkout}/highlighted", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(N_JOBS) as pool:

        def verdict(kernel: Path) -> dict[str, Any]:
            task, direction = kernel.parts[-3:-1]
            target = str((checkout / "tasks" / task).resolve())
            return check(f"{task}, {direction}", kernel.resolve(), target, Path(cache), "--tolerance", "all")

        found: list[dict[str, Any]] = []
        for done in as_completed([pool.submit(verdict, kernel) for kernel in kernels]):
            found = sorted([*found, done.result()], key=lambda each: str(each["name"]))
            path = write_results(found, None, out, "published")
    n_without = sum(not each["by_tolerance"] for each in found)
    print(f"{path}: {len(found)} published kernels, {n_without} without a verdict")
    return 1 if n_without else 0


def check(name: str, kernel: Path, target: str, cache: Path, *options: str) -> dict[str, Any]:
    """Run the command as a user does, and return what its verdict says."""
    command = [sys.executable, "-m", "kernel_lsp", "check", str(kernel), "--task", target, "--json", *options]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "KERNEL_LSP_PYTHON": sys.executable}
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
        said, complaint = done.stdout, done.stderr[-2000:]
    except subprocess.TimeoutExpired:
        said, complaint = "", f"no verdict within {DEADLINE_S} s"
    wall_s = round(time.monotonic() - started, 3)
    verdict: dict[str, Any] = json.loads(said) if said else {"outcome": {"kind": "none", "message": complaint}}
    outcome = verdict["outcome"]["kind"]
    times = {
        operation: {"ours_us": each["ours"]["time_us"], "baseline": each["baseline_name"], "x": each["ratio"]}
        for operation, each in verdict.get("times", {}).items()
    }
    found: dict[str, Any] = {
        "name": name,
        "outcome": outcome,
        "message": verdict["outcome"].get("message", "") or verdict["outcome"].get("log", "")[-2000:],
        "device": verdict.get("device", ""),
        "by_tolerance": verdict.get("by_tolerance", {}),
        "findings": [each["code"] for each in verdict.get("findings", [])],
        "wall_s": wall_s,
        "stages_s": {stage: round(s, 3) for stage, s in verdict.get("stages_s", {}).items()},
        "notes": verdict.get("notes", []),
        "times": times,
    }
    print(json.dumps({**found, "message": found["message"][-400:]}), flush=True)
    return found


def torch_build_s(folder: Path) -> float:
    """The same extension as torch builds it."""
    (folder / "by_torch").mkdir()
    command = [sys.executable, "-c", TORCH_BUILD, str(FOLDER / "rms_norm_extension.cu"), str(folder / "by_torch")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    return round(float(done.stdout.split()[-1]), 3)


def write_results(found: list[dict[str, Any]], by_torch_s: float | None, folder: Path, of: str = "foreign") -> Path:
    """One JSON file, named after the day and the GPU."""
    gpu, date = torch.cuda.get_device_name(), datetime.date.today().isoformat()
    content = {
        "schema_version": 1,
        "kind": "measured",
        "gpu": gpu,
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "date": date,
        "task": TARGET if of == "foreign" else "robust-kbench's tasks, in its own folders",
        "method": "wall time of `kernel-lsp check --json` as a process of its own; torch.compile baselines not awaited",
        "by_torch_build_s": by_torch_s,
        "verdicts": found,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpu_{of}-{re.sub(r'[^a-z0-9]+', '_', gpu.lower())}-{date}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


def write_page() -> int:
    """Write the newest results into the page, between its marks. A part without results stays as it is."""
    PAGE.write_text(MARK.sub(_part, PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


def _part(found: re.Match[str]) -> str:
    tables = {"foreign": seconds_table, "published": published_table}
    paths = sorted(RESULTS.glob(f"gpu_{found[2]}-*.json"), key=lambda path: path.stem[-10:])  # the day
    if not paths:
        return found[0]
    results = {**json.loads(paths[-1].read_text(encoding="utf-8")), "file": paths[-1].name}
    return f"{found[1]}{tables[found[2]](results)}\n{found[3]}"


def measured(results: dict[str, Any]) -> str:
    return f"{results['gpu']}, torch {results['torch_version']}, {results['date']} (`{results['file']}`)"


def seconds_table(results: dict[str, Any]) -> str:
    rows = [measured(results), "", "| check | verdict | seconds |", "|---|---|---|"]
    return "\n".join(rows + [f"| {v['name']} | {v['outcome']} | {v['wall_s']:.1f} |" for v in results["verdicts"]])


def published_table(results: dict[str, Any]) -> str:
    judged = [verdict for verdict in results["verdicts"] if verdict["by_tolerance"]]
    title = f"{len(judged)} of 12 have a verdict: {measured(results)}{results.get('about', '')}"
    rows = [title, "", f"| kernel | {' | '.join(TOLERANCES)} | beside the fastest mode of PyTorch that was ready |"]
    rows.append("|---" * (len(TOLERANCES) + 2) + "|")
    for verdict in judged:
        under = [short(verdict, name) for name in TOLERANCES]
        times = [beside(each) for each in verdict["times"].values()]
        rows.append(f"| {verdict['name']} | {' | '.join(under)} | {', '.join(times) or '-'} |")
    return "\n".join(rows)


def beside(time: dict[str, Any]) -> str:
    """Return a ratio with its claim, and the noise floor where that decided it."""
    x, claim = time["x"], str(time["x"]["claim"])
    is_apart = not x["low"] <= 1 <= x["high"]
    floor = f", noise floor {100 * x['noise_floor']:.0f} %" if claim == "no difference" and is_apart else ""
    return f"{x['value']:.2f}x {time['baseline']} ({claim}{floor})"


def short(verdict: dict[str, Any], tolerance: str) -> str:
    """Return one word or two for a verdict under a tolerance."""
    found = str(verdict["by_tolerance"].get(tolerance, verdict["outcome"]))
    if found == "correct" and "not-general" in verdict["findings"]:
        return "correct for the task"
    is_of_values = verdict["outcome"] in ("correct", "mismatch")
    return "correct" if found == "correct" else "incorrect" if is_of_values else verdict["outcome"]


if __name__ == "__main__":
    sys.exit(main())
