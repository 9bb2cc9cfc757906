"""A probe: a row of the table in `table.py` that proposes cases for a kernel.

@probe("one element", "sizes", cost=LAST)
def one_element(kernel: Kernel) -> Iterator[Case]:
    '''Return size one for every symbol: the first element is also the last.'''
    ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kernel_lsp.verify.model.cases import Case, seeded
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.probes.kernel import Kernel

Stage = Literal["screen", "plan", "code"]
"""When a probe runs: for a screen, for a full check from the plan, and for a full check once the code is compiled."""
Cost = Literal["first", "soon", "last"]
"""Order of cases: the first few, those that follow at once, and those that must not consume the others' time."""
FIRST: Cost = "first"
SOON: Cost = "soon"
LAST: Cost = "last"
N_FIRST = 4
"""Cases that run before the large sizes. The families follow after those, so that a slow kernel still has time for
large sizes."""
Propose = Callable[[Kernel], Iterable[Case]]


@dataclass(frozen=True)
class Probe:
    """Proposes cases. `defences` are the names under which a test switches it off; several, where it needs them all."""

    name: str
    defences: tuple[str, ...]
    stages: tuple[Stage, ...]
    cost: Cost
    propose: Propose

    @property
    def words(self) -> str:
        """Return what it proposes, in words."""
        return (
            (self.propose.__doc__ or "")
            .partition("\n\n")[0]
            .removeprefix("Propose ")
            .removesuffix(".")
            .replace("\n    ", " ")
        )

    def cases(self, kernel: Kernel) -> list[Case]:
        """Return its cases, each with a seed of its own. A proposed seed stays."""
        if not is_on(*self.defences):
            return []
        return [case if case.seed else seeded(case, kernel.seed, self.name) for case in self.propose(kernel)]


PROBES: list[Probe] = []
"""The registered probes, in the order of their cases."""


def probe(name: str, *defences: str, cost: Cost, stages: tuple[Stage, ...] = ("plan",)) -> Callable[[Propose], Propose]:
    """Register a function as a probe."""

    def register(propose: Propose) -> Propose:
        PROBES.append(Probe(name, defences, stages, cost, propose))
        return propose

    return register


def proposed(table: Iterable[Probe], kernel: Kernel, stage: Stage, first: Sequence[Case] = ()) -> list[Case]:
    """Return `first` and the cases of every probe of a stage, the most informative first."""
    found: dict[Cost, list[Case]] = {FIRST: list(first), SOON: [], LAST: []}
    for each in table:
        if stage in each.stages:
            found[each.cost] += each.cases(kernel)
    return [*found[FIRST][:N_FIRST], *found[SOON], *found[FIRST][N_FIRST:], *found[LAST]]
