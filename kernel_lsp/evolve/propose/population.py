"""The population of a search, and the kernels shown in prompts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernel_lsp.core.candidate import Candidate
from kernel_lsp.core.verdict import Verdict

N_CONTEXT = 5
"""Number of kernels shown, from the slowest to the fastest, which the robust-kbench paper found best (arXiv
2509.14279)."""
SEED_SLOT = -1
MAX_THOUGHT_CHARACTERS = 400


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
