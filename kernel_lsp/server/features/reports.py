"""Show a run: its kernel, the original code, and its report as Markdown."""

from __future__ import annotations

from pathlib import Path

from kernel_lsp.config import FOLDER_NAME, find_workspace
from kernel_lsp.core.measurement import EstimatedBaseline
from kernel_lsp.engine.messages import GetResult, RunResult
from kernel_lsp.server.documents.edits import RESULTS_FOLDER, write_aside
from kernel_lsp.server.documents.places import place_of
from kernel_lsp.server.features.formatting import number_text
from kernel_lsp.server.jobs.job_results import present
from kernel_lsp.server.jobs.jobs import new_id
from kernel_lsp.server.protocol import messages as protocol
from kernel_lsp.server.state import State


def run_report(result: RunResult) -> str:
    """Render the run's target, its result, and where that was verified."""
    summary = result.summary
    parts = [
        f"# `{summary.target}`",
        f"Run {summary.run_id}, started {summary.started}, {summary.status}; on {summary.device or 'no device yet'}.",
    ]
    advice = summary.recommendation
    if advice is not None and advice.headline:
        parts.append(f"**{advice.headline}** ({advice.kind}): {advice.detail}.")
    if summary.candidate_id is None:
        parts.append(f"No verified kernel: {summary.reason or 'the run has not ended'}.")
    else:
        parts.append(f"Winner `{summary.candidate_id}`: {summary.reason}.")
    for name, comparison in summary.comparisons.items():
        rows = [("ours", comparison.ours), (comparison.baseline_name, comparison.baseline)]
        rows += [(each.name, each.estimate) for each in comparison.baselines if isinstance(each, EstimatedBaseline)]
        shown = dict.fromkeys(f"| {title} | {number_text(number)} |" for title, number in rows)
        lines = (
            f"| {name} | time |",
            "|---|---|",
            *shown,
            f"| speedup vs {comparison.baseline_name} | {comparison.speedup:.2g}x |",
        )
        parts.append("\n".join(lines))
    parts += [f"Library step: {step} (a vendor library, not our kernel)." for step in summary.library_steps]
    parts += [f"{'File' if file.path.is_file() else 'Not written'}: `{file.path}`" for file in result.files]
    if result.problem:
        parts.append(result.problem)
    return "\n\n".join(parts) + "\n"


async def show_result(state: State, about: protocol.RunArguments, *, beside: bool) -> None:
    """Open the kernel if its file exists, else offer it again; optionally open the original code in a second editor."""
    found = await _result(state, about)
    if found is None:
        return
    workspace, result = found
    if not result.files:
        state.client.inform(result.problem or f"run {result.summary.run_id} found no kernel")
        return
    kernel = result.files[0].path
    if not kernel.is_file():
        kernel = write_aside(result.files, _folder(workspace, result))[0]
    if beside:
        await state.client.show(Path(result.summary.file))
    if not await state.client.show(kernel):
        state.client.inform(f"The kernel is in {kernel}")
    if beside and not result.files[0].path.is_file():
        await present(state, workspace, result)


async def show_report(state: State, about: protocol.RunArguments) -> None:
    """Write the run's report as Markdown and open it."""
    found = await _result(state, about)
    if found is None:
        return
    workspace, result = found
    folder = _folder(workspace, result)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "report.md"
    path.write_text(run_report(result), encoding="utf-8")
    if not await state.client.show(path):
        state.client.inform(f"The report is in {path}")


async def _result(state: State, about: protocol.RunArguments) -> tuple[Path, RunResult] | None:
    workspace = find_workspace(place_of(state.documents, about.uri).parent)
    reply = await state.engines.of(workspace).ask(GetResult(id=new_id(), directory=workspace, run_id=about.run))
    if reply.result is None:
        message = reply.error.message if reply.error is not None else "no reply"
        state.client.warn(message)
        return None
    return workspace, RunResult.model_validate(reply.result)


def _folder(workspace: Path, result: RunResult) -> Path:
    return workspace.joinpath(FOLDER_NAME, *RESULTS_FOLDER, result.summary.run_id)
