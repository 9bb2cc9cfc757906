"""Packages of operators on a GPU: built, tested by their own tests, and timed per call beside native operators.

    python3 benchmarks/gpu_package.py [--out FOLDER]

Exports each kernel below as a package and as one file, builds the package's wheel against the PyTorch here, installs it
beside, runs its tests, and times calls on small tensors, where the host is all that counts. Packages are built side by
side, then tested and timed one after the other. The result is one JSON file under ``benchmarks/results``, written anew
after each; the exit status is 1 when something failed, 2 without a GPU.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
KERNELS = {
    "rms_norm": ("tests/export/rms_norm.cu", "benchmarks/targets/small_rms_norm.py::rms_norm"),
    "row_softmax": ("examples/row_softmax.cu", "examples/row_softmax.py::row_softmax"),
}
"""Name -> kernel, and what it computes."""
MAX_RATIO = 2.0
"""Maximum ratio of our time per call to that of a native operator with as many arguments."""
STEP_DEADLINE_S = 240
TIMES = """
import json, statistics, sys, time, torch
sys.path[:0] = [{site!r}, {one_file!r}]
import {package} as package
import torch.nn.functional as F
N_CALLS, N_ROUNDS = 2000, 15
x, y, weight = (torch.randn(*shape, device="cuda") for shape in ((64, 128), (64, 128), (128,)))
arguments = (x, weight, 1e-6) if "{name}" == "rms_norm" else (x,)
leaves = tuple(a.clone().requires_grad_() if isinstance(a, torch.Tensor) else a for a in arguments)
sys.modules.pop("{name}", None)
one_file = __import__("{name}")
natives = {{"torch.add": lambda: torch.add(x, y), "torch.softmax": lambda: torch.softmax(x, -1)}}
if hasattr(torch, "rms_norm"):
    natives["torch.rms_norm"] = lambda: torch.rms_norm(x, (128,), weight, 1e-6)
native_leaf = x.clone().requires_grad_()
calls = {{
    **natives,
    "package": lambda: package.{name}(*arguments),
    "package operator": lambda: torch.ops.{package}.{name}.default(*arguments),
    "one file": lambda: one_file.{name}(*arguments),
    "one-file operator": lambda: torch.ops.kernel_lsp.{name}(*arguments),
    "torch.softmax with gradient": lambda: torch.softmax(native_leaf, -1),
    "package with gradient": lambda: package.{name}(*leaves),
    "one file with gradient": lambda: one_file.{name}(*leaves),
}}
samples = {{name: [] for name in calls}}
for name, call in calls.items():
    for _ in range(200):
        call()
for _ in range(N_ROUNDS):  # in turn, so that what else the machine does meets all alike
    for name, call in calls.items():
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(N_CALLS):
            call()
        torch.cuda.synchronize()
        samples[name].append((time.perf_counter() - started) / N_CALLS * 1e6)
print(json.dumps({{name: round(statistics.median(found), 3) for name, found in samples.items()}}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device: run this on a machine with a GPU", file=sys.stderr)
        return 2
    packages: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        for found in list(pool.map(lambda name: built(name, Path(folder) / name), KERNELS)):
            packages.append(examine(found, Path(folder) / found["name"]))
            path = write_results(packages, options.out)
    print(f"{path}: {sum(not package['is_good'] for package in packages)} of {len(packages)} packages fall short")
    return 0 if all(package["is_good"] for package in packages) else 1


def built(name: str, folder: Path) -> dict[str, Any]:
    """One package and its one-file form, both ready to be used, and how long each step took."""
    folder.mkdir()
    kernel, target = (str(ROOT / part) for part in KERNELS[name])
    found: dict[str, Any] = {"name": name, "steps_s": {}}
    source, site, one_file = folder / "source", folder / "site", folder / "one_file"
    export = [sys.executable, "-m", "kernel_lsp", "export", kernel, "--task", target, "--device", "cpu"]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    steps = {
        "export": [*export, "--package", str(source)],
        "export one file": [*export, "--operator", str(one_file)],
        "wheel": [*pip, "wheel", "--no-build-isolation", "--no-deps", "--no-index", "-w", str(folder), str(source)],
    }
    for step, command in steps.items():
        found["steps_s"][step] = step_s(command)
    wheel = str(next(folder.glob("*.whl")))
    found["steps_s"]["install"] = step_s([*pip, "install", "--no-deps", "--no-index", "--target", str(site), wheel])
    return found


def examine(found: dict[str, Any], folder: Path) -> dict[str, Any]:
    """With what its own tests say, and its times: nothing is built beside."""
    name = found["name"]
    source, site, one_file = folder / "source", folder / "site", folder / "one_file"
    found["tests"] = own_tests(source, site)
    found["host_us_per_call"] = times(name, site, one_file)
    natives = {key: value for key, value in found["host_us_per_call"].items() if re.fullmatch(r"torch\.\w+", key)}
    alike = "torch.rms_norm" if name == "rms_norm" and "torch.rms_norm" in natives else "torch.softmax"
    package_us = found["host_us_per_call"]["package"]
    found["ratio_to"] = {key: round(package_us / value, 3) for key, value in natives.items()}
    found["of_the_same_arity"] = alike
    found["is_good"] = found["tests"]["status"] == 0 and found["ratio_to"][alike] <= MAX_RATIO
    print(json.dumps(found), flush=True)
    return found


def step_s(command: list[str]) -> float:
    """Return the seconds of a command that must succeed."""
    started = time.monotonic()
    run(command)
    return round(time.monotonic() - started, 3)


def own_tests(source: Path, site: Path) -> dict[str, Any]:
    """Run the package's own tests: opcheck, gradients, compile, streams, threads."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(source / "tests")]
    started = time.monotonic()
    done = run(command, site=site, must_succeed=False)
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-300:]]
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return {"status": done.returncode, "said": last[0], "failed": failed, "s": round(time.monotonic() - started, 3)}


def times(name: str, site: Path, one_file: Path) -> dict[str, float]:
    """Host time per call in microseconds."""
    text = TIMES.format(site=str(site), one_file=str(one_file), name=name, package=f"{name}_cuda")
    return json.loads(run([sys.executable, "-c", text]).stdout.splitlines()[-1])


def run(command: list[str], *, site: Path | None = None, must_succeed: bool = True) -> subprocess.CompletedProcess[str]:
    paths = [str(site)] if site else []
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", ""), str(ROOT)]),
        "KERNEL_LSP_PYTHON": sys.executable,
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=STEP_DEADLINE_S)
    if must_succeed and done.returncode:
        raise RuntimeError(f"{command[:4]}...: {done.stdout[-1500:]}{done.stderr[-2500:]}")
    return done


def write_results(packages: list[dict[str, Any]], folder: Path) -> Path:
    """One JSON file, named after the day and the GPU."""
    gpu, date = torch.cuda.get_device_name(), datetime.date.today().isoformat()
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        timeout=30,
    )
    content = {
        "schema_version": 1,
        "kind": "measured",
        "gpu": gpu,
        "driver": driver.stdout.strip(),
        "torch_version": torch.__version__,
        "cuda_version": torch.version.cuda,
        "python_version": sys.version.split()[0],
        "date": date,
        "method": "host time per call of 2,000 calls and a synchronization, f32[64, 128], median of 15 rounds in turn",
        "packages": packages,
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gpu_package-{re.sub(r'[^a-z0-9]+', '_', gpu.lower())}-{date}.json"
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    sys.exit(main())
