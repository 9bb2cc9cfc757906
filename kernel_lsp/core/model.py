"""The base of every noun that is shown, stored or sent: a frozen pydantic model that refuses unknown fields."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

SCHEMA_VERSION = 1
"""Of every JSON object on stdout and in the archive. A change that breaks readers raises it."""


class Noun(BaseModel):
    """Frozen, compared by value, strict about its fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
