"""A candidate is data: CUDA device code with its launch plan in one text, and where it came from."""

from __future__ import annotations

import hashlib
from typing import Literal

from kernel_lsp.core.model import Noun

ID_HEX_DIGITS = 16


class Origin(Noun):
    """Who proposed it. `schedule` holds the generator's choices, e.g. ``{"block": 256, "vector": 4}``."""

    proposer: Literal["generator", "model", "user"]
    description: str = ""
    schedule: dict[str, int | str] = {}
    parents: tuple[str, ...] = ()
    generation: int = 0
    model: str | None = None
    """With the fields below: for a model's proposal."""
    operator: str = ""
    """How it was asked for: ``translate``, ``improve``, ``edit``, ``crossover`` or ``repair``."""
    temperature: float | None = None
    hint: str = ""
    thought: str = ""
    prompt: str = ""
    prompt_hash: str = ""
    """Of the template; the prompt that was sent is found by `request_key`."""
    request_key: str = ""


class Candidate(Noun):
    """One `.cu` text. Two candidates with the same text are the same candidate."""

    text: str
    origin: Origin

    @property
    def id(self) -> str:
        """Content hash of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:ID_HEX_DIGITS]
