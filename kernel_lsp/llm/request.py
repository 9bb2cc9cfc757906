"""Requests to a model, and replies. `Model` is the interface; `tests.scripted_model` has its fake."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Literal, Protocol

from pydantic import Field

from kernel_lsp.core.digest import sha256_of
from kernel_lsp.core.model import Noun

KEY_HEX_DIGITS = 24

Purpose = Literal["translate", "propose", "repair", "reformat", "judge"]
"""Purpose of a reply; a run has a list of models for each."""


class Message(Noun):
    role: Literal["system", "user", "assistant"]
    content: str


class ModelRequest(Noun):
    """One prompt. `sample` distinguishes equal prompts, so that each gets its own reply. `prompt` names the template,
    `prompt_hash` its text."""

    purpose: Purpose
    messages: tuple[Message, ...]
    sample: int = 0
    temperature: float = 0.7
    max_tokens: int = 16_384
    prompt: str = ""
    prompt_hash: str = ""

    @property
    def key(self) -> str:
        """Hash of the messages and the sample, which identifies a recorded reply. It excludes the model and its
        temperature, so a recording replays for any model."""
        text = json.dumps([self.purpose, [[m.role, m.content] for m in self.messages], self.sample])
        return sha256_of(text, KEY_HEX_DIGITS)


class Usage(Noun):
    """Consumption of one call. `cost_usd` is None when the price is unknown."""

    n_prompt_tokens: int = 0
    n_reply_tokens: int = 0
    cost_usd: float | None = 0.0


class Replied(Noun):
    """The whole reply, exactly as received. `finish` is ``length`` when it was truncated at the token limit."""

    kind: Literal["replied"] = "replied"
    model: str
    text: str
    usage: Usage = Usage()
    finish: Literal["stop", "length", "other"] = "stop"


Cause = Literal[
    "rate_limited",
    "server",
    "connection",
    "timeout",
    "authentication",
    "refused",
    "unavailable",
    "no_recording",
    "budget",
    "awaited",
]
RETRIED: frozenset[Cause] = frozenset(("rate_limited", "server", "connection", "timeout"))
"""Transient faults of the provider. Errors of the request or the key are permanent; ``awaited`` is a person's reply
that may come later."""


class ModelFailed(Noun):
    """No reply. `usage` is the cost incurred nevertheless, e.g. by a broken stream."""

    kind: Literal["failed"] = "failed"
    model: str
    cause: Cause
    message: str
    retry_after_s: float | None = None
    usage: Usage = Usage()


ModelOutcome = Annotated[Replied | ModelFailed, Field(discriminator="kind")]

OnText = Callable[[str], None]
"""Called with each chunk of a streamed reply."""


def ignore_text(_: str) -> None:
    """Ignore the stream."""


class Model(Protocol):
    """One model of one provider. Failures are values; only a broken environment raises."""

    @property
    def name(self) -> str: ...

    def worst_cost_usd(self, request: ModelRequest) -> float | None:
        """Return the maximum cost of this call; None when the price is unknown."""
        ...

    async def reply(self, request: ModelRequest, on_text: OnText = ignore_text) -> Replied | ModelFailed:
        """Ask once, without retries, within the model's own deadline."""
        ...


class FreeModel:
    """The part of a `Model` that charges nothing."""

    def worst_cost_usd(self, request: ModelRequest) -> float:
        return 0.0
