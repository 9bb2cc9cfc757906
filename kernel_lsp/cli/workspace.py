"""`kernel-lsp workspace`: a folder for an external coding agent."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernel_lsp.cli import console
from kernel_lsp.config import load_settings
from kernel_lsp.evolve.agent.tools import AgentTools
from kernel_lsp.evolve.agent.workspace import write_workspace


def main(target: str, directory: Path, backward: bool, overrides: Mapping[str, Any]) -> int:
    """Run the command; returns the exit status."""
    return console.run_to_exit_status(_write(target, directory, backward, overrides))


async def _write(target: str, directory: Path, backward: bool, overrides: Mapping[str, Any]) -> int:
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
