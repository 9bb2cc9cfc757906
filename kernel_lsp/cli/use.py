"""`kernel-lsp use`: a run's operator at every call of its target in the workspace, and back."""

from __future__ import annotations

import asyncio
import difflib
import os
from pathlib import Path

from kernel_lsp.cli import console
from kernel_lsp.config import find_workspace
from kernel_lsp.core.model import Noun
from kernel_lsp.core.words import counted
from kernel_lsp.engine.archived import run_result
from kernel_lsp.engine.messages import RunResult
from kernel_lsp.errors import UserError
from kernel_lsp.source.call_sites import (
    Operator,
    Rewritten,
    called_name,
    is_offered,
    method_used,
    revert_operator,
    takes_more,
    use_operator,
)
from kernel_lsp.source.python_file import USE_PREFIX


class Used(Noun):
    """The result of the command. `is_complete` is false where a limit ended the scan."""

    name: str
    n_sites: int
    n_in_tests: int
    files: tuple[str, ...]
    is_written: bool
    is_complete: bool


@console.command
async def main(run: str, as_json: bool, *, reverts: bool, applies: bool) -> int:
    result = run_result(Path.cwd(), run)
    found = await asyncio.to_thread(_found, result, reverts=reverts)
    if applies:
        for path, text in found.texts.items():
            path.write_bytes(text.encode())
    if as_json:
        files = tuple(map(str, found.texts))
        n_sites, n_in_tests, whole = found.n_sites, found.n_in_tests, found.is_complete
        name = result.summary.name
        console.print_json(
            Used(name=name, n_sites=n_sites, n_in_tests=n_in_tests, files=files, is_written=applies, is_complete=whole)
        )
    else:
        _print(found, applies=applies)
        advice = result.summary.recommendation
        if found.texts and not reverts and advice is not None and advice.headline:
            console.stdout.print(f"advice: {advice.sentence}", style="yellow", markup=False)
        if not (found.n_sites or reverts):
            _print_by_hand(result)
    return console.EXIT_OK if found.texts else console.EXIT_NO


def _found(result: RunResult, *, reverts: bool) -> Rewritten:
    run = result.summary
    root = find_workspace(Path(run.file).parent)
    if reverts:
        return revert_operator(root, run.name)
    step = f"kernel-lsp export {run.run_id} --operator {os.path.relpath(run.out)}"
    if takes_more(run.out, run.name):
        called = f"call {run.name} of {os.path.relpath(run.out / run.name)}.py, with what the code draws or holds"
        raise UserError(f"the operator of {run.target} has arguments that no call gives", next_step=called)
    if not is_offered(run.out, run.name):
        raise UserError(f"{run.target} has no operator in {run.out}", next_step=step)
    if not _is_current(result):
        raise UserError(f"{run.out / run.name}.cu is not the kernel of run {run.run_id}", next_step=step)
    method = method_used(run.out, run.name)
    return use_operator(root, Operator(Path(run.file), run.symbol, method, run.out, run.name))


def _is_current(result: RunResult) -> bool:
    """Return True if the kernel on disk is the run's. Its task line depends on the folder."""
    path = result.summary.out / f"{result.summary.name}.cu"
    text = next((file.text for file in result.files if file.path.name == path.name), None)
    on_disk = path.read_text(encoding="utf-8") if path.is_file() else None
    return text is not None and on_disk is not None and _without_task(text) == _without_task(on_disk)


def _without_task(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("// task: ")]


def _print(found: Rewritten, *, applies: bool) -> None:
    say = console.stdout.print
    for path, text in found.texts.items():
        if applies:
            say(f"wrote {path}", markup=False)
        else:
            before, name = path.read_bytes().decode(), os.path.relpath(path)
            both = (before.splitlines(keepends=True), text.splitlines(keepends=True))
            say("".join(difflib.unified_diff(*both, name, name)), markup=False, soft_wrap=True)
    limited = "" if found.is_complete else "; the scan ended at its limit"
    hint = "" if applies or not found.texts else "; --apply writes them"
    counts = f"{counted(found.n_sites, 'call site')} in {counted(len(found.texts), 'file')}"
    kept = f"; {counted(found.n_in_tests, 'call')} in tests left unchanged" if found.n_in_tests else ""
    say(f"{counts}{kept}{limited}{hint}", markup=False)


def _print_by_hand(result: RunResult) -> None:
    """Say how to use the operator where no call of its target is found."""
    run = result.summary
    method = method_used(run.out, run.name)
    called = called_name(run.symbol, method)
    wraps = f"{USE_PREFIX}{run.name}({called}{'(...)' if method else ''})"
    root = find_workspace(Path(run.file).parent)
    console.stdout.print(f"no file of {root} calls {called}, tests apart", markup=False, soft_wrap=True)
    next_step = f"where yours does: {wraps}, from {os.path.relpath(run.out / run.name)}.py"
    console.stdout.print(f" next: {next_step}", markup=False, soft_wrap=True)
