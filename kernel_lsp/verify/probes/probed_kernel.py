"""Give probes a kernel: its task, its contract, small and large sizes inside it, its input families, and its compiled
code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from kernel_lsp.core.operators import is_a
from kernel_lsp.core.task import Graph, Task
from kernel_lsp.core.verdict import Built
from kernel_lsp.verify.model.cases import (
    LATE_EXTREMES,
    SCREEN_FAMILIES,
    Case,
    OperationKind,
    Plan,
    Sizes,
    ThreadOrder,
    captured_sizes,
    graph_of,
    n_total,
    seeded,
)
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.probes.code_guided_sizes import compared_sizes, pointed_sizes
from kernel_lsp.verify.probes.finder import CHEAP, REDUCED, Finder, PlanFinder, distinct, finder_of
from kernel_lsp.verify.probes.mined_constants import compared_constants
from kernel_lsp.verify.probes.sizes import reduced_sizes, wide_sizes

BOTH: tuple[OperationKind, ...] = ("forward", "backward")
FORWARD: tuple[OperationKind, ...] = ("forward",)
BACKWARD: tuple[OperationKind, ...] = ("backward",)


@dataclass(frozen=True)
class Family:
    """A distribution of inputs.

    `of` are the directions: PyTorch's own gradients need not be finite for every family of the forward.
    `needs_long_rows`: it detects a kernel that reads only the beginning of a row, so rows exceed a block.
    """

    name: str
    needs_long_rows: bool = False
    of: tuple[OperationKind, ...] = BOTH
    defence: str = "families"


SPARSE_GRADIENTS = "sparse_gradients"
"""Ordinary inputs; only the incoming gradients are sparse."""
FAMILIES = (
    Family("small_integers"),
    Family("special_nan", needs_long_rows=True),
    Family("scaled_up"),
    Family("scaled_down"),
    Family("negative"),
    Family("constant_rows", needs_long_rows=True),
    Family("one_hot", needs_long_rows=True),
    Family("large"),
    Family("uniform", needs_long_rows=True),  # masks: few true values in a row
    Family("special_inf", needs_long_rows=True),
    Family("negative_zeros", defence="zeros"),
    Family("needles", needs_long_rows=True),
    Family("halves"),
    Family("special_minus_inf", needs_long_rows=True),
    Family("special_others", needs_long_rows=True),
    Family(SPARSE_GRADIENTS, needs_long_rows=True, of=BACKWARD),
    Family("zeros", needs_long_rows=True),
    Family("huge", of=FORWARD),
    Family("tiny", of=FORWARD),
    Family("offset", of=FORWARD),
    Family("minute", of=FORWARD),
    Family("minus_inf_rows", needs_long_rows=True, of=FORWARD),
    Family("lowest_rows", needs_long_rows=True, of=FORWARD),
    Family("far_negative", of=FORWARD),
    Family("subnormal", of=FORWARD),
    Family("low", needs_long_rows=True, of=FORWARD),
    Family("highest_rows", needs_long_rows=True, of=FORWARD),
)
VARIANT_FAMILIES = {
    "forward": ("large", "offset", "lowest_rows", "special_nan", "minus_inf_rows"),
    "backward": ("large", "special_nan"),
}
"""Families for the captured sizes and for every size that a plan or a kernel has a variant for. A specialised variant
may skip the maximum or drop NaN."""
MANY_PRODUCTS = 8
"""Matrix products and convolutions from which a task with one symbol is a network: U-Net has 23, AlexNet 8."""
FEW_ROWS = (4, 3)
"""Sizes of a network's symbol, the batch, for most families. Batch norms of 3 x 3 places have more than 32 values at 4:
roundings of fewer are amplified (`worker/oracle/results.py`)."""
OCTAVES = "octaves"
"""Rows of every magnitude, for sizes with many rows."""
HALFWAY = "halves"
"""Halfway cases, where rounding modes differ."""
EXACT_SUMS = "small_integers"
"""Sums are exact in any order, so sums longer than their rounding could be judged are compared."""
EQUAL_TERMS = "constant_rows"
"""The family of a long floating sum: its terms have one sign, and are equal."""


def families_of(direction: OperationKind) -> tuple[Family, ...]:
    """Return the families of one direction, in order."""
    return tuple(family for family in FAMILIES if direction in family.of)


LONG_SUM = 20_000
"""Inputs are positive from this length on: mixed-sign sums are ill-conditioned."""
N_VARIANTS = 4
"""Maximum sizes that get the variant families: the smallest ones."""
Stage = Literal["screen", "plan", "code"]
"""Stage of a probe: for a screen, for a full check from the plan, and for a full check once the code is compiled."""
Cost = Literal["first", "soon", "last"]
"""Order of cases: the first few, those that follow at once, and those that must not consume the others' time."""
FIRST: Cost = "first"
SOON: Cost = "soon"
LAST: Cost = "last"
N_FIRST = 4
"""Cases that run before the large sizes. The families follow after those, so that a slow kernel still has time for
large sizes."""


@dataclass(frozen=True)
class Kernel:
    """One direction of a candidate. `plan` has the cases of earlier stages. `built` is absent before the build."""

    prepared: Prepared
    direction: OperationKind
    seed: int
    fresh_seed: int = 0
    has_gpu: bool = False
    screen_families: Sequence[str] = SCREEN_FAMILIES
    plan: Plan = ()
    compiled: Built | None = None

    @property
    def task(self) -> Task:
        return self.prepared.task

    @property
    def graph(self) -> Graph:
        return graph_of(self.task, self.direction)

    @property
    def built(self) -> Built:
        assert self.compiled is not None, "only probes of the code read it"
        return self.compiled

    @cached_property
    def captured(self) -> Sizes:
        return captured_sizes(self.task)

    def holds(self, sizes: Sizes) -> bool:
        """Check that the sizes are inside the contract. Without the defence `sizes`, only the captured ones are."""
        return (sizes == self.captured or is_on("sizes")) and self.contract.holds(sizes)

    @cached_property
    def contract(self) -> PlanFinder:
        """Return the finder of sizes that the plan's contract holds for, whatever a test switches off."""
        return finder_of(self.prepared, self.direction)

    @cached_property
    def finder(self) -> Finder:
        """Return the finder of ordinary sizes, which the defence `sizes` may confine."""
        return Finder(self.task, self.direction, self.holds)

    @cached_property
    def reduced(self) -> list[Sizes]:
        """Return small sizes, each with another property."""
        return reduced_sizes(self.finder)

    @property
    def small(self) -> list[Sizes]:
        """Return the reduced sizes; the captured ones where there are none."""
        return self.reduced or [self.captured]

    @cached_property
    def of_families(self) -> Mapping[str, list[Sizes]]:
        """Return the small sizes of each family: of a network only `VARIANT_FAMILIES` have the larger ones. Its
        references in fp64 take as long as rows are many, 2 to 10 runs for each family."""
        few: list[Sizes] = []
        n_products = sum(is_a(node.op, "tensor_cores") for node in self.graph.nodes)
        if len(self.task.symbols) == 1 and n_products >= MANY_PRODUCTS:
            found = (self.finder.find(self.finder.aligned((n,)), REDUCED) for n in FEW_ROWS)
            few = distinct(sizes for sizes in found if sizes is not None)
        names = (family.name for family in families_of(self.direction))
        return {n: few if few and n not in VARIANT_FAMILIES[self.direction] else self.small for n in names}

    @cached_property
    def wide(self) -> list[Sizes]:
        """Return sizes with long rows, and with many rows."""
        return wide_sizes(self.finder)

    @cached_property
    def deciding(self) -> list[Sizes]:
        """Return sizes at which the plan decides otherwise, and beyond the large constants of the text."""
        known = [sizes for sizes in (self.captured, *self.small, *self.wide) if self.holds(sizes)]
        return pointed_sizes(self.contract, known)

    @cached_property
    def known(self) -> list[Sizes]:
        """Return the distinct sizes of earlier stages."""
        return [dict(sizes) for sizes in dict.fromkeys(case.sizes for case, _ in self.plan)]

    @cached_property
    def compared(self) -> list[Sizes]:
        """Return sizes at which a launch-uniform predicate of the code has another outcome."""
        return compared_sizes(self.contract, self.built, self.known)

    @cached_property
    def constants(self) -> tuple[float, ...]:
        """Return numbers that the code, or the target, compares data with."""
        return compared_constants(self.built, self.task.forward)

    def case(self, sizes: Sizes, family: str, order: ThreadOrder = "forward") -> Case:
        """Return a case without a seed."""
        is_captured = sizes == self.captured
        return Case(self.direction, tuple(sorted(sizes.items())), family, 0, order, is_captured=is_captured)

    def large_cases(self, some: Iterable[Sizes], n_watched: int = 0) -> list[Case]:
        """Return one case for each of the sizes. Number `n_watched`, from 1, is watched for races."""
        return [
            self.case(
                sizes,
                LATE_EXTREMES if max(sizes.values()) >= LONG_SUM else "normal",
                "reverse" if nth == n_watched else "random",
            )
            for nth, sizes in enumerate(some, 1)
        ]

    def variants(self, some: Iterable[Sizes]) -> Iterator[Case]:
        """Yield the families that expose most errors, at each of the sizes."""
        return (self.case(sizes, family) for sizes in some for family in VARIANT_FAMILIES[self.direction])

    def cheapest(self, some: Iterable[Sizes]) -> list[Sizes]:
        """Return the smallest few of the sizes, none of them large."""
        cheap = [each for each in some if self.finder.fits(each, CHEAP)]
        return sorted(cheap, key=lambda each: n_total(self.task, self.direction, each))[:N_VARIANTS]


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
