"""A candidate: CUDA device code and its launch plan as one text, with its provenance."""

from __future__ import annotations

from typing import Literal

from kernel_lsp.core.digest import SHORT_DIGITS, sha256_of
from kernel_lsp.core.model import Noun


class Origin(Noun):
    """Provenance of a candidate. `schedule` holds the generator's choices, e.g. ``{"block": 256, "vector": 4}``."""

    proposer: Literal["generator", "model", "user"]
    description: str = ""
    schedule: dict[str, int | str] = {}
    parents: tuple[str, ...] = ()
    generation: int = 0
    model: str | None = None
    """With the fields below: set for a model's proposal."""
    operator: str = ""
    """Kind of request: ``translate``, ``improve``, ``edit``, ``crossover`` or ``repair``."""
    temperature: float | None = None
    hint: str = ""
    thought: str = ""
    prompt: str = ""
    prompt_hash: str = ""
    """Hash of the prompt template; `request_key` finds the prompt that was sent."""
    request_key: str = ""


class Candidate(Noun):
    """One `.cu` text. Candidates with equal texts are equal."""

    text: str
    origin: Origin

    @property
    def id(self) -> str:
        """Return the content hash of the text."""
        return candidate_id_of(self.text)


def candidate_id_of(text: str) -> str:
    """Return the content hash of a kernel's text."""
    return sha256_of(text, SHORT_DIGITS)
