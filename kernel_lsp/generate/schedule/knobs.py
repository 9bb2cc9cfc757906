"""The schedule space: named choices with their values and defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kernel_lsp.generate.identifiers import NamePool
from kernel_lsp.generate.ir.workload import Workload

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
    picks: list[tuple[Knob, Choice]] = field(default_factory=list)
    """All requests with their answers, in order."""

    def pick(self, name: str, values: Sequence[Choice], default: Choice, description: str) -> Choice:
        """Return the schedule's value of a knob, or the default where the schedule has no valid value."""
        kept = tuple(dict.fromkeys([*values, default]))
        ordered = tuple(sorted(kept)) if all(isinstance(value, int) for value in kept) else kept  # type: ignore[type-var]  # all int
        knob, chosen = Knob(name, ordered, default, description), self.schedule.get(name, default)
        self.knobs.setdefault(name, knob)
        self.picks.append((knob, chosen if chosen in ordered else default))
        return self.picks[-1][1]

    def repeats(self, picks: Iterable[tuple[Knob, Choice]]) -> bool:
        """Request the same knobs until an answer differs; return True if none does."""
        return all(self.pick(each.name, each.values, each.default, each.description) == one for each, one in picks)

    def pick_int(self, name: str, values: Sequence[int], default: int, description: str) -> int:
        return int(self.pick(name, values, default, description))


class OperationPlanner(Protocol):
    """Give what a choice of an operation's structure needs: its schedule, its captured sizes and its names."""

    choices: Choices
    workload: Workload
    operation: str
    names: NamePool
