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
from kernel_lsp.server.language_server import KernelLanguageServer, Say
from kernel_lsp.server.protocol.messages import CommandLine, TargetArguments
from kernel_lsp.server.protocol.rpc import ClientRefused

USE, EDIT, RECORD = "Use these and optimize", "Edit", "Record from a run"
PRAGMA_START = "# kernel-lsp: "
ANALYSIS_S, CHANGE_S, POLL_S = 5.0, 2.0, 0.05
"""Maximum waits in seconds: for an analysis, for the client to report and save an edit; and the pause between looks."""


def start_inference(server: KernelLanguageServer, document: Document, symbol: str, following: Following = "") -> str:
    """Infer the shapes that a target lacks. `following` runs it with them if the user agrees; without, they are
    written."""
    path = file_of(document)
    request = InferInputs(
        id=new_id(),
        directory=path.parent,
        target=f"{path.name}::{symbol}",
        cells=cells_of(server.notebooks, document),
        settings=server.settings.overrides(path.parent),
    )
    about = text_of_job(server.analyses, document, symbol)
    return start_job(server, request, f"Infer shapes of {symbol}", document.uri, path, following=following, **about)


async def inputs_inferred(server: KernelLanguageServer, job: Job, found: InferredInputs) -> None:
    """Write the pragmas, or ask first what to do with them."""
    document = server.documents.get(job.uri)
    if document is None:
        return
    if not found.texts:
        _optimize(server, job)
        return
    if not job.following:
        await _write(server, document, job, found.texts)
        return
    listed = "; ".join(text.removeprefix(PRAGMA_START) for text in found.texts)
    message = f"{job.symbol} declares no shapes. Inferred, and accepted by its code: {listed}"
    chosen = await _ask(server, message, (USE, EDIT, RECORD))
    if chosen == RECORD:
        _offer_record(server, document)
    elif chosen == EDIT:
        line = await _write(server, document, job, found.texts)
        if line is not None:
            await _show_line(server, document, line)
    elif chosen == USE:
        if await _write(server, document, job, found.texts) is not None:
            await _once_saved(server.say, server.when_saved, document, lambda: _optimize(server, job))
    else:
        server.say(types.MessageType.Info, f"{job.symbol}: not started. *Add shapes*, a code action, writes: {listed}")


async def inference_failed(server: KernelLanguageServer, job: Job, problem: Problem) -> None:
    """Say what is missing and where, and offer to record it."""
    place = f"{Path(problem.file).name}:{problem.line}: " if problem.file and problem.line else ""
    next_step = f" Next: {problem.next_step}" if problem.next_step else ""
    message = f"No shapes for {job.symbol}: {place}{problem.message}.{next_step}"
    document = server.documents.get(job.uri)
    if problem.kind != "user" or document is None:
        server.say(types.MessageType.Error, message)
    elif await _ask(server, message, (RECORD,), types.MessageType.Error) == RECORD:
        _offer_record(server, document)


# --- below: the choices


async def _ask(
    server: KernelLanguageServer,
    message: str,
    choices: Sequence[str],
    kind: types.MessageType = types.MessageType.Info,
) -> str | None:
    """Return the user's choice; None from a client that shows no prompt, or when it is dismissed."""
    actions = [types.MessageActionItem(title=choice) for choice in choices]
    params = types.ShowMessageRequestParams(type=kind, message=message, actions=actions)
    try:
        chosen = await server.window_show_message_request_async(params)
    except ClientRefused:
        if kind is types.MessageType.Error:
            server.say(kind, message)
        return None
    return chosen.title if chosen is not None else None


async def _write(server: KernelLanguageServer, document: Document, job: Job, texts: Sequence[str]) -> int | None:
    """Insert the pragmas in one edit; return the first line, or None when the text has changed or the client
    refuses."""
    known = await server.analyses.current(document, ANALYSIS_S)
    target = known.now(document).target(job.symbol)
    if target is None or (job.digest and target.digest != job.digest) or len(target.pragmas) != len(texts):
        server.say(types.MessageType.Warning, f"{job.symbol} has changed meanwhile: its shapes are not written.")
        return None
    lines = [line for line, _ in target.pragmas]
    serial = document.serial
    edits = DocumentEdits(document, pragma_edits(document, list(zip(lines, texts, strict=True))))
    edit = document_edit(edits, versioned=server.client.versioned_edits)
    if not await server.apply(edit, f"kernel-lsp: shapes of {job.symbol}"):
        return None
    await _until(lambda: document.serial != serial)
    return lines[0]


async def _once_saved(
    say: Say, when_saved: dict[str, Callable[[], object]], document: Document, start: Callable[[], object]
) -> None:
    """Start once the file has the pragmas: at once where the client saves what it applied, else at the next save."""
    path = document.path
    if path is None or await _until(lambda: is_saved(document, path)):
        start()
        return
    when_saved[document.uri] = start
    say(types.MessageType.Info, f"Save {path.name}: the run starts then.")


def _optimize(server: KernelLanguageServer, job: Job) -> None:
    about = TargetArguments(job.uri, job.symbol)
    start_optimize(server, about, backward=job.following == "optimize_with_backward")


async def _show_line(server: KernelLanguageServer, document: Document, line: int) -> None:
    if server.client.shows_documents:
        position = types.Position(line, len(document.line_text(line)))
        place = types.Range(position, position)
        params = types.ShowDocumentParams(uri=document.uri, take_focus=True, selection=place)
        await server.show_document(params)


def _offer_record(server: KernelLanguageServer, document: Document) -> None:
    """Type the command line into the client's terminal, or say it."""
    path = file_of(document)
    script = path.name if "__main__" in document.text else "SCRIPT.py"
    command = f"kernel-lsp record -- python {shlex.quote(script)}"
    if server.types_commands:
        server.protocol.notify("kernelLsp/typeCommand", CommandLine(command, str(path.parent)))
    else:
        text = f"In {path.parent}, run the program that calls it under: {command}"
        server.say(types.MessageType.Info, text)


async def _until(holds: Callable[[], bool]) -> bool:
    """Wait for a while; return whether it holds."""
    for _ in range(int(CHANGE_S / POLL_S)):
        if holds():
            return True
        await asyncio.sleep(POLL_S)
    return holds()
