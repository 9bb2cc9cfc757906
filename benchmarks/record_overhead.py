"""Measure what `kernel-lsp record` costs a program: `python benchmarks/record_overhead.py [--device cuda]`.

Each workload runs in pairs, with and without the recorder, in alternating order and in one process: two processes
differ by more than the recorder costs. Workloads take turns, pair by pair, and garbage is collected before each run.
Times are of the workload's loop, its first step included: wall-clock on a GPU, CPU seconds elsewhere, so that other
work on the machine counts less. Prints one JSON line per workload, with a 95 % interval of the median of the ratios.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import kernel_lsp

INJECTED = Path(kernel_lsp.__file__).parent / "record" / "injected"
MODEL = """
import torch
from torch import nn


def rms_norm(x, weight, eps: float = 1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return rms_norm(x, self.weight)


class Block(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.up, self.down = RMSNorm(dim), nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, dim=128, n=6):
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, dim), nn.Linear(dim, 1000)
        self.blocks = nn.ModuleList([Block(dim) for _ in range(n)])

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""


Clock = Callable[[], float]


def training(n_steps: int, model: Any, device: str, clock: Clock) -> float:
    """Train for some steps; return the seconds they take."""
    net = model.Net(512 if device == "cuda" else 128).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)
    tokens = torch.randint(0, 1000, (8, 256) if device == "cuda" else (4, 64), device=device)
    began = clock()
    for _ in range(n_steps):
        loss = torch.nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return clock() - began


def inference(model: Any, device: str, clock: Clock) -> float:
    """Call a module 400 times."""
    net = model.Net().to(device).eval()
    tokens = torch.randint(0, 1000, (1, 64), device=device)
    with torch.inference_mode():
        began = clock()
        for _ in range(400):
            net(tokens)
        return clock() - began


def small_calls(model: Any, device: str, clock: Clock) -> float:
    """Call a function of five operators 20,000 times."""
    x, weight = torch.randn(16, 64, device=device), torch.ones(64, device=device)
    began = clock()
    for _ in range(20_000):
        model.rms_norm(x, weight)
    return clock() - began


WORKLOADS: dict[str, Callable[[Any, str, Clock], float]] = {
    "40 training steps": partial(training, 40),
    "300 training steps": partial(training, 300),
    "400 inference calls": inference,
    "20,000 small calls": small_calls,
}


def main() -> None:
    """Print one line per workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further pairs after this long")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workload", choices=WORKLOADS, action="append", help="named twice, it has twice the pairs")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sys.path[:0] = [str(INJECTED)]
    deadline = time.monotonic() + asked.seconds
    names = asked.workload or list(WORKLOADS)
    runs: dict[str, list[tuple[Run, Run]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model.py").write_text(MODEL)
        sys.path[:0] = [folder]
        for name in names * (asked.pairs + 1):
            if len(runs[name]) < 2 or time.monotonic() < deadline:
                order = (False, True) if len(runs[name]) % 2 else (True, False)
                found = {is_recorded: run(name, folder, asked.device, is_recorded) for is_recorded in order}
                runs[name].append((found[False], found[True]))
    for name, pairs in runs.items():  # the first pair is a warm-up
        print(json.dumps({"workload": name, **summary(pairs[1:])}), flush=True)


@dataclass(frozen=True)
class Run:
    """Seconds of a workload's loop, and what the recorder says of itself: seconds that timing cost, timed steps."""

    seconds: float
    own_s: float = 0.0
    n_timed: int = 0


def summary(pairs: list[tuple[Run, Run]]) -> dict[str, Any]:
    """Return medians of a workload's times and of the ratios of its pairs, with an interval from order statistics."""
    ratios = sorted(recorded.seconds / plain.seconds for plain, recorded in pairs)
    rank = max(0, math.floor(len(ratios) / 2 - 0.98 * math.sqrt(len(ratios))))
    return {
        "n_pairs": len(ratios),
        "plain_s": round(statistics.median(plain.seconds for plain, _ in pairs), 4),
        "recorded_s": round(statistics.median(recorded.seconds for _, recorded in pairs), 4),
        "median_of_ratios": round(statistics.median(ratios), 4),
        "interval": [round(ratios[rank], 4), round(ratios[-1 - rank], 4)],
        "own_share_of_timing": round(statistics.median(each.own_s / each.seconds for _, each in pairs), 4),
        "n_timed": statistics.median(each.n_timed for _, each in pairs),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def run(name: str, folder: str, device: str, is_recorded: bool) -> Run:
    """Run a workload once, on a model imported anew, as the recorder wraps what is imported."""
    sys.modules.pop("model", None)
    gc.collect()
    recorder = start(folder) if is_recorded else None
    try:
        torch.manual_seed(0)
        model = importlib.import_module("model")
        seconds = WORKLOADS[name](model, device, wall_clock if device == "cuda" else time.process_time)
    finally:
        if recorder is not None:
            recorder.finish()
            assert not recorder.error, recorder.error
    return Run(seconds) if recorder is None else Run(seconds, recorder.budget.own_s, recorder.budget.n_timed)


def start(folder: str) -> Any:
    """Start a recorder as `sitecustomize` does, in a process that has imported torch."""
    found = importlib.import_module("_kernel_lsp_recorder")
    recorder = found.Recorder(folder, folder, 0)
    sys.meta_path.insert(0, found.Finder(recorder))
    recorder.install(torch)
    return recorder


def wall_clock() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    main()
