"""The probes of a check, in the order of their cases. A new probe is a function here and an attack that it detects."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kernel_lsp.core.dtype import DType
from kernel_lsp.core.task import Task
from kernel_lsp.core.verdict import Built
from kernel_lsp.process.gc_pause import paused_collection
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.cpu.cpu_device import WATCHED_ORDER
from kernel_lsp.verify.model.cases import (
    GREATEST_INTEGERS,
    OFFSET_FAMILY,
    OPERATOR_ALIGNMENT_BYTES,
    POINTED_VALUES,
    SCREEN_FAMILIES,
    Case,
    Depth,
    OperationKind,
    Plan,
    ThreadOrder,
    configured_sizes,
)
from kernel_lsp.verify.model.defences import is_on
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.probes.code_guided_sizes import larger_sizes
from kernel_lsp.verify.probes.finder import MAX_WIDE_ELEMENTS, distinct
from kernel_lsp.verify.probes.mined_constants import sizes_with_room
from kernel_lsp.verify.probes.probed_kernel import (
    EQUAL_TERMS,
    EXACT_SUMS,
    FIRST,
    LAST,
    OCTAVES,
    PROBES,
    SOON,
    SPARSE_GRADIENTS,
    Kernel,
    families_of,
    probe,
    proposed,
)
from kernel_lsp.verify.probes.sizes import (
    MAX_VAST_HERE,
    captured_rows,
    fresh_sizes,
    hidden_sizes,
    least_sizes,
    many_rows,
    several_blocks_sizes,
    vast_sizes,
)
from kernel_lsp.verify.probes.sums import (
    families_of_sums,
    has_one_long_sum,
    sizes_beyond_exact_places,
    sizes_beyond_exact_sums,
    sizes_beyond_narrow_places,
)
from kernel_lsp.verify.probes.target_cases import cases_beyond_exact_indices, index_cases, rounding_cases

ORDERS: tuple[ThreadOrder, ...] = ("forward", "random", "reverse")
N_WATCHED = 2
"""Number, from 1, of the large case that is watched for races: it has many rows, which persistent blocks take several
of, and follows the one with long rows."""
FRESH_SEED_BITS = 31
_ATOMIC_SUM = re.compile(r"(?:atom|red)\..*\badd\..*\bf32\b")


@probe("captured", stages=("screen", "plan"), cost=FIRST)
def captured(kernel: Kernel) -> Iterator[Case]:
    """Propose the user's own inputs at the captured sizes, which are profiled and timed."""
    yield kernel.case(kernel.captured, "given")


@probe("smallest", stages=("screen", "plan"), cost=FIRST)
def smallest(kernel: Kernel) -> Iterator[Case]:
    """Propose the first small sizes, which rank a candidate in a search."""
    return (kernel.case(kernel.small[0], family, "reverse") for family in kernel.screen_families)


@probe("fresh", cost=FIRST)
def fresh(kernel: Kernel) -> Iterator[Case]:
    """Propose small sizes and inputs drawn per verdict: answers to inputs that recur could be hard-coded."""
    sizes = fresh_sizes(kernel.finder, kernel.fresh_seed) or kernel.small[0]
    yield replace(kernel.case(sizes, "normal", "random"), seed=kernel.fresh_seed)


@probe("configurations", cost=FIRST)
def configurations(kernel: Kernel) -> Iterator[Case]:
    """Propose the sizes of every configuration that the capture covers."""
    named = (sizes for sizes in configured_sizes(kernel.task) if kernel.prepared.holds(kernel.direction, sizes))
    return (kernel.case(sizes, "normal") for sizes in named)


@probe("small", "sizes", "families", cost=FIRST)
def small(kernel: Kernel) -> Iterator[Case]:
    """Propose small primes, rows longer than a block, powers of two and their neighbours."""
    for position, sizes in enumerate(kernel.small[1:], 1):
        yield kernel.case(sizes, "normal", ORDERS[-position % len(ORDERS)])


@probe("families", "families", cost=FIRST)
def families(kernel: Kernel) -> Iterator[Case]:
    """Propose every input family at small sizes, those of whole rows at long rows."""
    for position, family in enumerate(families_of(kernel.direction)):
        small = kernel.of_families[family.name]
        sizes = small[(1 if family.needs_long_rows else position) % len(small)]
        case = kernel.case(sizes, family.name, ORDERS[position % len(ORDERS)])
        offset = OPERATOR_ALIGNMENT_BYTES if family.name == OFFSET_FAMILY else 0
        if is_on(family.defence):
            yield replace(case, offset_bytes=offset)


@probe("sums over rows", "families", cost=FIRST)
def sums_over_rows(kernel: Kernel) -> Iterator[Case]:
    """Propose sparse gradients at more rows, for a backward that sums over them."""
    if kernel.direction == "backward":
        yield kernel.case(kernel.small[2 % len(kernel.small)], SPARSE_GRADIENTS)


@probe("several blocks", "sizes", cost=SOON)
def several_blocks(kernel: Kernel) -> Iterator[Case]:
    """Propose the smallest sizes at which every launch has several blocks, watched for races."""
    normal = (*smallest(kernel), *small(kernel))
    watched = [dict(c.sizes) for c in normal if (c.family, c.thread_order) == ("normal", WATCHED_ORDER)]
    known = [sizes for sizes in (kernel.captured, *kernel.small, *kernel.wide) if kernel.holds(sizes)]
    known += [*kernel.wide, *kernel.deciding]
    for sizes in several_blocks_sizes(kernel.contract, watched, known):
        yield replace(kernel.case(sizes, "normal", "reverse"), is_captured=False, of_several_blocks=True)


@probe("long rows, many rows", "sizes", cost=SOON)
def long_rows(kernel: Kernel) -> list[Case]:
    """Propose long rows, many rows, one less than a power of two in each dim, and sizes at which the plan decides."""
    return kernel.large_cases([*kernel.wide, *kernel.deciding], N_WATCHED)


@probe("indices", "sizes", "families", cost=SOON)
def indices(kernel: Kernel) -> list[Case]:
    """Propose ties, extremes and ids beyond 16 bits, for tasks that return or take indices."""
    return index_cases(kernel.finder, kernel.wide)


@probe("one element", "sizes", cost=LAST)
def one_element(kernel: Kernel) -> list[Case]:
    """Propose size one for every symbol: the first element is also the last."""
    least = least_sizes(kernel.finder)
    return kernel.large_cases([least] if least is not None and least not in (kernel.captured, *kernel.small) else [])


@probe("captured rows", "families", cost=LAST)
def few_captured_rows(kernel: Kernel) -> Iterator[Case]:
    """Propose a few families at the captured sizes with few rows, which a specialised variant may serve."""
    rows = captured_rows(kernel.finder)
    return kernel.variants([rows] if rows is not None and rows not in kernel.reduced else [])


@probe("octaves", "families", cost=LAST)
def octaves(kernel: Kernel) -> Iterator[Case]:
    """Propose rows of every magnitude; gradients of so many magnitudes are uninformative."""
    if kernel.direction == "forward":
        many = many_rows(kernel.finder, kernel.reduced)
        yield kernel.case(many or kernel.small[0], OCTAVES, "random")


@probe("equal integers", "sizes", cost=LAST)
def equal_integers(kernel: Kernel) -> Iterator[Case]:
    """Propose many equal integers or truths: counts, and sums by index, concentrate in one place."""
    dtypes = [type_.dtype for type_ in kernel.graph.input_types if not type_.dtype.is_floating]
    family = GREATEST_INTEGERS if all(dtype is DType.BOOL for dtype in dtypes) else "equal_integers"
    return (kernel.case(sizes, family) for sizes in kernel.wide[:1] if dtypes)


@probe("plan variants", "sizes", "families", cost=LAST)
def plan_variants(kernel: Kernel) -> Iterator[Case]:
    """Propose a few families at the cheapest sizes at which the plan decides otherwise."""
    return kernel.variants(kernel.cheapest(kernel.deciding))


@probe("a million elements", "sizes", "families", cost=LAST)
def a_million_elements(kernel: Kernel) -> Iterator[Case]:
    """Propose more rows than 16 bits count, or a million elements, with sums that are exact in any order."""
    most = MAX_WIDE_ELEMENTS if kernel.has_gpu else MAX_VAST_HERE
    sizes = vast_sizes(kernel.finder, kernel.contract.can_bind, most)
    if sizes is not None:
        yield replace(kernel.case(sizes, EXACT_SUMS, "random"), may_not_end=not kernel.has_gpu)


@probe("hidden", "sizes", cost=LAST)
def hidden(kernel: Kernel) -> Iterator[Case]:
    """Propose sizes drawn by the seed, on a GPU."""
    drawn = hidden_sizes(kernel.finder, kernel.seed) if kernel.has_gpu else []
    return (kernel.case(sizes, "normal") for sizes in drawn)


@probe("launch-uniform predicates", "sizes", stages=("code",), cost=SOON)
def launch_uniform_predicates(kernel: Kernel) -> list[Case]:
    """Propose both outcomes of each predicate over sizes alone, and both sides of each compared number."""
    return kernel.large_cases(kernel.compared)


@probe("mined constants", "families", stages=("code",), cost=SOON)
def mined_constants(kernel: Kernel) -> Iterator[Case]:
    """Propose numbers that the code compares data with, their negatives and neighbours."""
    if kernel.constants:
        sizes = sizes_with_room(kernel.plan, len(kernel.constants))
        yield replace(kernel.case(sizes, POINTED_VALUES), values=kernel.constants)
        for case in launch_uniform_predicates(kernel) if is_on("sizes") else ():
            yield replace(case, values=kernel.constants)


@probe("rounding edges", "families", stages=("code",), cost=SOON)
def rounding_edges(kernel: Kernel) -> list[Case]:
    """Propose neighbours of halves and large integers, where the target rounds its inputs unchanged."""
    return rounding_cases(kernel.task, kernel.direction, kernel.known)


@probe("far sizes", "sizes", stages=("code",), cost=LAST)
def far_sizes(kernel: Kernel) -> list[Case]:
    """Propose sizes beyond large constants, and beyond inexact and 16-bit indices, where the code has such."""
    contract, built = kernel.contract, kernel.built
    found = [
        *sizes_beyond_exact_places(contract, built),
        *sizes_beyond_narrow_places(contract, built),
        *larger_sizes(contract, built, [*kernel.known, *kernel.compared]),
    ]
    return kernel.large_cases(distinct(found))


@probe("code variants", "sizes", "families", stages=("code",), cost=LAST)
def code_variants(kernel: Kernel) -> Iterator[Case]:
    """Propose a few families at the cheapest sizes at which a predicate of the code has another outcome."""
    return kernel.variants(kernel.cheapest(kernel.compared))


@probe("float indices", "sizes", stages=("code",), cost=LAST)
def float_indices(kernel: Kernel) -> Iterator[Case]:
    """Propose indices that f32 does not represent, where the code converts f32 to integers."""
    return cases_beyond_exact_indices(kernel.contract, kernel.built)


@probe("integer sums", "sizes", stages=("code",), cost=LAST)
def integer_sums(kernel: Kernel) -> Iterator[Case]:
    """Propose sums that exceed 2^24 or 2^53, where the code adds integers in floating point."""
    for sizes in sizes_beyond_exact_sums(kernel.contract, kernel.built):
        for family in families_of_sums(kernel.graph):
            yield replace(kernel.case(sizes, family), is_captured=False, may_not_end=True)


@probe("long sums", "sizes", stages=("code",), cost=LAST)
def long_sums(kernel: Kernel) -> Iterator[Case]:
    """Propose equal terms at the captured sizes, where one result has more than 2^17: a serial sum loses digits."""
    if kernel.direction == "forward" and has_one_long_sum(kernel.task.forward, kernel.captured):
        yield kernel.case(kernel.captured, EQUAL_TERMS)


TABLE = tuple(PROBES)


@dataclass(frozen=True)
class CaseChoice:
    """Chooses the cases of one task's candidates. `screen_families` are the forward's in a screen; a GPU runs more. No
    candidate can know the fresh seed."""

    task: Task
    seed: int
    has_gpu: bool
    screen_families: Sequence[str] = SCREEN_FAMILIES
    fresh_seed: int = field(default_factory=lambda: secrets.randbits(FRESH_SEED_BITS))

    @paused_collection()
    def plan(self, prepared: Prepared, direction: OperationKind, depth: Depth) -> Plan:
        """Return the cases of one direction with their launches. The captured sizes come first, to be profiled.

        Raises PlanError when the plan does not bind, ContractError when it excludes the captured sizes.
        """
        kernel = self._kernel(prepared, direction)
        return _bound(kernel, proposed(TABLE, kernel, "plan" if depth == "full" else "screen"))

    @paused_collection()
    def with_code(self, prepared: Prepared, direction: OperationKind, built: Built, plan: Plan) -> Plan:
        """Return the cases of one direction, and those that its compiled code asks for, less those that it need not
        pass."""
        kernel = replace(self._kernel(prepared, direction), compiled=built, plan=plan)
        cases = proposed(TABLE, kernel, "code", [case for case, _ in plan])
        return _bound(kernel, [case for case in cases if case.family != "subnormal" or not flushes(built)])

    def full_plans(self, prepared: Prepared, built: Built) -> list[Plan]:
        """Return the cases of a full check of each direction. Raises as `plan`."""
        plans = ((kind, self.plan(prepared, kind, "full")) for kind in prepared.directions)
        return [self.with_code(prepared, kind, built, plan) for kind, plan in plans]

    def _kernel(self, prepared: Prepared, direction: OperationKind) -> Kernel:
        families = self.screen_families if direction == "forward" else SCREEN_FAMILIES
        return Kernel(prepared, direction, self.seed, self.fresh_seed, self.has_gpu, families)


def flushes(built: Built) -> bool:
    """Check whether a kernel adds f32 atomically outside shared memory: a GPU flushes subnormal numbers there (PTX ISA
    9.0, `atom`), in PyTorch's own atomic additions, too."""
    opcodes = (statement.opcode for statement in read_ptx(built.ptx).statements)
    return any(_ATOMIC_SUM.match(opcode) and ".shared" not in opcode for opcode in opcodes)


def _bound(kernel: Kernel, cases: Iterable[Case]) -> Plan:
    return [(case, kernel.prepared.bind(kernel.direction, dict(case.sizes))) for case in cases]
