"""Measure what `kernel-lsp record` costs a program: `python benchmarks/record_overhead.py [--pairs 7]`.

Each workload runs in pairs, with and without the recorder, in alternating order. It prints the CPU seconds
of its loop: the import of torch is not in it, and other work on the machine counts less. One JSON line per
workload: both medians and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

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
START = "import time\nimport torch\nfrom model import Net, rms_norm\ntorch.manual_seed(0)\ntorch.set_num_threads(1)\n"
WORKLOADS = {
    "training": """
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for step in range(65):
    if step == 5:
        began = time.process_time()
    tokens = torch.randint(0, 1000, (4, 64))
    loss = torch.nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    "inference": """
net = Net().eval()
with torch.inference_mode():
    for step in range(310):
        if step == 10:
            began = time.process_time()
        net(torch.randint(0, 1000, (1, 64)))
""",
    "small calls": """
x, weight = torch.randn(16, 64), torch.ones(64)
for step in range(41_000):
    if step == 1_000:
        began = time.process_time()
    rms_norm(x, weight)
""",
}
END = "print(time.process_time() - began)\n"
DEADLINE_S = 300.0


def main() -> None:
    """Print one line per workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=7)
    n_pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyproject.toml").touch()
        Path(folder, "model.py").write_text(MODEL)
        for name, text in WORKLOADS.items():
            Path(folder, "program.py").write_text(START + text + END)
            print(json.dumps({"workload": name, **measure(Path(folder), n_pairs)}), flush=True)


def measure(folder: Path, n_pairs: int) -> dict[str, float]:
    """Return the medians of `program.py` and their ratio."""
    times: dict[bool, list[float]] = {False: [], True: []}
    for pair in range(n_pairs):
        for is_recorded in (False, True) if pair % 2 else (True, False):
            times[is_recorded].append(run(folder, is_recorded))
    plain, recorded = statistics.median(times[False]), statistics.median(times[True])
    ratios = sorted(b / a for a, b in zip(times[False], times[True], strict=True))
    return {
        "plain_s": round(plain, 4),
        "recorded_s": round(recorded, 4),
        "ratio_of_medians": round(recorded / plain, 4),
        "median_of_ratios": round(statistics.median(ratios), 4),
        "n_pairs": n_pairs,
    }


def run(folder: Path, is_recorded: bool) -> float:
    """Return the CPU seconds that the program reports."""
    recorder = [sys.executable, "-m", "kernel_lsp", "record", "--"] if is_recorded else []
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [*recorder, sys.executable, "program.py"]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    return float(done.stdout)


if __name__ == "__main__":
    main()
