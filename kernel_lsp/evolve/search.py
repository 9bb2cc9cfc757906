"""Evolutionary search over a program's schedule space: seeded, so the same scores give the same proposals."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Schedule = dict[str, int | str]

N_PARENTS = 4
"""The best schedules that the next generation comes from."""
CROSSOVER_PROBABILITY = 0.25
SECOND_MUTATION_PROBABILITY = 0.4
N_ATTEMPTS_PER_PROPOSAL = 40
"""Draws before a proposal is given up: the neighbourhood is exhausted."""


class KnobLike(Protocol):
    """One choice of a schedule."""

    @property
    def name(self) -> str: ...
    @property
    def values(self) -> Sequence[int | str]: ...
    @property
    def default(self) -> int | str: ...


class SchedulableProgram(Protocol):
    """What the search needs of a generated program."""

    @property
    def knobs(self) -> Sequence[KnobLike]: ...
    def is_valid(self, schedule: Mapping[str, int | str]) -> bool: ...
    def render(self, schedule: Mapping[str, int | str]) -> str: ...


@dataclass(frozen=True)
class Scored:
    """A schedule that was evaluated and is right, with its time."""

    schedule: Schedule
    candidate_id: str
    score_us: float


@dataclass(frozen=True)
class Proposal:
    """A schedule to try, its text, and which candidates it came from."""

    schedule: Schedule
    text: str
    parents: tuple[str, ...]
    description: str


def propose(
    program: SchedulableProgram, *, n: int, generation: int, ranked: Sequence[Scored], seen: set[str], seed: int
) -> list[Proposal]:
    """Up to `n` new schedules whose texts are not in `seen`; fewer when the space has no more nearby. `ranked` is best
    first. The first generation is the default and its neighbours, one knob changed at a time."""
    draw = random.Random(f"{seed}:{generation}")
    known = set(seen)
    proposals: list[Proposal] = []
    if generation == 0:
        _take(program, default_schedule(program), (), "the default schedule", known, proposals)
    for _ in range(n * N_ATTEMPTS_PER_PROPOSAL):
        if len(proposals) >= n:
            break
        schedule, parents = _vary(program, ranked, draw)
        _take(program, schedule, parents, _difference(program, schedule), known, proposals)
    return proposals[:n]


def default_schedule(program: SchedulableProgram) -> Schedule:
    """Every knob at its default."""
    return {knob.name: knob.default for knob in program.knobs}


# --- below: variation


def _take(
    program: SchedulableProgram,
    schedule: Schedule,
    parents: tuple[str, ...],
    description: str,
    known: set[str],
    proposals: list[Proposal],
) -> None:
    if not program.is_valid(schedule):
        return
    text = program.render(schedule)
    if text not in known:
        known.add(text)
        proposals.append(Proposal(schedule, text, parents, description))


def _vary(
    program: SchedulableProgram, ranked: Sequence[Scored], draw: random.Random
) -> tuple[Schedule, tuple[str, ...]]:
    parents = ranked[:N_PARENTS]
    if not parents:
        return _mutate(program, default_schedule(program), draw), ()
    # Better parents are drawn more often: weight 1/rank.
    first, second = draw.choices(parents, weights=[1 / (rank + 1) for rank in range(len(parents))], k=2)
    if first is not second and draw.random() < CROSSOVER_PROBABILITY:
        mixed = {name: draw.choice((value, second.schedule[name])) for name, value in first.schedule.items()}
        return mixed, (first.candidate_id, second.candidate_id)
    return _mutate(program, first.schedule, draw), (first.candidate_id,)


def _mutate(program: SchedulableProgram, schedule: Schedule, draw: random.Random) -> Schedule:
    mutable = [knob for knob in program.knobs if len(knob.values) > 1]
    changed = dict(schedule)
    n_changes = 2 if draw.random() < SECOND_MUTATION_PROBABILITY else 1
    for knob in draw.sample(mutable, min(n_changes, len(mutable))):
        changed[knob.name] = draw.choice([value for value in knob.values if value != changed[knob.name]])
    return changed


def _difference(program: SchedulableProgram, schedule: Schedule) -> str:
    changes = [f"{knob.name}={schedule[knob.name]}" for knob in program.knobs if schedule[knob.name] != knob.default]
    return ", ".join(changes) or "the default schedule"
