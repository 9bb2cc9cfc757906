"""The schedule space: named choices with their values and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Choice = int | str
Schedule = Mapping[str, Choice]


@dataclass(frozen=True)
class Knob:
    """One choice. `name` is ``<kernel>.<what>``."""

    name: str
    values: tuple[Choice, ...]
    default: Choice
    description: str


@dataclass
class Choices:
    """Reads a schedule, and records the knobs that were requested."""

    schedule: Schedule
    knobs: dict[str, Knob] = field(default_factory=dict)

    def pick(self, name: str, values: Sequence[Choice], default: Choice, description: str) -> Choice:
        """Return the schedule's value of a knob, or the default where the schedule has no valid value."""
        kept = tuple(dict.fromkeys([*values, default]))
        ordered = tuple(sorted(kept)) if all(isinstance(value, int) for value in kept) else kept  # type: ignore[type-var]  # all int
        self.knobs.setdefault(name, Knob(name, ordered, default, description))
        chosen = self.schedule.get(name, default)
        return chosen if chosen in ordered else default

    def pick_int(self, name: str, values: Sequence[int], default: int, description: str) -> int:
        return int(self.pick(name, values, default, description))
