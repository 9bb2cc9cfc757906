"""Profile the correct kernels of archived runs for a dataset's profiler, linter and sanitizer columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from kernel_lsp.config import Settings
from kernel_lsp.core.candidate import Candidate, Origin
from kernel_lsp.core.model import Noun
from kernel_lsp.core.profile import ProfileReport
from kernel_lsp.errors import KernelLspError
from kernel_lsp.evolve.archive.archive import Archive
from kernel_lsp.evolve.archive.dataset import rows
from kernel_lsp.evolve.run.request import OptimizeRequest
from kernel_lsp.source.pytorch import read_target
from kernel_lsp.toolchain.tools.clang_tidy import SOURCE as CLANG_TIDY
from kernel_lsp.toolchain.tools.sanitizer import SOURCE as SANITIZER
from kernel_lsp.verify.profile.profile import profile_candidate
from kernel_lsp.verify.session.session import Session

Profiles = Mapping[tuple[str, str], ProfileReport]
"""Reports by run and candidate."""
PROFILE_COLUMNS = ("NCU_Profile", "Torch_Profile", "Clang_Tidy", "Sanitizer")


async def profile_runs(
    archive: Archive, run_ids: Sequence[str], settings: Settings, tell: Callable[[str], None]
) -> Profiles:
    """Return the profiles of the correct kernels in the runs' rows. A task that cannot be captured now is told and left
    out."""
    found: dict[tuple[str, str], ProfileReport] = {}
    for run_id in run_ids:
        kernels = {row.candidate_id: row.kernel for row in rows(archive, run_id) if row.outcome == "correct"}
        if not kernels:
            continue
        request = OptimizeRequest.model_validate(archive.run(run_id).request)
        try:
            async with Session(settings.model_copy(update={"python": request.python or settings.python})) as session:
                source = read_target(request.target, request.directory)
                task = await session.capture(source, with_backward=request.backward)
                runs = (await session.verifier(source, task)).runs
                for number, (id_, text) in enumerate(kernels.items(), start=1):
                    tell(f"profiling kernel {number} of {len(kernels)} of run {run_id}")
                    kernel = Candidate(text=text, origin=Origin(proposer="user"))
                    report = await profile_candidate(session, runs, task, kernel, f"{task.name}.cu")
                    if isinstance(report, ProfileReport):
                        found[run_id, id_] = report
        except KernelLspError as error:
            tell(f"run {run_id} has no profiles: {error}")
    return found


def profile_columns(report: ProfileReport | None) -> dict[str, str | None]:
    """Return the columns as JSON; null where a tool did not run."""
    if report is None:
        return dict.fromkeys(PROFILE_COLUMNS)
    ran = {run.tool.partition(" ")[0] for run in report.tools if run.status == "ran"}
    found: list[Sequence[Noun] | None] = [report.kernels if report.kind == "measured" else None, report.eager or None]
    for source in (CLANG_TIDY, SANITIZER):
        found.append([finding for finding in report.findings if finding.source == source] if source in ran else None)
    texts = (None if rows is None else json.dumps([row.model_dump(mode="json") for row in rows]) for rows in found)
    return dict(zip(PROFILE_COLUMNS, texts, strict=True))
