"""Blocks are sampled where all of them are too many: what they write says whether the grid writes everything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kernel_lsp.config import load_settings
from kernel_lsp.core.verdict import CaseResult, CheckOutcome, Correct, Mismatch, TimedOut
from kernel_lsp.ptx.executor import BlockSample
from kernel_lsp.verify.cpu import cpu_device, executor_checks
from kernel_lsp.verify.cpu.cpu_device import Limits, LoadedKernel, TooLittleWritten
from kernel_lsp.verify.session.check_kernel import check_kernel

N_BLOCKS = 264
"""Large blocks that an H200 holds at once."""
TARGET = """import torch


# kernel-lsp: x=f32[32, 256]
def f(x: torch.Tensor) -> torch.Tensor:
    return x * 2
"""
KERNEL = """// kernel-lsp: 1
// task: model.py::f
// op: f(x: f32[B, D]) -> (out: f32[B, D])
// launch: k<<<{n_blocks}, 32>>>(x, out, B, D)

__global__ void k(const float* x, float* out, int B, int D) {{
    for (int row = blockIdx.x; row < {rows}; row += gridDim.x)
        for (int i = threadIdx.x; i < D; i += 32) out[row * D + i] = 2.0f * x[row * D + i];
}}
"""


async def outcome_of(rows: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> CheckOutcome:
    """Check a kernel of which a dozen blocks are run."""
    monkeypatch.setattr(executor_checks, "FULL_LIMITS", replace(executor_checks.FULL_LIMITS, complete_instructions=1))
    (folder / "model.py").write_text(TARGET)
    file = folder / "k.cu"
    file.write_text(KERNEL.format(n_blocks=N_BLOCKS, rows=rows))
    verdict = await check_kernel(file, None, folder, load_settings(folder, {"device": "cpu"}))
    return verdict.outcome


async def test_a_grid_of_which_most_blocks_have_no_row_is_correct(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await outcome_of("B", tmp_path, monkeypatch)
    assert isinstance(found, Correct), found
    assert any(case.n_blocks_run == case.n_blocks == N_BLOCKS for case in found.cases)


async def test_a_grid_too_large_to_run_whole_is_refused_as_a_mismatch_is(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = CaseResult(operation="f", family="given", shapes={}, n_blocks=264, n_blocks_run=12, errors=())
    outcomes = iter([TooLittleWritten(message="too little", failed=failed), TimedOut(message="late", deadline_s=1.0)])
    asked: list[tuple[Any, int]] = []

    async def run(given: Any, limits: Limits, sample: Any, circumstances: Any) -> Any:
        asked.append((sample, limits.max_instructions))
        return next(outcomes)

    async def files(case: Any) -> None: ...

    monkeypatch.setattr(cpu_device, "read_expectations", lambda files: ())
    none, sample = cast(Any, None), BlockSample(12)
    kernel = LoadedKernel(cast(Any, SimpleNamespace(run=run)), cast(Any, SimpleNamespace(get=files)), *[none] * 4)
    found = await kernel.run(none, none, Limits(1, 20_000_000_000, 1.0), sample)
    assert found == Mismatch(message="too little", failed=failed)
    assert asked == [(sample, 20_000_000_000), (None, cpu_device.MAX_CONFIRMED)]


async def test_a_grid_that_leaves_rows_out_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = await outcome_of("B - B / 4", tmp_path, monkeypatch)
    assert isinstance(found, Mismatch), found
