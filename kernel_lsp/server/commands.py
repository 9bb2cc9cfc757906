"""What `workspace/executeCommand` does. A command that starts a job answers with its id before the job has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.exceptions import JsonRpcInvalidParams

from kernel_lsp.config import Settings
from kernel_lsp.engine.messages import (
    Check,
    EstimateTarget,
    JobRequest,
    Optimize,
    OptimizeLines,
    ProfileKernel,
    Resume,
)
from kernel_lsp.evolve.run.request import find_workspace
from kernel_lsp.server.documents.documents import Document
from kernel_lsp.server.documents.places import cells_of, file_at, file_of, is_saved, place_of
from kernel_lsp.server.features.explanations import explanation
from kernel_lsp.server.features.result_view import show_report, show_result
from kernel_lsp.server.jobs.jobs import Job, new_id
from kernel_lsp.server.jobs.progress import WorkDoneProgress
from kernel_lsp.server.language_server import KernelLanguageServer
from kernel_lsp.server.protocol import messages as protocol
from kernel_lsp.server.protocol.rpc import structure_strictly

ANALYSIS_WAIT_S, FIRST_ANALYSIS_S = 0.5, 5.0
"""A text takes some hundredths of a second, the first one as long as its analyst takes to start."""
UNTRUSTED = "The workspace is not trusted, so nothing of it is run. Trust it first."


async def execute(server: KernelLanguageServer, params: types.ExecuteCommandParams) -> Any:
    """Run a command. Raises JsonRpcInvalidParams for one that there is not, or arguments that are none."""
    command = next((known for known in protocol.COMMANDS if known.name == params.command), None)
    if command is None:
        raise JsonRpcInvalidParams(message=f"there is no command {params.command!r}")
    argument = _argument(command, list(params.arguments or ()))
    if isinstance(argument, protocol.TargetArguments):
        await _up_to_date(server, argument.uri)
    return await _HANDLERS[command.name](server, argument)


def start_check(server: KernelLanguageServer, document: Document, *, is_quiet: bool, is_measured: bool = False) -> str:
    """Check a kernel file as it is in the editor, on the GPU as well where `is_measured`; an earlier check of it that
    is under way is ended."""
    path = file_at(document.uri)
    for job in server.jobs:
        if isinstance(job.request, Check) and job.uri == document.uri:
            server.spawn(server.jobs.cancel(job))
    overrides = server.settings.overrides(path.parent)
    device = server.settings_for(path).device
    overrides |= {"device": _measuring(device) if is_measured else _checking(device)}
    request = Check(id=new_id(), directory=path.parent, kernel=path, text=document.text, settings=overrides)
    title = f"{'Measure' if is_measured else 'Check'} {path.name}"
    return _start(server, request, title, document.uri, path, serial=document.serial, is_quiet=is_quiet)


def start_estimate(server: KernelLanguageServer, document: Document, symbol: str, *, is_quiet: bool) -> str:
    """Estimate a target, of the file as it is on disk, or of a notebook's cells as they are in the editor. Quietly, one
    whose text is as it was captured is not captured again."""
    path = file_of(document)
    for job in server.jobs:
        if isinstance(job.request, EstimateTarget) and job.uri == document.uri and job.symbol == symbol:
            return job.id
    about = {**_about(server, document, symbol), "settings": server.settings_for(path)}
    if document.path is not None and not is_saved(document, path):
        about["digest"] = ""  # what is estimated is not the text in the editor
    captured = server.knowledge.capture(document.uri, symbol)
    is_captured = is_quiet and captured is not None and captured.digest == about["digest"]
    if captured is not None and is_captured:
        about["serial"] = captured.serial
    request = EstimateTarget(
        id=new_id(),
        directory=path.parent,
        target=f"{path.name}::{symbol}",
        cells=cells_of(server, document),
        as_captured=is_captured,
        settings=server.settings.overrides(path.parent),
    )
    return _start(server, request, f"Estimate {symbol}", document.uri, path, **about, is_quiet=is_quiet)


def start_resume(server: KernelLanguageServer, uri: str, workspace: Path, run_id: str) -> str:
    """Go on with a run."""
    request = Resume(id=new_id(), directory=workspace, run_id=run_id, has_editor_model=server.has_editor_model)
    run = server.knowledge.run(run_id)
    title = f"Optimize {run.target} (resumed)" if run is not None else f"Resume {run_id}"
    return _start(server, request, title, uri, workspace / "file")


# --- below: one function per command


async def _optimize(server: KernelLanguageServer, about: protocol.TargetArguments) -> protocol.JobStarted:
    return _start_optimize(server, about, backward=False)


async def _optimize_with_backward(server: KernelLanguageServer, about: protocol.TargetArguments) -> protocol.JobStarted:
    return _start_optimize(server, about, backward=True)


async def _up_to_date(server: KernelLanguageServer, uri: str) -> None:
    """Wait a moment for the analysis of the text as it is now, so that a result is known to be of it."""
    document = server.documents.named(uri)
    if document is not None:
        is_new = server.analyses.latest(document).asked_serial < 0
        await server.analyses.current(document, FIRST_ANALYSIS_S if is_new else ANALYSIS_WAIT_S)


def _start_optimize(
    server: KernelLanguageServer, about: protocol.TargetArguments, *, backward: bool
) -> protocol.JobStarted:
    _allow(server)
    document = server.documents.named(about.uri)
    path = file_of(document) if document is not None else file_at(about.uri)
    cells = cells_of(server, document) if document is not None else ()
    if document is not None and not cells:
        _check_saved(server, document, path)
    given = server.documents.named(about.kernel) if about.kernel else None
    request = Optimize(
        id=new_id(),
        directory=path.parent,
        target=f"{path.name}::{about.symbol}",
        backward=backward,
        cells=cells,
        kernel=file_at(about.kernel) if about.kernel else None,
        kernel_text=given.text if given is not None else None,
        settings=server.settings.overrides(path.parent),
        has_editor_model=server.has_editor_model,
    )
    known = _about(server, document, about.symbol) if document is not None else {"symbol": about.symbol}
    uri = document.uri if document is not None else about.uri
    return protocol.JobStarted(_start(server, request, f"Optimize {about.symbol}", uri, path, **known))


async def _optimize_lines(server: KernelLanguageServer, about: protocol.LinesArguments) -> protocol.JobStarted:
    _allow(server)
    path = file_at(about.uri)
    document = server.documents.named(about.uri)
    if document is None:
        raise JsonRpcInvalidParams(message=f"the document {about.uri!r} is not open")
    _check_saved(server, document, path)
    first, last = about.first_line + 1, about.last_line + 1
    request = OptimizeLines(
        id=new_id(),
        directory=path.parent,
        target=f"{path.name}::{about.symbol}",
        first_line=first,
        last_line=last,
        settings=server.settings.overrides(path.parent),
        has_editor_model=server.has_editor_model,
    )
    title = f"Optimize lines {first} to {last} of {about.symbol}"
    return protocol.JobStarted(_start(server, request, title, document.uri, path, serial=document.serial))


async def _check(server: KernelLanguageServer, about: protocol.DocumentArguments) -> protocol.JobStarted:
    return protocol.JobStarted(start_check(server, _kernel(server, about), is_quiet=False))


async def _measure(server: KernelLanguageServer, about: protocol.DocumentArguments) -> protocol.JobStarted:
    document = _kernel(server, about)
    if not server.has_gpu:
        raise JsonRpcInvalidParams(message="this machine has no GPU to measure on")
    return protocol.JobStarted(start_check(server, document, is_quiet=False, is_measured=True))


async def _profile(server: KernelLanguageServer, about: protocol.DocumentArguments) -> protocol.JobStarted:
    document = _kernel(server, about)
    path = file_at(document.uri)
    overrides = server.settings.overrides(path.parent)
    request = ProfileKernel(id=new_id(), directory=path.parent, kernel=path, text=document.text, settings=overrides)
    job = _start(server, request, f"Profile {path.name}", document.uri, path, serial=document.serial)
    return protocol.JobStarted(job)


def _kernel(server: KernelLanguageServer, about: protocol.DocumentArguments) -> Document:
    """The open kernel file that a command is about. Raises JsonRpcInvalidParams, also in an untrusted workspace."""
    _allow(server)
    document = server.documents.named(about.uri)
    if document is None or document.language != "cuda":
        raise JsonRpcInvalidParams(message=f"no CUDA document {about.uri!r} is open")
    return document


def _checking(device: str) -> str:
    """Correctness needs no GPU: one is used when the user said so."""
    return "cpu" if device == "auto" else device


def _measuring(device: str) -> str:
    return device if device.startswith("cuda") else "cuda"


async def _estimate(server: KernelLanguageServer, about: protocol.TargetArguments) -> protocol.JobStarted:
    _allow(server)
    document = server.documents.named(about.uri)
    if document is None:
        raise JsonRpcInvalidParams(message=f"the document {about.uri!r} is not open")
    return protocol.JobStarted(start_estimate(server, document, about.symbol, is_quiet=False))


async def _cancel(server: KernelLanguageServer, about: protocol.JobArguments) -> protocol.JobStarted:
    job = server.jobs.get(about.job) if about.job is not None else server.jobs.newest()
    if job is None:
        raise JsonRpcInvalidParams(message="no such job is under way")
    server.spawn(server.jobs.cancel(job))
    return protocol.JobStarted(job.id)


async def _resume(server: KernelLanguageServer, about: protocol.RunArguments) -> protocol.JobStarted:
    _allow(server)
    workspace = find_workspace(place_of(server, about.uri).parent)
    return protocol.JobStarted(start_resume(server, about.uri, workspace, about.run))


async def _show_kernel(server: KernelLanguageServer, about: protocol.RunArguments) -> None:
    server.spawn(show_result(server, about, beside=False))


async def _compare(server: KernelLanguageServer, about: protocol.RunArguments) -> None:
    server.spawn(show_result(server, about, beside=True))


async def _report(server: KernelLanguageServer, about: protocol.RunArguments) -> None:
    server.spawn(show_report(server, about))


async def _explain(server: KernelLanguageServer, about: protocol.ExplainArguments) -> str:
    text = await asyncio.to_thread(explanation, about.code)
    server.say(types.MessageType.Info, text)
    return text


_HANDLERS: dict[str, Callable[[KernelLanguageServer, Any], Any]] = {
    "kernelLsp.optimize": _optimize,
    "kernelLsp.optimizeWithBackward": _optimize_with_backward,
    "kernelLsp.optimizeLines": _optimize_lines,
    "kernelLsp.check": _check,
    "kernelLsp.measure": _measure,
    "kernelLsp.profile": _profile,
    "kernelLsp.estimate": _estimate,
    "kernelLsp.cancel": _cancel,
    "kernelLsp.resume": _resume,
    "kernelLsp.showKernel": _show_kernel,
    "kernelLsp.compare": _compare,
    "kernelLsp.report": _report,
    "kernelLsp.explain": _explain,
}


# --- below: starting


def _start(
    server: KernelLanguageServer,
    request: JobRequest,
    title: str,
    uri: str,
    path: Path,
    *,
    is_quiet: bool = False,
    symbol: str = "",
    digest: str = "",
    serial: int = 0,
    settings: Settings | None = None,
) -> str:
    job = Job(
        request=request,
        title=title,
        uri=uri,
        workspace=find_workspace(path.parent),
        engine=server.engines.of(path.parent),
        progress=WorkDoneProgress(server.protocol, title, is_shown=server.client.shows_progress),
        is_quiet=is_quiet,
        symbol=symbol,
        digest=digest,
        serial=serial,
        settings=settings,
    )
    server.jobs.start(job)
    return job.id


def _about(server: KernelLanguageServer, document: Document, symbol: str) -> dict[str, Any]:
    """Which text a job is about."""
    target = server.analyses.latest(document).analysis.target(symbol)
    digest = target.digest if target is not None else ""
    return {"symbol": symbol, "digest": digest, "serial": document.serial}


def _allow(server: KernelLanguageServer) -> None:
    """Raises JsonRpcInvalidParams in an untrusted workspace."""
    if not server.trust.allows_commands:
        server.say(types.MessageType.Warning, UNTRUSTED)
        raise JsonRpcInvalidParams(message=UNTRUSTED)
    server.trust.has_been_asked = True


def _check_saved(server: KernelLanguageServer, document: Document, path: Path) -> None:
    """The worker imports the file: one that is not saved would give another kernel than the user sees code for."""
    if not is_saved(document, path):
        message = f"Save {path.name} first: the file on disk is what gets optimized."
        server.say(types.MessageType.Warning, message)
        raise JsonRpcInvalidParams(message=message)


def _argument(command: protocol.Command, arguments: list[Any]) -> Any:
    try:
        if len(arguments) > 1:
            raise TypeError("one object is expected")
        return structure_strictly(arguments[0] if arguments else {}, command.argument)
    except Exception as error:  # converters raise whatever the malformed value made them stumble over
        name = command.argument.__name__
        raise JsonRpcInvalidParams(message=f"{command.name} takes one {name}: {error}") from None
