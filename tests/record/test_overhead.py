"""What the recorder does for a program's calls, in work that it counts itself: signatures taken, and steps timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from kernel_lsp.record.run import INJECTED
from tests.record.programs import MODEL

COUNT = """
import importlib, json, sys, types
import torch
import _kernel_lsp_calls as calls, _kernel_lsp_recorder as recorders

class Clock:
    now = n_reads = 0

    def perf_counter(self):
        self.now, self.n_reads = self.now + 0.001, self.n_reads + 1
        return self.now

n_signatures, taken, clock = 0, calls.signature, Clock()

def signature(*parts):
    global n_signatures
    n_signatures += 1
    return taken(*parts)

calls.signature = recorders.signature = signature
calls.time = recorders.time = clock
recorder = recorders.Recorder(sys.argv[1], sys.argv[1], 0)
sys.meta_path.insert(0, recorders.Finder(recorder))
recorder.install(torch)
net = importlib.import_module("model").Net(8).eval()
with torch.inference_mode():
    for step in range(2000):
        net(torch.zeros(1 + (step == 1999), 4, dtype=torch.int64))
n_calls = {key: target.n_calls for key, target in recorder.targets.items()}
counts = sorted(c.n_calls for c in recorder.targets["model.py::rms_norm"].configurations.values())
recorder.finish()
print(json.dumps([n_calls, counts, n_signatures, recorder.budget.n_timed, recorder.budget.own_s, clock.now]))
"""
"""A program whose clock advances by 1 ms whenever the recorder reads it."""


def count(folder: Path) -> Any:
    (folder / "model.py").write_text(MODEL)
    path = os.pathsep.join((str(INJECTED), str(folder)))
    command = [sys.executable, "-c", COUNT, str(folder)]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_calls_alike_cost_one_signature_in_eight_and_timing_a_bounded_share(tmp_path: Path) -> None:
    n_calls, counts, n_signatures, n_timed, own_s, elapsed_s = count(tmp_path)
    assert set(n_calls.values()) == {2000}
    assert counts == [1, 1999], "a call of another shape is counted for its own configuration"
    assert n_signatures < 2000 + 4000 / 8 + 200, "each step begins with one"
    assert n_timed >= 4, "and is still enough to rank by"
    assert own_s < 0.03 * elapsed_s + 0.02, "the share of the docs, and the first steps"
