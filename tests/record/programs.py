"""Programs to record, in a workspace of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_lsp.core.recording import RecordedConfiguration, RecordedTarget, Recording
from kernel_lsp.source.recorded import read_recording

DEADLINE_S = 240.0

MODEL = """
import torch
from torch import nn


def rms_norm(x, weight, eps: float = 1e-6):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return rms_norm(x, self.weight, self.eps)


class Scale(nn.Module):
    def forward(self, x):
        return x * 3


class Net(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.embed = nn.Embedding(50, dim)
        self.norm = RMSNorm(dim)
        self.head = nn.Linear(dim, 50)

    def forward(self, tokens):
        return self.head(self.norm(self.embed(tokens)))
"""
LITERALS = """
import functools
import torch
from torch import nn


def resize(x, size, mode="nearest", mask=None):
    return nn.functional.interpolate(x, size, mode=mode)


def plain(x):
    return x


class Stack(nn.Module):
    def __init__(self, widths, norm, act=nn.GELU, options={}, gate=plain, bias=None, skip=None, **more):
        super().__init__()
        self.layers = nn.Sequential(*[norm(width) for width in widths], act())

    def forward(self, x, scales):
        return self.layers(x) * scales[0]


stack = Stack([4, 4], functools.partial(nn.LayerNorm, eps=1e-3), nn.ReLU, {"p": 0.5}, skip=(1,), bias=False, kind="b")
small = Stack([4], nn.LayerNorm, gate=lambda x: x)
for step in range(3):
    resize(torch.randn(1, 2, 4, 4), (8, 8), "bilinear", None)
    resize(torch.randn(1, 2, 4, 4), torch.Size((2, 2)))
    stack(torch.randn(2, 4), [2.0, 3])
    small(torch.randn(2, 4), [2.0])
"""
TRAIN = """
import torch
from model import Net

torch.manual_seed(0)
net = Net(32)
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
for step in range(40):
    tokens = torch.randint(0, 50, (8 if step % 8 else 3, 16))
    loss = torch.nn.functional.cross_entropy(net(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item().hex(), [p.detach().double().sum().item().hex() for p in net.parameters()])
"""
INFER = """
import atexit
import sys


def report():
    import torch.optim.optimizer as optimizer
    print(scale.__code__.co_filename.endswith("infer.py"), "__call__" in vars(Gate), sys.gettrace())
    print(torch.nn.Module.__init__.__qualname__, len(optimizer._global_optimizer_post_hooks), len(sys.path_hooks))
    print([type(finder).__name__ for finder in sys.meta_path if "kernel_lsp" in type(finder).__module__])


atexit.register(report)
import torch


def scale(x, *, by=2.0):
    return torch.relu(x * by)


class Gate(torch.nn.Module):
    def forward(self, x, gate=None):
        return x * torch.sigmoid(gate)


x = torch.linspace(-1, 1, 64).reshape(16, 4).T
for _ in range(20):
    y = scale(x, by=3.0)
gate = Gate().eval()
with torch.inference_mode():
    for _ in range(10):
        y = gate(y, gate=x)
print(y.double().sum().item().hex())
"""
NESTED = """
import torch


class Net(torch.nn.Module):
    class Block(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(width))

        def forward(self, x):
            return x * self.weight

    def __init__(self):
        super().__init__()
        self.block = self.Block(8)

    def forward(self, x):
        return self.block(x)


net = Net().eval()
with torch.inference_mode():
    for _ in range(3):
        y = net(torch.ones(4, 8))
print(y.sum().item())
"""
TESTS = """
import torch
from model import RMSNorm, Scale


def test_rows():
    assert RMSNorm(8)(torch.ones(4, 8)).shape == (4, 8)


def test_fails():
    assert RMSNorm(16)(torch.ones(2, 16)).sum() == 0


def test_scale():
    assert Scale()(torch.ones(64, 64)).sum() == 4096 * 3
"""
CELLS = json.dumps(
    ["import torch\nfrom model import rms_norm", "for _ in range(5):\n    rms_norm(torch.ones(4, 8), torch.ones(8))"]
)
NOTEBOOK = f"import json\nfor cell in json.loads({CELLS!r}):\n    exec(compile(cell, '<cell>', 'exec'), globals())"
RAISES = """
import torch
from model import rms_norm

rms_norm(torch.ones(4, 8), torch.ones(8))
rms_norm(torch.ones(4, 8), torch.ones(9))
"""
ENDLESS = """
import torch
from model import rms_norm

try:
    while True:
        rms_norm(torch.ones(64, 64), torch.ones(64))
        open("called", "w").close()
finally:
    print("cleaned up")
"""


@dataclass(frozen=True)
class Ran:
    """A finished program, recorded or not."""

    status: int
    stdout: str
    stderr: str
    recording: Recording | None

    def configurations(self, target: str) -> list[tuple[str, int]]:
        assert self.recording is not None, self.stderr
        return [(each.inputs, each.n_calls) for each in self.recording.targets[target].configurations]

    def share(self, target: str) -> float:
        assert self.recording is not None, self.stderr
        return self.recording.targets[target].share


def workspace(folder: Path, **programs: str) -> Path:
    """Make a workspace of `model.py` and other programs."""
    (folder / "pyproject.toml").write_text("")
    for name, text in {"model": MODEL, **programs}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def start(folder: Path, *arguments: str, is_recorded: bool = True) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "kernel_lsp", "record", *arguments] if is_recorded else [*arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": hear_interrupts}
    return subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **pipes)  # type: ignore[call-overload,no-any-return]


def hear_interrupts() -> None:
    """Undo what a shell does to tests in its background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(process: subprocess.Popen[str], folder: Path) -> Ran:
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    return Ran(process.returncode, stdout, stderr, read_recording(folder))


def run(folder: Path, *arguments: str, is_recorded: bool = True) -> Ran:
    return finish(start(folder, *arguments, is_recorded=is_recorded), folder)


def edit(file: Path, **changes: object) -> None:
    """Change fields of a recording's first target."""
    content = json.loads(file.read_text())
    next(iter(content["targets"].values())).update(changes)
    file.write_text(json.dumps(content, indent=1))


def recording_of(**targets: dict[str, Any]) -> Recording:
    """Return a recording of targets by ``file__symbol``; each has `share` and `inputs`, a configuration per text."""
    return Recording(
        version=1,
        command=("python", "train.py"),
        date="2026-01-01",
        device="cpu",
        torch="2.6",
        seconds=1,
        n_steps=1,
        step_us=1,
        targets={name.replace("__", ".py::"): _target(**found) for name, found in targets.items()},
    )


def _target(inputs: tuple[str, ...], share: float = 0.25, init: str | None = None) -> RecordedTarget:
    seen = tuple(RecordedConfiguration(inputs=text, init=init, n_calls=9 - n) for n, text in enumerate(inputs))
    return RecordedTarget(share=share, forward_us=1, backward_us=0, n_calls=9, configurations=seen)


LONG = """
import torch
from model import Net, rms_norm

x, weight = torch.ones(8, 4), torch.ones(4)
for step in range(3000):
    rms_norm(x=x, weight=weight) if step % 2 else rms_norm(x, weight)
for step in range(700):
    rms_norm(torch.ones(2, 4), weight)
net = Net(8).eval()
with torch.inference_mode():
    for step in range(300):
        net(torch.zeros(1, 4, dtype=torch.int64))
print("done")
"""
"""Calls beyond those that are described one by one: of a function alone, of another shape, inside of a module."""
ALIKE = """
import torch


def clip(x, low, high=None):
    return x.clamp(low, high)


class Norm(torch.nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return x / (x.square().mean(-1, keepdim=True) + self.eps)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = torch.nn.ModuleList([Norm(1e-5), Norm(1e-6), Norm(1e-6)])

    def forward(self, x):
        for norm in self.norms:
            x = norm(clip(x, -1.0))
        return clip(x, 0.0, high=2.0)


net = Net().eval()
with torch.inference_mode():
    for step in range(400):
        net(torch.ones(4, 8, dtype=torch.float64 if step % 4 == 3 else torch.float32))
"""
"""Calls of one shape that differ in a scalar, a constructor's argument, or their dtype."""
CONFIGURED = """
import dataclasses
import types
import typing
import torch


@dataclasses.dataclass(frozen=True)
class Norm:
    eps: float = 1e-5


@dataclasses.dataclass
class Config:
    width: int
    shape: tuple = (1, 2)
    norm: Norm = dataclasses.field(default_factory=Norm)


class Scale(torch.nn.Module):
    def __init__(self, *, config):
        super().__init__()
        self.eps, self.weight = config.norm.eps, torch.nn.Parameter(torch.ones(config.width))

    def forward(self, x):
        return x * self.weight + self.eps


class Sizes(typing.NamedTuple):
    width: int = 8
    norm: Norm = Norm()


for n, config in enumerate((Sizes(4), types.SimpleNamespace(width=4, norm=Norm(0.5)))):
    for _ in range(5 - n):
        Scale(config=config)(torch.ones(3, 4))
for n, eps in enumerate((1e-5, 1e-3, 1e-3)):
    Scale(config=Config(width=4, norm=Norm(eps)))(torch.ones(3, 4, requires_grad=n > 1))
@dataclasses.dataclass
class Computing(Config):
    half: int = dataclasses.field(init=False)

    def __post_init__(self):
        self.half = self.width // 2


for _ in range(3):
    Scale(config=Computing(width=4))(torch.ones(3, 4))
cyclic = Config(width=4, shape=tuple(range(100)))
Scale(config=cyclic)(torch.ones(3, 4))
cyclic.shape = cyclic
Scale(config=cyclic)(torch.ones(3, 4))
"""
KEYWORDS = """
import dataclasses
import functools

import torch


def with_any_keyword(kind):
    constructor = kind.__init__

    @functools.wraps(constructor)
    def made(self, *given, **keywords):
        others = {name: keywords.pop(name) for name in [*keywords] if name not in kind.__dataclass_fields__}
        constructor(self, *given, **keywords)
        vars(self).update({name: value for name, value in others.items() if name != "_kind"})

    kind.__init__ = made
    return kind


@with_any_keyword
@dataclasses.dataclass
class Config:
    width: int = 8

    def __post_init__(self):
        self.half, self._kind = self.width // 2, None


class Attention(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.weight = config, torch.nn.Parameter(torch.ones(config.width))

    def forward(self, x):
        return x * self.weight if self.config._kind is None else x + self.weight


config = Config(width=4, labels=3)
config._fast = True
config._kind = "fast"
for _ in range(3):
    Attention(config)(torch.ones(3, 4))
"""
LAYOUTS = """
import torch


class Double(torch.nn.Module):
    def forward(self, x):
        return x * 2


double = Double().eval()
x = torch.eye(3)
with torch.inference_mode():
    for _ in range(200):
        double(x)
    print(double(torch.nested.nested_tensor([x, x[:2]])).numel(), double(x.to_sparse_csr()).to_dense().sum().item())
    print(double(x).sum().item())
"""
"""Calls of one module with a tensor without a shape, and with one without strides, after many others."""
INTERRUPTED = """
import os
import signal
import sys

import torch
from model import rms_norm

def interrupt_the_end(recorder):
    close = recorder._close_gate

    def interrupted(self):
        if not (self.is_on or self.wrapped):  # it has ended at the last step, and so does the program
            os.kill(os.getpid(), signal.SIGINT)
        close(self)

    recorder._close_gate = interrupted


interrupt_the_end(sys.modules["_kernel_lsp_recorder"].Recorder)
for _ in range(5):
    rms_norm(torch.ones(4, 8), torch.ones(8))
"""
