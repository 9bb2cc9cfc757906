"""The first click: infer the shapes that a target lacks, ask, write them as pragmas, and start the run."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from lsprotocol import types

from kernel_lsp.engine.messages import InferInputs, InferredInputs, Problem
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.server.documents.edits import DocumentEdits, document_edit, pragma_edits
from kernel_lsp.server.documents.places import cells_of, file_of, is_saved
from kernel_lsp.server.jobs.jobs import Following, Job, new_id
from kernel_lsp.server.jobs.starting import start_job, start_optimize, text_of_job
from kernel_lsp.server.protocol.messages import CommandLine, TargetArguments
from kernel_lsp.server.state import State

USE, EDIT, RECORD = "Use these and optimize", "Edit", "Record from a run"
PRAGMA_START = "# kernel-lsp: "
ANALYSIS_S, CHANGE_S, POLL_S = 5.0, 2.0, 0.05
"""Maximum waits in seconds: for an analysis, for the client to report and save an edit; and the pause between looks."""


def start_inference(state: State, document: Document, symbol: str, following: Following = "") -> str:
    """Infer the shapes that a target lacks. `following` runs it with them if the user agrees; without, they are
    written."""
    path = file_of(document)
    request = InferInputs(
        id=new_id(),
        directory=path.parent,
        target=f"{path.name}::{symbol}",
        cells=cells_of(state.notebooks, document),
        settings=state.settings.overrides(path.parent),
    )
    about = text_of_job(state.analyses, document, symbol)
    return start_job(state, request, f"Infer shapes of {symbol}", document.uri, path, following=following, **about)


async def inputs_inferred(state: State, job: Job, found: InferredInputs) -> None:
    """Write the pragmas, or ask first what to do with them."""
    document = state.documents.get(job.uri)
    if document is None:
        return
    if not found.texts:
        _optimize(state, job)
        return
    if not job.following:
        await _write(state, document, job, found.texts)
        return
    listed = "; ".join(text.removeprefix(PRAGMA_START) for text in found.texts)
    message = f"{job.symbol} declares no shapes. Inferred, and accepted by its code: {listed}"
    chosen = await state.client.choose(types.MessageType.Info, message, USE, EDIT, RECORD)
    if chosen == RECORD:
        _offer_record(state, document)
    elif chosen == EDIT:
        line = await _write(state, document, job, found.texts)
        if line is not None:
            await _show_line(state, document, line)
    elif chosen == USE:
        if await _write(state, document, job, found.texts) is not None:
            await _once_saved(state, document, lambda: _optimize(state, job))
    else:
        state.client.inform(f"{job.symbol}: not started. *Add shapes*, a code action, writes: {listed}")


async def inference_failed(state: State, job: Job, problem: Problem) -> None:
    """Say what is missing and where, and offer to record it."""
    place = f"{Path(problem.file).name}:{problem.line}: " if problem.file and problem.line else ""
    next_step = f" Next: {problem.next_step}" if problem.next_step else ""
    end = "" if problem.message.endswith("?") else "."
    message = f"No shapes for {job.symbol}: {place}{problem.message}{end}{next_step}"
    document = state.documents.get(job.uri)
    if problem.kind != "user" or document is None:
        state.client.say(types.MessageType.Error, message)
    elif await state.client.choose(types.MessageType.Error, message, RECORD) == RECORD:
        _offer_record(state, document)


async def _write(state: State, document: Document, job: Job, texts: Sequence[str]) -> int | None:
    """Insert the pragmas in one edit; return the first line, or None when the text has changed or the client
    refuses."""
    known = await state.analyses.current(document, ANALYSIS_S)
    target = known.now(document).target(job.symbol)
    if target is None or (job.digest and target.digest != job.digest) or len(target.pragmas) != len(texts):
        state.client.warn(f"{job.symbol} has changed meanwhile: its shapes are not written.")
        return None
    lines = [line for line, _ in target.pragmas]
    serial = document.serial
    edits = DocumentEdits(document, pragma_edits(document, list(zip(lines, texts, strict=True))))
    edit = document_edit(edits, versioned=state.client.features.versioned_edits)
    if not await state.client.apply(edit, f"kernel-lsp: shapes of {job.symbol}"):
        return None
    await _until(lambda: document.serial != serial)
    return lines[0]


async def _once_saved(state: State, document: Document, start: Callable[[], object]) -> None:
    """Start once the file has the pragmas: at once where the client saves what it applied, else at the next save."""
    path = document.path
    if path is None or await _until(lambda: is_saved(document, path)):
        start()
        return
    state.when_saved[document.uri] = start
    state.client.inform(f"Save {path.name}: the run starts then.")


def _optimize(state: State, job: Job) -> None:
    about = TargetArguments(job.uri, job.symbol)
    start_optimize(state, about, backward=job.following == "optimize_with_backward")


async def _show_line(state: State, document: Document, line: int) -> None:
    position = types.Position(line, len(document.line_text(line)))
    place = types.Range(position, position)
    await state.client.show_document(types.ShowDocumentParams(document.uri, take_focus=True, selection=place))


def _offer_record(state: State, document: Document) -> None:
    """Type the command line into the client's terminal, or say it."""
    path = file_of(document)
    script = path.name if "__main__" in document.text else "SCRIPT.py"
    command = f"kernel-lsp record -- python {shlex.quote(script)}"
    if state.client.types_commands:
        state.client.notify("kernelLsp/typeCommand", CommandLine(command, str(path.parent)))
    else:
        text = f"In {path.parent}, run the program that calls it under: {command}"
        state.client.inform(text)


async def _until(holds: Callable[[], bool]) -> bool:
    """Wait for a while; return whether it holds."""
    for _ in range(int(CHANGE_S / POLL_S)):
        if holds():
            return True
        await asyncio.sleep(POLL_S)
    return holds()
