"""Decide whether user code may run. An untrusted workspace gets parsing, static rules and static hovers only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Trust:
    """`said` is the client's answer, None until it gives one. An explicit command counts as consent in a workspace that
    was not declared untrusted; from then on background work may run, too."""

    said: bool | None = None
    has_been_asked: bool = False

    @property
    def allows_commands(self) -> bool:
        """Return True when explicitly requested commands may run."""
        return self.said is not False

    @property
    def allows_background_work(self) -> bool:
        """Return True when automatic work may run: a check on save, an estimate on hover."""
        return self.said is True or (self.said is None and self.has_been_asked)
