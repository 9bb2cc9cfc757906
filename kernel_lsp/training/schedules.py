"""Random schedules of a program: valid, each text once, the default first."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Protocol

Schedule = Mapping[str, int | str]

N_CHANGES = (1, 1, 2, 2, 3, 4, 6)
"""Numbers of knobs that differ from the default, drawn with equal probability: half are neighbours of the default."""
MAX_DRAWS_PER_SCHEDULE = 12
"""Maximum renderings per schedule; failures are invalid combinations or known texts."""


class KnobLike(Protocol):
    """One choice of a schedule."""

    @property
    def name(self) -> str: ...
    @property
    def values(self) -> Sequence[int | str]: ...
    @property
    def default(self) -> int | str: ...


class RealizedLike(Protocol):
    """A rendered schedule, with only the choices that affect the text."""

    @property
    def schedule(self) -> Mapping[str, int | str]: ...
    @property
    def knobs(self) -> Sequence[KnobLike]: ...
    @property
    def text(self) -> str: ...
    @property
    def is_valid(self) -> bool: ...


class SchedulableProgram(Protocol):
    """Interface of a generated program. A knob missing in a schedule has its default."""

    def realize(self, schedule: Schedule) -> RealizedLike: ...


def draw_schedules(program: SchedulableProgram, n: int, seed: int | str) -> list[RealizedLike]:
    """Return the default and up to `n` - 1 random valid schedules with distinct texts; fewer from a small space."""
    draw = random.Random(f"schedules:{seed}")
    default = program.realize({})
    found = {default.text: default}
    for _ in range(n * MAX_DRAWS_PER_SCHEDULE):
        if len(found) >= n:
            break
        realized = _drawn(program, default, draw)
        if realized.is_valid:
            found.setdefault(realized.text, realized)
    return list(found.values())


def _drawn(program: SchedulableProgram, default: RealizedLike, draw: random.Random) -> RealizedLike:
    """Change several knobs, one at a time: a choice of structure brings knobs of its own."""
    realized = default
    for _ in range(draw.choice(N_CHANGES)):
        mutable = [knob for knob in realized.knobs if len(knob.values) > 1]
        if not mutable:
            break
        knob = draw.choice(mutable)
        value = draw.choice([value for value in knob.values if value != realized.schedule[knob.name]])
        changed = program.realize({**realized.schedule, knob.name: value})
        realized = changed if changed.is_valid else realized
    return realized
