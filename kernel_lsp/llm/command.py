"""A local command-line assistant as the model: the prompt on its stdin, the reply on its stdout."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernel_lsp.llm.manual import prompt_text
from kernel_lsp.llm.request import ModelFailed, ModelRequest, OnText, Replied, ignore_text
from kernel_lsp.process.supervisor import run, scrubbed_environment

MAX_REPLY_BYTES = 4 << 20
N_STDERR_CHARACTERS = 300


class CommandModel:
    """Run `argv` for each request in an empty folder, with the restricted environment of all child processes: an
    assistant has to read an API key from its own configuration."""

    def __init__(self, argv: Sequence[str], deadline_s: float) -> None:
        self._argv, self._deadline_s = tuple(argv), deadline_s

    @property
    def name(self) -> str:
        return f"command:{shlex.join(self._argv)}"

    @property
    def costs_money(self) -> bool:
        return False

    def worst_cost_usd(self, request: ModelRequest) -> float:
        return 0.0

    async def reply(self, request: ModelRequest, on_text: OnText = ignore_text) -> Replied | ModelFailed:
        with tempfile.TemporaryDirectory(prefix="kernel-lsp-command-") as folder:
            try:
                result = await run(
                    self._argv,
                    deadline_s=self._deadline_s,
                    stdin=prompt_text(request).encode(),
                    environment=scrubbed_environment(),
                    directory=Path(folder),
                    max_output_bytes=MAX_REPLY_BYTES,
                )
            except OSError as error:
                message = f"{self._argv[0]} cannot be started: {error.strerror}"
                return ModelFailed(model=self.name, cause="unavailable", message=message)
        if result.timed_out:
            message = f"no end within {self._deadline_s:.0f} s"
            return ModelFailed(model=self.name, cause="timeout", message=message)
        text = result.stdout.decode(errors="replace")
        if result.returncode != 0 or not text.strip():
            said = result.stderr.decode(errors="replace").strip()[-N_STDERR_CHARACTERS:]
            message = f"it ended with status {result.returncode} and {len(text)} characters: {said}".rstrip(": ")
            return ModelFailed(model=self.name, cause="refused", message=message)
        on_text(text)
        return Replied(model=self.name, text=text, finish="length" if result.truncated else "stop")
