"""`kernel-lsp mcp` and `kernel-lsp workspace`: tools on one target, and a folder, for an external coding agent."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from kernel_lsp.cli import console
from kernel_lsp.config import load_settings
from kernel_lsp.evolve.agent.tools import AgentTools, answer, write_workspace
from kernel_lsp.process.stdio import claim_stdout, open_stdin


def serve(target: str, backward: bool, overrides: Mapping[str, Any]) -> int:
    """Serve the tools over stdin and stdout until stdin ends. Returns the exit status."""
    stdout = claim_stdout()
    return console.run_to_exit_status(_serve(stdout, target, backward, overrides))


async def _serve(stdout: BinaryIO, target: str, backward: bool, overrides: Mapping[str, Any]) -> int:
    settings = load_settings(Path.cwd(), overrides)
    async with AgentTools(target, Path.cwd(), settings, with_backward=backward) as tools:
        stdin = await open_stdin()
        while line := await stdin.readline():
            if not line.strip():
                continue
            reply = await answer(line.decode(errors="replace"), tools)
            if reply is not None:
                stdout.write(json.dumps(reply).encode() + b"\n")
    return console.EXIT_OK


@console.command
async def write(target: str, directory: Path, backward: bool, overrides: Mapping[str, Any]) -> int:
    settings = load_settings(Path.cwd(), overrides)
    with console.stage(f"capturing {target}"):
        async with AgentTools(target, Path.cwd(), settings, with_backward=backward) as tools:
            document = (await tools.call("task", {})).text
            name = tools.name
    options = ["--device", settings.device, *(["--backward"] if backward else [])]
    server = [sys.executable, "-m", "kernel_lsp", "mcp", target, *options]
    for file in write_workspace(directory, name, document, server, Path.cwd()):
        console.stdout.print(str(file), markup=False)
    return console.EXIT_OK
