"""The population of a search, and the kernels shown in prompts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import TypeAdapter

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.model import Noun
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Verdict
from kernel_lsp.evolve.archive.archive import Archive

N_CONTEXT = 5
"""Number of kernels shown, from the slowest to the fastest, which the robust-kbench paper found best (arXiv
2509.14279)."""
SEED_SLOT = -1
MAX_THOUGHT_CHARACTERS = 400
N_RELATED = 2
MIN_SIMILARITY = 0.3
"""Minimum weighted Jaccard similarity of the operators. Below it two functions share little but additions."""
MAX_INNOVATIONS = 500
Operator = Literal["translate", "improve", "edit", "crossover", "agent"]
StrategyName = Literal["evolve", "best-of-n", "beam", "agent"]

MIGRATION_EVERY = 3
"""Interval, in generations, at which each island is shown the overall best for one generation."""
BEAM_WIDTH = 4
OPERATOR_WEIGHTS: dict[Operator, float] = {"improve": 0.5, "edit": 0.3, "crossover": 0.2}
"""Rewrites find new structures, edits are cheap and stay correct, crossover needs two different parents."""


@dataclass(frozen=True)
class Member:
    """A candidate that passed its screen, with its time. Seeds have slot -1 and live on every island."""

    slot: int
    island: int
    candidate: Candidate
    verdict: Verdict
    time_us: float

    @property
    def identity(self) -> str:
        """Equal for candidates that are the same program."""
        return self.verdict.program_hash or self.candidate.id


@dataclass(frozen=True)
class KernelText:
    """A kernel as shown in prompts."""

    name: str
    time: str
    thought: str
    code: str


def ranked(members: Iterable[Member]) -> list[Member]:
    """Return the best first, one of each program; ties are ordered by slot and id, independent of the order of
    arrival."""
    ordered = sorted(members, key=lambda member: (member.time_us, member.slot, member.candidate.id))
    first: dict[str, Member] = {}
    for member in ordered:
        first.setdefault(member.identity, member)
    return list(first.values())


def island_of(members: Sequence[Member], island: int, *, has_visitors: bool) -> list[Member]:
    """Return the ranked members of an island. With visitors, the overall best is among them."""
    best = ranked(members)
    local = [member for member in best if member.island == island or member.slot == SEED_SLOT]
    if has_visitors and best and best[0] not in local:
        local = [best[0], *local]
    return local


def shown(members: Sequence[Member]) -> list[KernelText]:
    """Return the best few members as shown in prompts, from the slowest to the fastest."""
    return [show(member) for member in reversed(members[:N_CONTEXT])]


def show(member: Member) -> KernelText:
    """Return one kernel as shown in prompts."""
    origin = member.candidate.origin
    is_generated = origin.proposer == "generator"
    name = "generated" if is_generated else origin.description or "proposal"
    thought = f"a schedule of the generator: {origin.description}" if is_generated else origin.thought
    kind = "measured" if member.verdict.measurement is not None else "estimated"
    return KernelText(
        name=name,
        time=f"{member.time_us:.4g} us ({kind})",
        thought=thought[:MAX_THOUGHT_CHARACTERS],
        code=member.candidate.text.strip(),
    )


class Innovation(Noun):
    """A fully verified kernel. `operators` counts the ATen operators of its task."""

    identity: str
    task: str
    operators: dict[str, int]
    name: str
    thought: str
    time: str
    text: str


INNOVATIONS: TypeAdapter[tuple[Innovation, ...]] = TypeAdapter(tuple[Innovation, ...])


def operators_of(task: Task) -> dict[str, int]:
    """Count the calls of each ATen operator, forward and backward."""
    nodes = [node for graph in task.graphs for node in graph.nodes]
    return dict(sorted(Counter(".".join(node.op.split(".")[:2]) for node in nodes).items()))


def keep_innovation(archive: Archive, innovation: Innovation) -> None:
    """Store it for other tasks; the newest few hundred are kept."""
    with archive.writing() as db:
        db.execute(
            "INSERT OR REPLACE INTO innovations VALUES (?, ?)", (innovation.identity, innovation.model_dump_json())
        )
        db.execute(
            "DELETE FROM innovations WHERE rowid NOT IN (SELECT rowid FROM innovations ORDER BY rowid DESC LIMIT ?)",
            (MAX_INNOVATIONS,),
        )


def related(archive: Archive, task: Task) -> tuple[Innovation, ...]:
    """Return the most similar kernels of other tasks, most similar first."""
    rows = archive.rows("SELECT innovation FROM innovations ORDER BY identity")
    known = [Innovation.model_validate_json(row[0]) for row in rows]
    operators = operators_of(task)
    others = [(similarity(operators, other.operators), other) for other in known if other.task != task.name]
    close = sorted(
        (pair for pair in others if pair[0] >= MIN_SIMILARITY), key=lambda pair: (-pair[0], pair[1].identity)
    )
    return tuple(innovation for _, innovation in close[:N_RELATED])


def similarity(ours: dict[str, int], theirs: dict[str, int]) -> float:
    """Return the weighted Jaccard similarity: shared calls over all calls, 0 to 1."""
    names = ours.keys() | theirs.keys()
    all_calls = sum(max(ours.get(name, 0), theirs.get(name, 0)) for name in names)
    shared = sum(min(ours.get(name, 0), theirs.get(name, 0)) for name in names)
    return shared / all_calls if all_calls else 0.0


def as_kernels(innovations: Sequence[Innovation]) -> list[KernelText]:
    """Convert to the form used in prompts."""
    return [
        KernelText(name=f"{found.task}, {found.name}", time=found.time, thought=found.thought, code=found.text.strip())
        for found in innovations
    ]


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
