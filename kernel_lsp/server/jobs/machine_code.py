"""Answer requests for the PTX or SASS of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pygls.exceptions import JsonRpcInvalidParams

from kernel_lsp.engine.messages import GetMachineCode, MachineCode
from kernel_lsp.server.documents.places import file_of
from kernel_lsp.server.jobs.jobs import new_id
from kernel_lsp.server.protocol import messages as protocol
from kernel_lsp.server.state import State


async def _machine_code(state: State, params: protocol.MachineCodeParams) -> protocol.MachineCodeResult:
    document = state.documents.named(params.uri)
    if document is None or document.language != "cuda":
        raise JsonRpcInvalidParams(message=f"no CUDA document {params.uri!r} is open")
    if not state.trust.allows_commands:
        raise JsonRpcInvalidParams(message="the workspace is not trusted")
    path = file_of(document)
    request = GetMachineCode(
        id=new_id(),
        directory=path.parent,
        kernel=path,
        text=document.text,
        line=params.line + 1,
        form=params.form,
        architecture=params.architecture,
        settings=state.settings.overrides(path.parent),
    )
    reply = await state.engines.of(path.parent).ask(request)
    if reply.error is not None:
        problem = f"{reply.error.message}. Next: {reply.error.next_step}".removesuffix(". Next: ")
        return _result(MachineCode(form=params.form, architecture=params.architecture, problem=problem))
    return _result(MachineCode.model_validate(reply.result))


HANDLERS: dict[str, Callable[..., Any]] = {"kernelLsp/machineCode": _machine_code}


def _result(code: MachineCode) -> protocol.MachineCodeResult:
    return protocol.MachineCodeResult(
        text=code.text,
        lines=[line - 1 for line in code.lines],
        function=code.function,
        architecture=code.architecture,
        first_line=code.first_line - 1,
        last_line=code.last_line - 1,
        architectures=list(code.architectures),
        problem=code.problem,
    )
