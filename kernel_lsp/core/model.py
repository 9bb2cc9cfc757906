"""Base of all types that are shown, stored or sent: a frozen pydantic model that rejects unknown fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1
"""Version of every JSON object on stdout and in the archive, raised by a change that breaks readers."""


class Noun(BaseModel):
    """Frozen model, compared by value, strict about its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
