"""A person at the terminal as the model: the prompt goes to stderr, the reply comes from stdin."""

from __future__ import annotations

import asyncio
import sys

from kernel_lsp.cli import console
from kernel_lsp.llm.manual import prompt_text
from kernel_lsp.llm.request import ModelFailed, ModelRequest, Replied

END_MARK = "."
"""Line that ends a reply, as in mail; the end of stdin does, too."""

_TURN = asyncio.Lock()


async def paste(request: ModelRequest) -> Replied | ModelFailed:
    """Show the prompt, read the reply. One at a time."""
    async with _TURN:
        console.stderr.rule("prompt")
        console.stderr.print(prompt_text(request), markup=False)
        console.stderr.rule(f"paste the reply, then a line with a single {END_MARK}")
        text = await asyncio.to_thread(_read_reply)
    if not text.strip():
        return ModelFailed(model="paste", cause="unavailable", message="nothing was pasted")
    return Replied(model="paste", text=text)


def _read_reply() -> str:
    lines: list[str] = []
    for line in sys.stdin:
        if line.rstrip("\r\n") == END_MARK:
            break
        lines.append(line)
    return "".join(lines)
