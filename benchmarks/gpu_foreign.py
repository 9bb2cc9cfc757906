"""Verdicts on kernels with host code of their own, on a GPU: how long each takes, cold and warm, and what it says.

    python3 benchmarks/gpu_foreign.py [--out FOLDER] [--torch-too]

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
TORCH_BUILD = """
import sys, time
from torch.utils.cpp_extension import load
started = time.monotonic()
load(name="rms_norm_by_torch", sources=[sys.argv[1]], build_directory=sys.argv[2], verbose=False)
print(time.monotonic() - started)
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--torch-too", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: run this on a machine with a GPU", file=sys.stderr)
        return 2
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
    command = [sys.executable, "-m", "kernel_lsp", "check", str(kernel), "--task", target, "--json"]
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
    verdict = json.loads(said) if said else {"outcome": {"kind": "none", "message": complaint}}
    outcome = verdict["outcome"]["kind"]
    times = {
        operation: {"ours_us": each["ours"]["time_us"], "baseline": each["baseline_name"], "x": each["ratio"]}
        for operation, each in verdict.get("times", {}).items()
    }
    found = {
        "name": name,
        "outcome": outcome,
        "message": verdict["outcome"].get("message", ""),
        "is_as_it_should_be": bool(re.fullmatch(expected, outcome)),
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


def write_results(found: list[dict[str, Any]], by_torch_s: float | None, folder: Path) -> Path:
    """One JSON file, named after the day and the GPU."""
    gpu, date = torch.cuda.get_device_name(), datetime.date.today().isoformat()
    content = {
        "schema_version": 1,
        "kind": "measured",
        "gpu": gpu,
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "date": date,
        "task": TARGET,
        "method": "wall time of `kernel-lsp check --json` as a process of its own; torch.compile baselines not awaited",
        "by_torch_build_s": by_torch_s,
        "verdicts": found,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpu_foreign-{re.sub(r'[^a-z0-9]+', '_', gpu.lower())}-{date}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
