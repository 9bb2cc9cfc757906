"""Evolutionary search over a program's schedule space: seeded, so the same scores give the same proposals."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kernel_lsp.training.features import RealizedLike, SchedulableProgram

Schedule = dict[str, int | str]
Order = Callable[[Sequence[RealizedLike], Sequence[tuple[RealizedLike, float]]], Sequence[int]]
"""Returns the places of the schedules worth trying, the most promising first, given those with known times in
microseconds."""

_logger = logging.getLogger(__name__)

N_PARENTS = 4
"""Number of best schedules from which the next generation is derived."""
CROSSOVER_PROBABILITY = 0.25
SECOND_MUTATION_PROBABILITY = 0.4
LIBRARY = "library"
TOGETHER_PROBABILITY = 0.5
"""Share of mutations that change a knob of all kernels at once: one of a network's hundreds of knobs changes little."""
LARGE_TEXT = 100_000
"""Minimum characters of a network's text, whose first generation has no neighbours of the default, and for which no
trained order has more schedules drawn than are proposed. A rendering takes up to seconds, and a GPU waits for a whole
generation."""
MAX_NAMED = 3
"""Maximum equal changes that a description names one by one."""
N_BUILDS_PER_PROPOSAL = 4
"""Maximum rendered texts per proposal; failures are invalid or already known."""
N_DRAWN_PER_PROPOSAL = 3
"""Schedules that a trained order chooses each proposal from; drawing and rendering one costs about 50 ms."""
N_DRAWS_PER_BUILD = 20
"""Maximum draws per rendering: after a while most of a neighbourhood is known."""


@dataclass(frozen=True)
class Proposal:
    """A schedule to try, its text, and its parent candidates."""

    realized: RealizedLike
    parents: tuple[str, ...]
    description: str

    @property
    def text(self) -> str:
        return self.realized.text


@dataclass(frozen=True)
class Scored:
    """An evaluated, correct candidate with its time."""

    realized: RealizedLike
    candidate_id: str
    score_us: float


class Proposer:
    """Draw new schedules. One per run; `propose` is called once per generation, in order."""

    def __init__(self, program: SchedulableProgram, seed: int, order: Order | None = None) -> None:
        """`order` chooses among more schedules than are proposed; without one they are proposed as they are drawn."""
        self._program, self._seed = program, seed
        self._default = program.realize({})
        self._order = order if len(self._default.text) < LARGE_TEXT else None
        self._drawn: set[frozenset[tuple[str, int | str]]] = set()
        self._texts: set[str] = set()
        self._postponed: list[Proposal] = []

    @property
    def default(self) -> Proposal | None:
        """Return the default schedule, which the first generation has first; None where it is not valid."""
        return Proposal(self._default, (), _difference(self._default)) if self._default.is_valid else None

    def propose(
        self,
        n: int,
        generation: int,
        ranked: Sequence[Scored],
        tuned: Schedule | None = None,
        is_over: Callable[[], bool] = lambda: False,
        measures: bool = False,
    ) -> list[Proposal]:
        """Return up to `n` new schedules; fewer when the neighbourhood is exhausted, or once drawing `is_over`.
        `ranked` is best first. The first generation is the default, then `tuned`, if an earlier search left one, or
        else its other structures, and, unless the text is large, neighbours of the default. `measures`: on a GPU."""
        draw = random.Random(f"{self._seed}:{generation}")
        given: list[Proposal] = []
        is_alone = generation == 0 and len(self._default.text) >= LARGE_TEXT
        if generation == 0:
            self._take(self._default, (), given)
            others = [tuned] if tuned is not None else _structures(self._default, measures) if n > 1 else ()
            for schedule in others:
                if (realized := self._realized(schedule)) is not None:
                    self._take(realized, (), given)
        n_open = 0 if is_alone else max(0, n - len(given))
        n_wanted = n_open if self._order is None else n_open * N_DRAWN_PER_PROPOSAL
        proposals, self._postponed = self._postponed, []
        for _ in range(n_wanted * N_BUILDS_PER_PROPOSAL):
            drawn = self._draw(ranked, draw) if len(proposals) < n_wanted else None
            if drawn is None or is_over():
                break
            schedule, parents = drawn
            if (realized := self._realized(schedule)) is not None:
                self._take(realized, parents, proposals)
        return [*given, *self._first(proposals, n_open, ranked)][:n]

    def _first(self, proposals: Sequence[Proposal], n: int, ranked: Sequence[Scored]) -> list[Proposal]:
        """Return the `n` most promising proposals; later generations choose from the others again."""
        if self._order is None:
            return list(proposals[:n])
        known = [(each.realized, each.score_us) for each in ranked]
        ordered = [proposals[place] for place in self._order([each.realized for each in proposals], known)]
        self._postponed = ordered[n:]
        return ordered[:n]

    def _realized(self, schedule: Schedule) -> RealizedLike | None:
        """Render a drawn schedule. A fault of the generator costs this schedule, not the search."""
        try:
            return self._program.realize(schedule)
        except Exception as error:  # a bug of ours: the log names the schedule that shows it
            _logger.warning("the generator failed at the schedule %s: %s: %s", schedule, type(error).__name__, error)
            return None

    def _take(self, realized: RealizedLike, parents: tuple[str, ...], proposals: list[Proposal]) -> None:
        self._drawn.add(frozenset(realized.schedule.items()))
        if realized.is_valid and realized.text not in self._texts:
            self._texts.add(realized.text)
            proposals.append(Proposal(realized, parents, _difference(realized)))

    def _draw(self, ranked: Sequence[Scored], draw: random.Random) -> tuple[Schedule, tuple[str, ...]] | None:
        """Draw a new schedule; None when none is found."""
        for _ in range(N_DRAWS_PER_BUILD):
            schedule, parents = self._vary(ranked[:N_PARENTS], draw)
            key = frozenset(schedule.items())
            if key not in self._drawn:
                self._drawn.add(key)
                return schedule, parents
        return None

    def _vary(self, parents: Sequence[Scored], draw: random.Random) -> tuple[Schedule, tuple[str, ...]]:
        if not parents:
            return _mutate(self._default, draw), ()
        # Better parents are drawn more often: weight 1/rank.
        first, second = draw.choices(parents, weights=[1 / (rank + 1) for rank in range(len(parents))], k=2)
        if first is not second and draw.random() < CROSSOVER_PROBABILITY:
            mixed = dict(first.realized.schedule)
            mixed |= {k: v for k, v in second.realized.schedule.items() if k not in mixed or draw.random() < 0.5}
            return mixed, (first.candidate_id, second.candidate_id)
        return _mutate(first.realized, draw), (first.candidate_id,)


def _mutate(realized: RealizedLike, draw: random.Random) -> Schedule:
    mutable = [knob for knob in realized.knobs if len(knob.values) > 1]
    changed = dict(realized.schedule)
    n_changes = 2 if draw.random() < SECOND_MUTATION_PROBABILITY else 1
    for knob in draw.sample(mutable, min(n_changes, len(mutable))):
        value = draw.choice([value for value in knob.values if value != changed[knob.name]])
        alike = [each for each in mutable if _kind(each.name) == _kind(knob.name) and value in each.values]
        is_together = len(alike) > 1 and draw.random() < TOGETHER_PROBABILITY
        changed |= {each.name: value for each in (alike if is_together else [knob])}
    return changed


def _structures(default: RealizedLike, measures: bool) -> Iterator[Schedule]:
    """Yield the default schedule with every product in a library, and on a GPU with rows that a grid keeps in place of
    parts: a layer norm of 16 rows of 16 MB takes 189.2 us so, and by parts 215.0 (H200, 2026-11-30). The executor,
    whose blocks wait for each other in turn, has no answer for such rows within 90 s."""
    by_libraries = {
        knob.name: LIBRARY
        for knob in default.knobs
        if LIBRARY in knob.values and default.schedule[knob.name] != LIBRARY
    }
    by_grids = {knob.name: 0 for knob in default.knobs if measures and _kind(knob.name) == "by_rows" and knob.default}
    yield from ({**default.schedule, **changed} for changed in (by_libraries, by_grids) if changed)


def _kind(name: str) -> str:
    """Return what a knob sets, e.g. `threads`, without the kernel or tensor that it belongs to."""
    return name.rpartition(".")[-1]


def _difference(realized: RealizedLike) -> str:
    """Name what differs from the default; what is the same in many kernels is named once."""
    changes = [(k.name, realized.schedule[k.name]) for k in realized.knobs if realized.schedule[k.name] != k.default]
    counts = Counter((_kind(name), value) for name, value in changes)
    named = [
        f"{name}={value}" if (n := counts[_kind(name), value]) <= MAX_NAMED else f"{_kind(name)}={value} in {n} kernels"
        for name, value in changes
    ]
    return ", ".join(dict.fromkeys(named)) or "the default schedule"
