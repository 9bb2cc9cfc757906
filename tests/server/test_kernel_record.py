"""Show what the archive knows of a kernel at its lines when the file is opened."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.event import CandidateEvaluated, CandidateJudged
from kernel_lsp.core.finding import Finding, Severity
from kernel_lsp.core.measurement import Comparison
from kernel_lsp.core.verdict import Crashed, Verdict
from kernel_lsp.engine.archived import kernel_record
from kernel_lsp.engine.messages import KernelRecord
from kernel_lsp.evolve.archive.archive import Archive

from .client import VSCODE, initialized
from .samples import KERNEL, STORE_LINE
from .test_features import measured

DEADLINE_S = 40.0
FOUND = Finding(
    code="out-of-bounds-read", severity=Severity.ERROR, message="reads past the end", source="executor",
    file="kernel.cu", line=STORE_LINE + 1,
)  # fmt: skip
JUDGED = CandidateJudged(
    candidate_id="", generation=0, probabilities={"memory (m)": 0.2, "numerics (m)": 0.9}, is_passed=True
)
EVENT = CandidateEvaluated(
    candidate_id="", generation=0, outcome="crashed", message="", score_us=None, score_kind="none"
)  # fmt: skip


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A kernel that a run found to read past the end on an H200, after a judge had doubted it."""
    candidate = Candidate(text=KERNEL, origin=Origin(proposer="generator"))
    times = {"scale": Comparison(baseline_name="eager", baseline=measured(27.0), ours=measured(10.0))}
    outcome = Crashed(message="it reads past the end", findings=(FOUND,))
    verdict = Verdict(candidate_id=candidate.id, device="NVIDIA H200", outcome=outcome, times=times)
    with Archive(tmp_path) as archive:
        run_id = archive.start_run("scale.py::scale", {})
        archive.save_candidate(run_id, candidate)
        archive.save_event(run_id, JUDGED.model_copy(update={"candidate_id": candidate.id}))
        archive.save_verdict(run_id, verdict, EVENT.model_copy(update={"candidate_id": candidate.id}))
    path = tmp_path / "scale.cu"
    path.write_text(KERNEL)
    return path


async def by_source(path: Path, *wanted: str) -> list[dict[str, Any]]:
    """The diagnostics of these sources, once the archive has been read."""
    async with initialized(path.parent, VSCODE, trusted=True) as editor, asyncio.timeout(DEADLINE_S):
        uri = editor.open(path)
        while True:
            found = {each["source"]: each for each in await editor.diagnostics(uri)}
            if found.keys() >= set(wanted):
                return [found[source] for source in wanted]
            await asyncio.sleep(0.1)


async def test_findings_times_and_doubts_stand_at_their_lines_with_source_and_date(kernel: Path) -> None:
    found, time, doubt = await by_source(kernel, "executor", "kernel-lsp GPU", "kernel-lsp judges")
    assert found["range"]["start"]["line"] == STORE_LINE
    assert found["message"].startswith("reads past the end (NVIDIA H200, run ")
    assert "2.7x vs eager (measured on NVIDIA H200, 2026-11-21)" in time["message"]
    assert "memory (m): 20% likely correct (run " in doubt["message"]
    assert "numerics" not in doubt["message"]
    assert KERNEL.splitlines()[doubt["range"]["start"]["line"]].startswith("// op:")


def test_another_text_has_no_record(kernel: Path) -> None:
    assert kernel_record(kernel.parent, f"{KERNEL}\n// edited\n") == KernelRecord()
