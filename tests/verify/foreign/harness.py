"""Runs a Python file with `ModelNew` as a foreign kernel: a real process, real confinement, cases made by hand."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.plan import BoundOperation, BoundTensor
from kernel_lsp.core.verdict import CaseResult, Crashed, Mismatch, TimedOut
from kernel_lsp.process.case_files import CaseFiles, CaseTensor, Rounding
from kernel_lsp.process.confinement import SandboxLevel, sandbox_level
from kernel_lsp.verify.foreign.foreign_cases import ForeignCase, Judge, run_case
from kernel_lsp.verify.foreign.process import ForeignProcess
from kernel_lsp.verify.gpu.slot import Lost
from kernel_lsp.verify.model.cases import Case
from kernel_lsp.verify.oracle.compare import Expectation

DEADLINE_S = 90.0
SCALE, OFFSET = 2.0, 0.5
ARGUMENTS = [{"name": "x", "role": "input", "qualified_name": None}, {"name": "eps", "value": OFFSET}]
SOURCE = {"kind": "function", "symbol": "scale", "line": 1, "file": "none.py", "has_get_init_inputs": False}
Outcome = CaseResult | Mismatch | Crashed | TimedOut


def model(body: str, before: str = "") -> str:
    """A file whose `ModelNew` computes ``x * 2 + eps`` by this body."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"import torch\n{before}\n\nclass ModelNew(torch.nn.Module):\n    def forward(self, x, eps):\n{lines}\n"


@dataclass
class Bench:
    """A foreign kernel in its process, and the cases that it was given."""

    folder: Path
    process: ForeignProcess
    n_cases: int = field(default=0)

    async def open(self, text: str, builds: Mapping[str, str] | None = None) -> dict[str, Any] | Lost:
        file = self.folder / "kernel.py"
        file.write_text(text)
        request = {
            "kind": "model_new",
            "device": "cpu",
            "arguments": ARGUMENTS,
            "gradients": [],
            "wanted": [],
            "source": SOURCE,
            "library": "",
            "module_name": "",
            "file": str(file),
            "builds": dict(builds or {}),
        }
        return await self.process.ask("open_foreign", request, deadline_s=DEADLINE_S)

    async def run(self, seed: int = 0, shape: tuple[int, ...] = (4, 8)) -> Outcome:
        """One case of normal inputs."""
        self.n_cases += 1
        folder = self.process.scratch / f"case-{self.n_cases}"
        folder.mkdir(parents=True)
        return await run_case(self.process, made_case(folder, seed, shape), folder / "out", Judge("CPU"))


def made_case(folder: Path, seed: int, shape: tuple[int, ...]) -> ForeignCase:
    """Inputs in the folder, what is expected in memory."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    x.tofile(folder / "x.bin")
    exact = x.astype(np.float64) * SCALE + OFFSET
    rounding = Rounding(exact.size, float(np.linalg.norm(exact)), 1e-7, 1e-7, 1e-7, 1e-7)
    tensors = (
        BoundTensor(name="x", dtype=DType.F32, shape=shape, role="input"),
        BoundTensor(name="out", dtype=DType.F32, shape=shape, role="output"),
    )
    (folder / "out").mkdir()
    return ForeignCase(
        case=Case("forward", (), "normal", seed, "forward"),
        bound=BoundOperation(name="scale", dims={}, tensors=tensors, steps=()),
        files=CaseFiles("normal", seed, (CaseTensor("x", folder / "x.bin", DType.F32, shape),)),
        inputs=({"name": "x", "path": str(folder / "x.bin"), "dtype": "f32", "shape": list(shape)},),
        expectations=(Expectation("out", DType.F32, exact, None, rounding),),
        is_hidden=False,
    )


def started(folder: Path, level: SandboxLevel | None = None) -> ForeignProcess:
    """A process, not started, that may read the folder and write to its scratch."""
    scratch = folder / "scratch"
    scratch.mkdir()
    confined = sandbox_level("auto") if level is None else level
    return ForeignProcess(Path(sys.executable), level=confined, scratch=scratch, readable=(folder,))
