"""Measure what `kernel-lsp record` costs a program: `python benchmarks/record_overhead.py [--device cuda]`.

One process runs blocks of steps in turn: of a program, of the same program once more, and of that program recorded.
Two processes, and two runs of one, differ by more than the recorder costs. The first block of each is a warm-up. Times
are wall-clock on a GPU, CPU seconds elsewhere, so that other work on the machine counts less. Prints one JSON line per
workload: microseconds of a step, and the median of the ratios to the program's blocks with its 95 % interval; that of
the program to itself says what noise does.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import kernel_lsp

INJECTED = Path(kernel_lsp.__file__).parent / "record" / "injected"
VARIANTS = ("plain", "plain_again", "recorded")
RECORDED = "recorded"
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


Step = Callable[[], Any]


def training(model: Any, device: str) -> tuple[Step, int]:
    """Return a training step, and the steps of a block."""
    net = model.Net(512 if device == "cuda" else 128).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)
    tokens = torch.randint(0, 1000, (8, 256) if device == "cuda" else (4, 64), device=device)

    def step() -> None:
        loss = torch.nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, 10


def inference(model: Any, device: str) -> tuple[Step, int]:
    """Return a call of a module whose 19 calls of targets take about 1 ms, and the calls of a block."""
    net = model.Net().to(device).eval()
    tokens = torch.randint(0, 1000, (1, 64), device=device)
    return torch.inference_mode()(lambda: net(tokens)), 40


def small_calls(model: Any, device: str) -> tuple[Step, int]:
    """Return a call of a function of five operators, and the calls of a block."""
    x, weight = torch.randn(16, 64, device=device), torch.ones(64, device=device)
    return (lambda: model.rms_norm(x, weight)), 1000


WORKLOADS = {"training": training, "inference": inference, "small calls": small_calls}


def main() -> None:
    """Print one line per workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20, help="of each workload")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--workload", choices=WORKLOADS, action="append")
    parser.add_argument("--out", type=Path, help="JSON file for the rows")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    sys.path[:0] = [str(INJECTED)]
    importlib.import_module("_kernel_lsp_calls").MAX_SHARE /= len(
        VARIANTS
    )  # of the time, recorded blocks have their part
    rows = []
    for name in asked.workload or WORKLOADS:
        rows.append({"workload": name, **measured(name, asked.device, asked.seconds)})
        print(json.dumps(rows[-1]), flush=True)
    if asked.out:
        gpu = torch.cuda.get_device_name() if asked.device == "cuda" else ""
        asked.out.write_text(json.dumps({"gpu": gpu, "torch": torch.__version__, "rows": rows}, indent=1) + "\n")


def measured(name: str, device: str, seconds: float) -> dict[str, Any]:
    """Run blocks of the variants in turn for so long, and return their summary."""
    clock = wall_clock if device == "cuda" else time.process_time
    with tempfile.TemporaryDirectory() as folder:
        steps: dict[str, tuple[Step, int]] = {}
        for variant in VARIANTS:  # each in a folder of its own, as the recorder wraps all of its workspace's modules
            own = Path(folder, variant)
            own.mkdir()
            recorder = start(str(own)) if variant == RECORDED else None
            module = f"model_{name.replace(' ', '_')}_{variant}"
            (own / f"{module}.py").write_text(MODEL)
            sys.path.insert(0, str(own))
            torch.manual_seed(0)
            steps[variant] = WORKLOADS[name](importlib.import_module(module), device)
            sys.path.remove(str(own))
        times: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        deadline, order = time.monotonic() + seconds, list(VARIANTS)
        while len(times[RECORDED]) < 4 or time.monotonic() < deadline:
            order = order[1:] + order[:1]
            for variant in order:
                recorder.is_on = variant == RECORDED
                times[variant].append(block(*steps[variant], clock))
        recorder.is_on = True
        recorder.finish()
        assert not recorder.error, recorder.error
    return summary({variant: values[1:] for variant, values in times.items()})


def block(step: Step, n_steps: int, clock: Callable[[], float]) -> float:
    """Return the seconds of a step, after one that is not measured."""
    step()
    began = clock()
    for _ in range(n_steps):
        step()
    return (clock() - began) / n_steps


def summary(times: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians of the variants' times and of their ratios to the plain blocks of the same turn.

    The intervals are order statistics of ranks n / 2 -+ 0.98 sqrt(n), which hold the median with 95 %.
    """
    found: dict[str, Any] = {"n_blocks": len(times["plain"])}
    for variant, values in times.items():
        ratios = sorted(own / plain for own, plain in zip(values, times["plain"], strict=True))
        rank = max(0, math.floor(len(ratios) / 2 - 0.98 * math.sqrt(len(ratios))))
        found[variant] = {
            "step_us": round(statistics.median(values) * 1e6, 1),
            "ratio": round(statistics.median(ratios), 4),
            "interval": [round(ratios[rank], 4), round(ratios[-1 - rank], 4)],
        }
    return found


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
