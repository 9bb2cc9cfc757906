"""May anything of the user's run? An untrusted workspace gets parsing, static rules and static hovers, and no more."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Trust:
    """`said` is what the client said; None until it says anything. A command that the user gives is a word, too: in a
    workspace that nobody called untrusted it runs, and from then on things may run by themselves."""

    said: bool | None = None
    has_been_asked: bool = False

    @property
    def allows_commands(self) -> bool:
        """What the user asks for now."""
        return self.said is not False

    @property
    def allows_background_work(self) -> bool:
        """What nobody asked for: a check on save, an estimate on hover."""
        return self.said is True or (self.said is None and self.has_been_asked)
