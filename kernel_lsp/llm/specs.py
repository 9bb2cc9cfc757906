"""Models by what a user writes: ``--model openai/gpt-5``, ``--model judge=ollama/qwen3``, ``--model manual:replies``.

[PURPOSE=]NAME        any model that litellm knows, or of the server at model_base_url
[PURPOSE=]manual[:DIR]       prompts are written to DIR, replies read from there
[PURPOSE=]command:PROGRAM    the prompt on stdin, the reply on stdout
[PURPOSE=]replay:FILE        recorded replies
[PURPOSE=]editor             the editor's own model, when an editor runs this
[PURPOSE=]paste              a person pastes replies into the terminal
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from kernel_lsp.errors import SettingError
from kernel_lsp.llm.litellm_model import Endpoint, LitellmModel, Prices
from kernel_lsp.llm.manual import WAIT_S, Ask, CallbackModel, ManualModel, OnPrompt, ignore_prompt, prompt_text
from kernel_lsp.llm.recording import Recording, ReplayModel, read_recording
from kernel_lsp.llm.request import (
    FreeModel,
    Message,
    Model,
    ModelFailed,
    ModelRequest,
    OnText,
    Purpose,
    Replied,
    ignore_text,
)
from kernel_lsp.process.supervisor import run, scrubbed_environment

CALLBACKS = ("editor", "paste")
"""Names of models that are called back in the calling program."""
NOT_HERE = {
    "editor": "what runs this is no editor with a language model of its own",
    "paste": "there is no terminal to paste replies into",
}
ELSEWHERE = (
    "name another model in `models`: a vendor's, or manual, which any chat can answer; `editor` needs an editor such as"
    " VS Code with a chat extension, `paste` a terminal"
)
TOKENS_PER_PRICE = 1_000_000
MAX_REPLY_BYTES = 4 << 20
N_STDERR_CHARACTERS = 300


@dataclass(frozen=True)
class Surroundings:
    """Context for resolving specs. `replay` answers in place of every model, under the models' own names."""

    directory: Path
    manual_folder: Path
    endpoint: Endpoint = field(default_factory=Endpoint)
    callbacks: Mapping[str, Ask] = field(default_factory=dict)
    replay: Recording | None = None
    manual_wait_s: float = WAIT_S
    """Maximum wait for a person's reply, in seconds."""
    on_prompt: OnPrompt = ignore_prompt
    """Receives prompts that wait for a person."""


@dataclass(frozen=True)
class Roster:
    """The models of each purpose, in order; models without a purpose serve every purpose that has none of its own."""

    by_purpose: Mapping[str, tuple[Model, ...]]

    def of(self, purpose: Purpose) -> tuple[Model, ...]:
        """Return the models of a purpose. `repair` falls back to `translate`, and each purpose to the models without
        one. May be empty."""
        for name in {"repair": ("repair", "translate", "")}.get(purpose, (purpose, "")):
            if self.by_purpose.get(name):
                return self.by_purpose[name]
        return ()

    @property
    def models(self) -> tuple[Model, ...]:
        return tuple(model for models in self.by_purpose.values() for model in models)

    def missing_keys(self) -> Mapping[str, str]:
        """Return the variable of the missing API key by model, for each model that cannot be asked without one."""
        vendors = [model for model in self.models if isinstance(model, LitellmModel)]
        missing = {model.name: model.missing_key() for model in vendors}
        return {name: variable for name, variable in missing.items() if variable is not None}

    def without(self, names: Container[str]) -> Roster:
        """Return the roster without the models of these names."""
        return Roster(
            {
                purpose: tuple(model for model in models if model.name not in names)
                for purpose, models in self.by_purpose.items()
            }
        )


def open_roster(specs: Sequence[str], surroundings: Surroundings) -> Roster:
    """Open the models named by the specs. Raises SettingError, UserError."""
    by_purpose: dict[str, tuple[Model, ...]] = {}
    for spec in specs:
        purpose, name = split_spec(spec)
        model = _open(name, surroundings)
        if surroundings.replay is not None:
            model = ReplayModel(surroundings.replay.outcomes, model.name)
        by_purpose[purpose] = (*by_purpose.get(purpose, ()), model)
    return Roster(by_purpose)


def check_prices(roster: Roster, budget_usd: float | None) -> None:
    """Raise SettingError when a budget is given and a model that can be asked has no price to check against it."""
    missing = roster.missing_keys() if budget_usd is not None else {}
    probe = ModelRequest(purpose="propose", messages=(Message(role="user", content=""),))
    for model in roster.models:
        if budget_usd is not None and model.name not in missing and model.worst_cost_usd(probe) is None:
            raise SettingError(
                f"the price of {model.name} is not known, so a budget cannot be kept",
                next_step="set model_prices = 'PROMPT:REPLY' in US dollars per million tokens, or give no budget",
            )


def check_keys(roster: Roster) -> None:
    """Raise SettingError when a model needs an API key that is set nowhere."""
    for name, variable in roster.missing_keys().items():
        raise SettingError(f"missing API key for {name}", next_step=f"set {variable}")


def parse_prices(text: str | None) -> Prices | None:
    """Parse ``3:15``: 3 US dollars per million prompt tokens and 15 per million reply tokens. Raises SettingError."""
    if not text:
        return None
    try:
        prompt, reply = (float(part) / TOKENS_PER_PRICE for part in text.split(":"))
    except ValueError:
        raise SettingError(
            f"model_prices = '{text}' has not the form PROMPT:REPLY",
            next_step="e.g. 3:15, US dollars per million tokens",
        ) from None
    if not (0 <= prompt < 1 and 0 <= reply < 1):
        raise SettingError(f"model_prices = '{text}' is out of range", next_step="e.g. 3:15")
    return Prices(prompt, reply)


def split_spec(spec: str) -> tuple[str, str]:
    """Split off the purpose (empty for all). Raises SettingError."""
    head, separator, rest = spec.partition("=")
    purposes = get_args(Purpose)
    if not separator or ":" in head or "/" in head:
        head, rest = "", spec
    if head and head not in purposes:
        raise SettingError(f"model '{spec}': no purpose '{head}'", next_step=f"purposes: {', '.join(purposes)}")
    if not rest.strip():
        raise SettingError(f"model '{spec}' has no name", next_step="e.g. openai/gpt-5, ollama/qwen3, manual")
    return head, rest.strip()


def _open(name: str, around: Surroundings) -> Model:
    kind, _, rest = name.partition(":")
    if name in CALLBACKS:
        ask = around.callbacks.get(name)
        if ask is None:
            raise SettingError(f"model '{name}': {NOT_HERE[name]}", next_step=ELSEWHERE)
        return CallbackModel(name, ask, around.endpoint.deadline_s)
    if kind == "manual":
        folder = around.directory / rest if rest else around.manual_folder
        return ManualModel(folder, around.manual_wait_s, on_prompt=around.on_prompt)
    if kind == "command":
        argv = _argv(name, rest)
        if around.replay is None and shutil.which(argv[0]) is None:
            raise SettingError(f"model '{name}': there is no program {argv[0]}", next_step="check its name and PATH")
        return CommandModel(argv, around.endpoint.deadline_s)
    if kind == "replay":
        return ReplayModel(read_recording(around.directory / rest).outcomes)
    model = LitellmModel(name, around.endpoint)
    if around.replay is None:
        model.check_name()
    return model


def _argv(name: str, rest: str) -> list[str]:
    try:
        argv = shlex.split(rest)
    except ValueError as error:
        raise SettingError(f"model '{name}': {error}", next_step="quote it as for a shell") from None
    if not argv:
        raise SettingError(f"model '{name}' names no program", next_step="e.g. command:'llm -m local'")
    return argv


class CommandModel(FreeModel):
    """Run `argv` for each request in an empty folder, with the restricted environment of all child processes: an
    assistant has to read an API key from its own configuration."""

    def __init__(self, argv: Sequence[str], deadline_s: float) -> None:
        self._argv, self._deadline_s = tuple(argv), deadline_s

    @property
    def name(self) -> str:
        return f"command:{shlex.join(self._argv)}"

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
