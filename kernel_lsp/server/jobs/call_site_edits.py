"""Offer to use an operator at every call of its target in the workspace, and to take that back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kernel_lsp.config import find_workspace
from kernel_lsp.core.words import counted
from kernel_lsp.engine.messages import ResultFile, RunResult, RunSummary
from kernel_lsp.server.documents.edits import propose
from kernel_lsp.server.state import State
from kernel_lsp.source.call_sites import (
    Operator,
    Rewritten,
    is_offered,
    method_in,
    method_used,
    revert_operator,
    use_operator,
)


async def offer_call_sites(state: State, result: RunResult) -> None:
    """Offer the edit that uses an applied operator at every call of its run's target. The editor's review of the edit
    asks the user."""
    run = result.summary
    found = await _uses(run, max(method_in(file.text, run.name) for file in result.files))
    if found.n_sites:
        await _apply(state, found, f"Use {run.name}")


async def use_everywhere(state: State, path: Path, symbol: str) -> None:
    """Use a target's newest operator at every call in the workspace."""
    run = state.knowledge.last_result(path, symbol)
    if run is None:  # the archive may not have been read yet: the first command starts the engine that reads it
        await state.load_runs(find_workspace(path.parent))
        run = state.knowledge.last_result(path, symbol)
    if run is None:
        state.client.inform(f"{symbol} has no operator yet: optimize it first")
        return
    if not is_offered(run.out, run.name):
        command = f"kernel-lsp export {run.run_id} --operator {run.out.name}"
        state.client.inform(
            f"{symbol}: {run.out.name}/{run.name}.py has no operator to use. `{command}` writes it again"
        )
        return
    found = await _uses(run, method_used(run.out, run.name))
    await _apply(state, found, f"Use {run.name}")


async def revert_everywhere(state: State, path: Path, name: str) -> None:
    """Take back every use of an operator in the workspace."""
    await _apply(state, await asyncio.to_thread(revert_operator, find_workspace(path.parent), name), f"Revert {name}")


async def _uses(run: RunSummary, method: str) -> Rewritten:
    file = Path(run.file)
    operator = Operator(file, run.symbol, method, run.out, run.name)
    return await asyncio.to_thread(use_operator, find_workspace(file.parent), operator)


async def _apply(state: State, found: Rewritten, action: str) -> None:
    """Offer the new texts as one edit, which an editor shows first; one that cannot writes nothing."""
    label = f"kernel-lsp: {action} at {_counted(found)}"
    if not found.texts and found.is_complete:
        state.client.inform(f"{label}: nothing to change")
        return
    files = [ResultFile(path=path, text=text) for path, text in found.texts.items()]
    limited = "" if found.is_complete else " The scan ended at its limit: further calls may exist."
    proposal = propose(files, label, state.documents, state.client.features)
    if proposal.edit is not None:
        await state.client.apply(proposal.edit, label)
    if proposal.edit is None or limited:
        state.client.inform(f"{label}. {'' if proposal.edit else proposal.reason}{limited}")


def _counted(found: Rewritten) -> str:
    n_files = len(found.texts)
    return f"{counted(found.n_sites, 'call site')} in {counted(n_files, 'file')}"
