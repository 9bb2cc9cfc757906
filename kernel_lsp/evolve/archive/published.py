"""Columns under the names of the published archive of the AI CUDA Engineer, so that its readers can be used.

Times are in milliseconds, as there. What our archive does not keep is null.
"""

from __future__ import annotations

import hashlib
from typing import Any

from kernel_lsp.core.measurement import Measurement
from kernel_lsp.core.verdict import Correct, Mismatch, Verdict
from kernel_lsp.evolve.archive.dataset import Row

EAGER, COMPILED = "eager", "compile"
US_PER_MS = 1000.0
ABSENT = ("Level_ID", "PyTorch_Code_Module", "NCU_Profile", "Torch_Profile", "Clang_Tidy", "Sanitizer")
"""Columns that an archive has no values for: task levels, module texts, and profilers' and linters' outputs."""


def published_columns(row: Row) -> dict[str, Any]:
    """Return the columns of one row."""
    verdict = Verdict.model_validate_json(row.verdict) if row.verdict else None
    ours = _time_ms(verdict, "")
    native, compiled = _time_ms(verdict, EAGER), _time_ms(verdict, COMPILED)
    return {
        "Op_Name": row.task,
        "Task_ID": hashlib.sha256(row.reference.encode()).hexdigest()[:16],
        "Kernel_Name": row.name,
        "CUDA_Runtime": ours,
        "PyTorch_Native_Runtime": native,
        "PyTorch_Compile_Runtime": compiled,
        "CUDA_Speedup_Native": native / ours if native and ours else None,
        "CUDA_Speedup_Compile": compiled / ours if compiled and ours else None,
        "CUDA_Code": row.kernel,
        "PyTorch_Code_Functional": row.reference,
        "Correct": row.outcome == "correct",
        "Max_Diff": _max_diff(verdict),
        "Error": "" if row.outcome == "correct" else row.feedback,
        **dict.fromkeys(ABSENT, None),
    }


# --- below: numbers of a verdict


def _time_ms(verdict: Verdict | None, baseline: str) -> float | None:
    """Return the time over all operations: ours, eager's, or that of the fastest mode of torch.compile. Estimates are
    no times here."""
    if verdict is None or not verdict.times:
        return None
    times = []
    for comparison in verdict.times.values():
        named = [time_us for name, time_us in comparison.baselines_us.items() if name.startswith(baseline)]
        found = [comparison.ours.time_us] if not baseline else named
        if not found or not isinstance(comparison.ours, Measurement):
            return None
        times.append(min(found))
    return sum(times) / US_PER_MS


def _max_diff(verdict: Verdict | None) -> float | None:
    if verdict is None or not isinstance(verdict.outcome, Correct | Mismatch):
        return None
    cases = list(verdict.outcome.cases)
    if isinstance(verdict.outcome, Mismatch):
        cases.append(verdict.outcome.failed)
    return max((error.max_error for case in cases for error in case.errors), default=None)
