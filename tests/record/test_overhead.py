"""Check the cost of recording by counts instead of times: signatures taken, and steps timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.record.run import INJECTED
from tests.record.programs import MODEL

COUNT = """
import importlib, json, pickle, sys, types
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

timed = []

class Sample(calls.Sample):
    def __init__(self, torch, on_cuda, weight):
        timed.append((recorder.n_steps, weight))
        super().__init__(torch, on_cuda, weight)

calls.signature = recorders.signature = signature
recorders.Sample = Sample
calls.time = recorders.time = clock
recorder = recorders.Recorder(sys.argv[1], sys.argv[1], 0)
sys.meta_path.insert(0, recorders.Finder(recorder))
recorder.install(torch)
model = importlib.import_module("model")
net, n_unwrapped, held = model.Net(8).eval(), 0, model.rms_norm
with torch.inference_mode():
    for step in range(2000):
        clock.now += 0.1
        net(torch.zeros(1 + (step == 1999), 4, dtype=torch.int64))
        n_unwrapped += "__call__" not in vars(model.RMSNorm)
        pickle.dumps(held), pickle.dumps(model.rms_norm)  # by their name, which has to be theirs at each moment
n_calls = {key: target.n_calls for key, target in recorder.targets.items()}
counts = sorted(c.n_calls for c in recorder.targets["model.py::rms_norm"].configurations.values())
recorder.finish()
print(json.dumps([n_calls, counts, n_signatures, timed, recorder.budget.own_s, clock.now, n_unwrapped]))
"""
"""A program of steps of 0.1 s, whose clock advances by 1 ms whenever the recorder reads it, too."""


def count(folder: Path) -> Any:
    (folder / "model.py").write_text(MODEL)
    path = os.pathsep.join((str(INJECTED), str(folder)))
    command = [sys.executable, "-c", COUNT, str(folder)]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_calls_alike_cost_one_signature_in_eight_and_timing_a_bounded_share(tmp_path: Path) -> None:
    n_calls, counts, n_signatures, timed, own_s, elapsed_s, n_unwrapped = count(tmp_path)
    assert set(n_calls.values()) == {2000}
    assert counts == [1, 1999], "a call of another shape is counted for its own configuration"
    assert n_signatures < 2000 + 4000 / 8 + 200, "each step begins with one"
    assert len(timed) >= 4, "and is still enough to rank by"
    n_stood_for = list(accumulate(weight for _, weight in timed))
    assert all(n <= step for n, (step, _) in zip(n_stood_for, timed, strict=True)), "no step is counted twice"
    assert n_unwrapped > 1800, "a wrapper that only counts is 9 % of an inference of 0.8 ms with 19 of them"
    assert own_s < 0.03 * elapsed_s + 0.02, "the share of the docs, and the first steps"


ALTERNATING = """
import sys, types
import torch
import _kernel_lsp_calls as calls

n_interruptions = 0

def is_grad_enabled():
    global n_interruptions
    if n_interruptions:
        n_interruptions -= 1
        wrapper(x)  # as another thread would that runs now
    return True

target = types.SimpleNamespace(seen={}, rests=False)
recorder = types.SimpleNamespace(
    call=lambda target, owner, function, args, kwargs: function(*args),
    gate=[1 << 30], granted=calls.Granted(), compiling=lambda: False, traced=lambda: False,
    tensor_types=(torch.Tensor,), torch=types.SimpleNamespace(is_grad_enabled=is_grad_enabled),
)
wrapper = calls.wrapped(lambda x: x, target, recorder)
x, other = torch.ones(3), torch.ones(3, dtype=torch.float64)
for each in (x, other):
    target.seen[calls.signature((torch.Tensor,), (True,), (each,), {})] = types.SimpleNamespace(n_calls=0)
one, two = target.seen.values()
for _ in range(calls.N_ALIKE + 1 + calls.N_UNCHECKED - 1):
    wrapper(x)
n_interruptions = 1
wrapper(x)
for _ in range(1000):
    wrapper(other)
print(two.n_calls)


class Odd:
    @property
    def shape(self):
        raise ValueError("no shape yet")


for _ in range(calls.N_ALIKE + 2):
    wrapper(x)
wrapper(Odd())
"""


def test_two_threads_at_once_do_not_end_the_signatures_and_no_shape_ends_the_program(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ALTERNATING]
    environment = {**os.environ, "PYTHONPATH": str(INJECTED)}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 900


CYCLE = """
import types
import torch
import _kernel_lsp_calls as calls

CYCLE = 64
x = torch.ones(3)
for place in range(CYCLE):
    target = types.SimpleNamespace(seen={}, rests=False)
    usual, other = types.SimpleNamespace(n_calls=0), types.SimpleNamespace(n_calls=0)
    recorder = types.SimpleNamespace(
        call=lambda *_: None, gate=[1 << 30], granted=calls.Granted(), compiling=lambda: False, traced=lambda: False,
        tensor_types=(torch.Tensor,), torch=torch,
    )
    wrapper = calls.wrapped(lambda x, scale: x, target, recorder)
    for scale, found in ((1.0, usual), (0.5, other)):
        target.seen[calls.signature((torch.Tensor,), (True,), (x, scale), {})] = found
    for step in range(64 * CYCLE):
        wrapper(x, 0.5 if step % CYCLE == place else 1.0)
    assert other.n_calls, f"call {place} of each {CYCLE}"
    recorder.granted.settle(recorder.gate)
    assert usual.n_calls + other.n_calls == 64 * CYCLE == (1 << 30) - recorder.gate[0]
"""


def test_a_call_at_the_same_place_of_a_cycle_is_met(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(INJECTED)}
    ran = subprocess.run([sys.executable, "-c", CYCLE], env=environment, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr


MIXED = """
import importlib, json, sys
import torch
import _kernel_lsp_recorder as recorders

recorder = recorders.Recorder(sys.argv[1], sys.argv[1], 0)
sys.meta_path.insert(0, recorders.Finder(recorder))
recorder.install(torch)
mixed = importlib.import_module("mixed")
net, parameter = mixed.Net(), torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([parameter], 0.0)
for step in range(600):
    net(torch.ones(2, 4))
    if sys.argv[2] != "nested":
        mixed.scale(torch.ones(3, 4))
    if sys.argv[2] == "training":
        parameter.grad = torch.zeros(4)
        optimizer.step()
    if step % 100 == 99:
        with torch.no_grad():
            net.eval()(torch.ones(5, 4), 0)
        net.train()
recorder.finish()
calls = {key: {c.as_json(True)["inputs"] + c.mode: c.n_calls for c in target.configurations.values()}
         for key, target in recorder.targets.items()}
print(json.dumps([calls, recorder.n_steps, hasattr(mixed.shift, "__wrapped__"), "__call__" in vars(mixed.Part)]))
"""
MIXED_MODEL = """
import torch


def shift(x):
    return x + 1


def scale(x):
    return x * 2


class Part(torch.nn.Module):
    def forward(self, x):
        return scale(shift(x))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.held = Part(), shift

    def forward(self, x, step: int = 0):
        return self.held(self.part(x))
"""


@pytest.mark.parametrize("kind", ["training", "inference", "nested"])
def test_rests_change_no_counts(tmp_path: Path, kind: str) -> None:
    """A function that is called outermost and inside, one that a module holds, and an evaluation now and then."""
    (tmp_path / "mixed.py").write_text(MIXED_MODEL)
    path = os.pathsep.join((str(INJECTED), str(tmp_path)))
    command = [sys.executable, "-c", MIXED, str(tmp_path), kind]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    calls, n_steps, *left = json.loads(ran.stdout)
    calls = {key.split("::")[1]: found for key, found in calls.items()}
    assert left == [False, False], "no wrapper is left behind"
    assert calls["Net"] == {"x=f32[2, 4]training": 600, "x=f32[5, 4], step=0eval": 6}
    assert calls["Part"] == {"x=f32[2, 4]training": 600, "x=f32[5, 4]eval": 6}
    assert calls["shift"] == {"x=f32[2, 4]": 1200, "x=f32[5, 4]": 12}
    outermost = {} if kind == "nested" else {"x=f32[3, 4]": 600}
    assert calls["scale"] == {"x=f32[2, 4]": 600, "x=f32[5, 4]": 6, **outermost}
    assert n_steps == {"training": 600, "inference": 1206, "nested": 606}[kind]


OFTEN = """
import importlib, json, sys
import torch
import _kernel_lsp_calls as calls, _kernel_lsp_recorder as recorders

n_signatures, n_timed, taken = 0, 0, calls.signature

def signature(*parts):
    global n_signatures
    n_signatures += 1
    return taken(*parts)

class Sample(calls.Sample):
    def __init__(self, *given):
        global n_timed
        n_timed += 1
        super().__init__(*given)

calls.signature = recorders.signature = signature
recorders.Sample = Sample
recorder = recorders.Recorder(sys.argv[1], sys.argv[1], 0)
sys.meta_path.insert(0, recorders.Finder(recorder))
recorder.install(torch)
small = importlib.import_module("small")
x, written, ahead, (target,) = torch.ones(3), recorder.write, [], recorder.targets.values()

def write(is_last):
    ahead.append(target.n_calls - step - 1)
    written(is_last)

recorder.write = write
for step in range(N_CALLS):
    small.scale(x if step % 997 else torch.ones(4))
    if step == N_CALLS // 2:
        before, recorder.flushed = (n_signatures, n_timed), -100.0
recorder.finish()
found = sorted(c.n_calls for c in target.configurations.values())
print(json.dumps([found, recorder.n_steps, n_signatures - before[0], n_timed - before[1], max(ahead)]))
"""


def test_a_function_seen_often_costs_less_at_each_call_and_each_is_counted(tmp_path: Path) -> None:
    """Calls of another shape between them are counted for their own configuration, and no part has calls to come."""
    n_calls = 60_000
    (tmp_path / "small.py").write_text("def scale(x):\n    return x\n")
    path = os.pathsep.join((str(INJECTED), str(tmp_path)))
    command = [sys.executable, "-c", OFTEN.replace("N_CALLS", str(n_calls)), str(tmp_path)]
    ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    counts, n_steps, n_signatures, n_timed, ahead = json.loads(ran.stdout)
    n_others = len(range(0, n_calls, 997))
    assert counts == [n_others, n_calls - n_others]
    assert n_steps == n_calls
    assert n_signatures < n_calls / 2 / 7
    assert n_timed <= n_calls / 2 / 1024 + 1
    assert ahead <= 0, "a part that is written meanwhile has no calls to come"
