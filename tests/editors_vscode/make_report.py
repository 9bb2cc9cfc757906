"""Write the page of a run of 10 generations with 8 candidates each: `python make_report.py PAGE.html`."""

from __future__ import annotations

import sys
from pathlib import Path

from kernel_lsp.core.measurement import Comparison, Estimate
from kernel_lsp.core.verdict import CaseResult, Correct, TensorError, Verdict
from kernel_lsp.export.report import ReportCandidate, RunReport, render_report

N_GENERATIONS, N_PROPOSALS, N_CASES = 10, 8, 15
TEXT = (
    "__global__ void kernel(const float* x, float* out, int n) {\n" + "    out[threadIdx.x] = x[threadIdx.x];\n" * 150
)


def estimate(time_us: float) -> Estimate:
    return Estimate(
        time_us=time_us,
        low_us=time_us * 0.7,
        high_us=time_us * 1.4,
        gpu="H200",
        bound="memory",
        bytes_moved=1_000_000,
        n_operations=1_000_000,
        n_launches=1,
        shapes={"x": (1024, 1024)},
        dtypes={"x": "f32"},
        date="2026-01-01",
        method="made up for a test of the page's speed",
    )


def candidate(generation: int, number: int) -> ReportCandidate:
    identity = f"{generation:02d}{number:02d}" + "0" * 12
    error = TensorError(
        output="out",
        relative_l2=1e-8,
        relative_l2_budget=1e-6,
        max_error=1e-7,
        max_error_budget=1e-5,
        n_wrong=0,
        n_elements=9,
    )
    case = CaseResult(
        operation="kernel", family="normal", shapes={"x": (1024, 1024)}, n_blocks=9, n_blocks_run=9, errors=(error,)
    )
    time_us = 40.0 / (generation + 1) + number
    verdict = Verdict(
        candidate_id=identity,
        depth="screen",
        device="PTX executor (CPU)",
        outcome=Correct(cases=(case,) * N_CASES),
        times={"kernel": Comparison(baseline_name="eager", baseline=estimate(60.0), ours=estimate(time_us))},
        estimate=estimate(time_us),
    )
    parents = (f"{generation - 1:02d}{number:02d}" + "0" * 12,) if generation else ()
    return ReportCandidate(
        candidate_id=identity,
        generation=generation,
        proposer="generator",
        description=f"block={32 << number % 5}",
        parents=parents,
        text=f"// {identity}\n{TEXT}",
        verdicts=(verdict,),
    )


if __name__ == "__main__":
    candidates = tuple(candidate(g, n) for g in range(N_GENERATIONS) for n in range(N_PROPOSALS))
    report = RunReport(
        run_id="made-up",
        target="model.py::kernel",
        status="running",
        started="2026-01-01T00:00:00",
        n_generations=2 * N_GENERATIONS,
        candidates=candidates,
        floor_us=2.0,
    )
    Path(sys.argv[1]).write_text(render_report(report), encoding="utf-8")
