"""What is asked of a model, and what comes back. `Model` is the seam; `kernel_lsp.llm.scripted` is its fake."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Annotated, Literal, Protocol

from pydantic import Field

from kernel_lsp.core.model import Noun

KEY_HEX_DIGITS = 24

Purpose = Literal["translate", "propose", "repair", "reformat", "judge"]
"""What a reply is for; a run has a list of models for each."""


class Message(Noun):
    role: Literal["system", "user", "assistant"]
    content: str


class ModelRequest(Noun):
    """One question. `sample` tells equal prompts apart, so that each gets a reply of its own. `prompt` names the
    template, `prompt_hash` its text."""

    purpose: Purpose
    messages: tuple[Message, ...]
    sample: int = 0
    temperature: float = 0.7
    max_tokens: int = 16_384
    prompt: str = ""
    prompt_hash: str = ""

    @property
    def key(self) -> str:
        """Hash of the messages and the sample: what a recorded reply is found by. The model and its temperature are not
        in it, so a recording answers for whichever model is asked."""
        text = json.dumps([self.purpose, [[m.role, m.content] for m in self.messages], self.sample])
        return hashlib.sha256(text.encode()).hexdigest()[:KEY_HEX_DIGITS]


class Usage(Noun):
    """What one call consumed. `cost_usd` is None where no price is known."""

    n_prompt_tokens: int = 0
    n_reply_tokens: int = 0
    cost_usd: float | None = 0.0


class Replied(Noun):
    """The whole reply, exactly as received. `finish` is ``length`` when the model was cut off at its limit."""

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
"""The provider's faults, which pass. What is wrong with the request or the key stays wrong; ``awaited`` is a person's
reply that may come later."""


class ModelFailed(Noun):
    """There is no reply. `usage` is what it cost all the same, e.g. a stream that broke off."""

    kind: Literal["failed"] = "failed"
    model: str
    cause: Cause
    message: str
    retry_after_s: float | None = None
    usage: Usage = Usage()


ModelOutcome = Annotated[Replied | ModelFailed, Field(discriminator="kind")]

OnText = Callable[[str], None]
"""Called with each piece of a streamed reply as it comes."""


def ignore_text(_: str) -> None:
    """For who does not watch the stream."""


class Model(Protocol):
    """One model of one provider. A failure is a value; only broken environments raise."""

    @property
    def name(self) -> str: ...

    @property
    def costs_money(self) -> bool:
        """Whether a call is paid for. Where it is not, a budget does not bound it."""
        ...

    def worst_cost_usd(self, request: ModelRequest) -> float | None:
        """The most that this call can cost; None where no price is known."""
        ...

    async def reply(self, request: ModelRequest, on_text: OnText = ignore_text) -> Replied | ModelFailed:
        """Ask once: no retries. Ends within the model's own deadline."""
        ...
