"""Sessions whose GPU is made of Python: it computes 2 x + 1, whatever the candidate says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.process.confinement import SandboxLevel
from kernel_lsp.process.worker_client import Worker
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.verify.model.cases import Depth
from kernel_lsp.verify.session import start as session_start
from kernel_lsp.verify.session.session import Session
from kernel_lsp.verify.timing.operation import OperationTimer
from kernel_lsp.verify.timing.result import NotTimed

from .harness import FAKE

TASK = """import torch


# kernel-lsp: x=f32[4096]
def affine(x: torch.Tensor) -> torch.Tensor:
    return 2 * x + 1
"""
TEXT = """// kernel-lsp: 1
// op: affine(x: f32[N]) -> (out: f32[N])
// launch: affine<<<ceil_div(N, 256), 256>>>(x, out, N)

__global__ void affine(const float* x, float* out, int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) out[i] = 2 * x[i] + 1;
}
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, program: Path = FAKE) -> None:
    """Until the test ends, sessions find a GPU that is made of Python, and nothing is timed on it."""

    def new_worker(self: Session, python: Path) -> Worker:
        return Worker(python, scratch=self.scratch, sandbox=SandboxLevel.NONE, program=program)

    async def time_operation(*_: object) -> NotTimed:
        return NotTimed("no clock here")

    async def no_offer(*_: object) -> None:
        pass

    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(session_start, "has_gpu", lambda: True)
    monkeypatch.setattr(Session, "new_worker", new_worker)
    monkeypatch.setattr(OperationTimer, "time_operation", time_operation)
    monkeypatch.setattr(OperationTimer, "offer", no_offer)
    (folder / "task.py").write_text(TASK)


def settings(folder: Path, device: str = "auto") -> Settings:
    """With a cache of its own."""
    return Settings(device=device, cache_directory=folder / "cache")


async def verdict(folder: Path, text: str = TEXT, depth: Depth = "full") -> Verdict:
    """Return the outcomes of a whole session with one candidate."""
    async with Session(settings(folder)) as own:
        source = read_target("task.py::affine", folder)
        verifier = await own.verifier(source, await own.capture(source, with_backward=False))
        return await verifier.verify(Candidate(text=text, origin=Origin(proposer="user")), depth)
