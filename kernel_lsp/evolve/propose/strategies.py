"""Plan a proposal from the current members: evolve, best-of-n, beam, agents.

A strategy is a pure function: the same members give the same plan at any time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from kernel_lsp.evolve.propose.population import N_CONTEXT, Member, island_of, ranked

Operator = Literal["translate", "improve", "edit", "crossover", "agent"]
StrategyName = Literal["evolve", "best-of-n", "beam", "agent"]

MIGRATION_EVERY = 3
"""Interval, in generations, at which each island is shown the overall best for one generation."""
BEAM_WIDTH = 4
OPERATOR_WEIGHTS: dict[Operator, float] = {"improve": 0.5, "edit": 0.3, "crossover": 0.2}
"""Rewrites find new structures, edits are cheap and stay correct, crossover needs two different parents."""


@dataclass(frozen=True)
class Plan:
    """The request of a proposal. `members` are shown, best first; the first is the parent, to be edited or
    described."""

    operator: Operator
    island: int = 0
    members: tuple[Member, ...] = field(default=())

    @property
    def parent(self) -> Member | None:
        return self.members[0] if self.members else None


def plan_proposal(
    strategy: StrategyName, slot: int, n_per_generation: int, members: Sequence[Member], n_islands: int, seed: int
) -> Plan:
    """Return the plan of one proposal. `members` are the correct candidates available to it."""
    if strategy == "agent":
        return Plan("agent", members=tuple(ranked(members)[:N_CONTEXT]))
    if strategy == "best-of-n" or not members:
        return Plan("translate", members=tuple(m for m in ranked(members) if m.slot < 0)[:1])
    draw = random.Random(f"{seed}:plan:{slot}")
    if strategy == "beam":
        best = ranked(members)[:BEAM_WIDTH]
        return Plan("improve", members=(best[slot % len(best)],))
    return _evolve(slot, n_per_generation, members, n_islands, draw)


# --- below


def _evolve(slot: int, n_per_generation: int, members: Sequence[Member], n_islands: int, draw: random.Random) -> Plan:
    """Plan within the proposal's own island, from least to most guided; the first proposal of each island is a new
    translation, in addition to the seeds. With kernels given by the user, the search improves those instead."""
    island, generation = slot % n_islands, slot // n_per_generation
    local = island_of(members, island, has_visitors=generation % MIGRATION_EVERY == MIGRATION_EVERY - 1)
    is_given = any(member.candidate.origin.proposer == "user" for member in members)
    if (slot < n_islands and not is_given) or not local:
        return Plan("translate", island, tuple(ranked(members)[:1]))
    operators = [operator for operator in OPERATOR_WEIGHTS if operator != "crossover" or len(local) > 1]
    operator = draw.choices(operators, weights=[OPERATOR_WEIGHTS[name] for name in operators])[0]
    if operator == "crossover":
        other = draw.choice(local[1:N_CONTEXT])
        return Plan("crossover", island, (local[0], other))
    if operator == "edit":
        # Better parents are edited more often: weight 1/rank.
        candidates = local[:N_CONTEXT]
        parent = draw.choices(candidates, weights=[1 / (rank + 1) for rank in range(len(candidates))])[0]
        return Plan("edit", island, (parent, *(member for member in local[:2] if member is not parent)))
    return Plan("improve", island, tuple(local[:N_CONTEXT]))
