"""The population of a search, and the kernels shown in prompts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
    nodes = (*task.forward.nodes, *(task.backward.nodes if task.backward is not None else ()))
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
