"""Measure what `kernel-lsp record` costs five whole programs: `python benchmarks/record_programs.py [--pairs 6]`.

A training loop, an inference script, pytest, the cells of a notebook, and a program that raises at its end. Each runs
in turn without and with the recorder, in the order A-B-B-A, as a process of its own; times are the CPU seconds of that
process from its start to its end, imports and the last write included, so that other work on the machine counts less.
Prints one JSON line per program: CPU seconds without, and the median of the pairs' ratios with their range.
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
from typing import Any

from record_overhead import INJECTED, MODEL

from kernel_lsp.record.run import VARIABLE

HEAD = "import torch\nfrom model import Net\n\ntorch.set_num_threads(1)\ntorch.manual_seed(0)\n"
TRAIN = """
net, tokens = Net(), torch.randint(0, 1000, (4, 64))
optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
for step in range(60):
    loss = torch.nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
INFER = """
net, tokens = Net().eval(), torch.randint(0, 1000, (1, 64))
with torch.inference_mode():
    for step in range(600):
        net(tokens)
"""
TESTS = """
import pytest


@pytest.mark.parametrize("batch", range(1, 9))
def test_it_is_finite(batch):
    net = Net().eval()
    with torch.no_grad():
        for _ in range(15):
            assert net(torch.randint(0, 1000, (batch, 32))).isfinite().all()
"""
CELLS = [
    f"{HEAD}net, tokens = Net().eval(), torch.randint(0, 1000, (1, 64))",
    *["for _ in range(150): net(tokens)"] * 4,
]
NOTEBOOK = f"for cell in {CELLS!r}:\n    exec(compile(cell, '<cell>', 'exec'), globals())\n"
RAISES = f'{HEAD}{TRAIN}\nraise RuntimeError("after 60 steps")\n'
FILES = {"train": HEAD + TRAIN, "infer": HEAD + INFER, "test_net": HEAD + TESTS, "cells": NOTEBOOK, "raises": RAISES}
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_net.py")
PROGRAMS = {
    "a training loop": ("train.py",),
    "an inference script": ("infer.py",),
    "pytest": PYTEST,
    "the cells of a notebook": ("cells.py",),
    "a program that raises": ("raises.py",),
}


def main() -> None:
    """Print one line per program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6, help="of each program")
    parser.add_argument("--program", choices=PROGRAMS, action="append")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {"model": MODEL, **FILES}.items():
            Path(folder, f"{name}.py").write_text(text)
        for program in asked.program or PROGRAMS:
            print(json.dumps({"program": program, **measured(Path(folder), program, asked.pairs)}), flush=True)


def measured(folder: Path, program: str, n_pairs: int) -> dict[str, Any]:
    """Run a program in pairs, after one pair that only fills caches; return their summary."""
    pairs = []
    for number in range(n_pairs + 1):
        order = (False, True) if number % 2 else (True, False)
        found = {recorded: cpu_seconds(folder, program, recorded=recorded) for recorded in order}
        pairs.append((found[False], found[True]))
    ratios = sorted(recorded / plain for plain, recorded in pairs[1:])
    return {
        "n_pairs": n_pairs,
        "plain_s": round(statistics.median(plain for plain, _ in pairs[1:]), 2),
        "ratio": round(statistics.median(ratios), 3),
        "range": [round(ratios[0], 3), round(ratios[-1], 3)],
    }


def cpu_seconds(folder: Path, program: str, *, recorded: bool) -> float:
    """Return the CPU seconds of one run. Raises AssertionError unless it ended as it should, recorded if asked for."""
    with tempfile.TemporaryDirectory() as parts:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if recorded:
            request = {"root": os.path.realpath(folder), "parts": parts, "steps": 0, "is_limited": False}
            environment.update({VARIABLE: json.dumps(request), "PYTHONPATH": str(INJECTED)})
        command = [sys.executable, *PROGRAMS[program]]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, cwd=folder, env=environment, **quiet) as process:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == int(program == "a program that raises"), process.returncode
        assert bool([*Path(parts).glob("*.json")]) == recorded
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
