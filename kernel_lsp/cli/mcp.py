"""`kernel-lsp mcp`: the tools of an agent on one target, over stdin and stdout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from kernel_lsp.cli import console
from kernel_lsp.config import load_settings
from kernel_lsp.engine.stdio import claim_stdout, open_stdin
from kernel_lsp.evolve.agent.mcp import answer
from kernel_lsp.evolve.agent.tools import AgentTools


def main(target: str, backward: bool, overrides: Mapping[str, Any]) -> int:
    """Serve until stdin ends; returns the exit status."""
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
