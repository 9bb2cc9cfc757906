"""Choose sizes by a candidate's own code: both sides of its plan's predicates, beyond the large constants in its text,
and every outcome of its kernels' launch-uniform predicates, of one dim or of two, such as `if (B * D == 12345)`,
`D == 100 * B`, and `B > 100 && D > 3000`. Nothing runs: plans are bound, and predicates evaluated, at each size tried.

A kernel that is correct only up to a million elements, and a plan with an untested variant for long rows, pass every
check at fixed sizes.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from kernel_lsp.core.expression import Call, Constant, Expression, parts
from kernel_lsp.core.plan import BoundLaunch, Launch, LibraryStep, Operation
from kernel_lsp.core.task import Symbol
from kernel_lsp.core.verdict import Built
from kernel_lsp.errors import PlanError
from kernel_lsp.plan.binding import UnwrittenError
from kernel_lsp.toolchain.integrity.masking import mask_literals
from kernel_lsp.toolchain.integrity.ptx_text import N_REMEMBERED, Function, read_ptx
from kernel_lsp.verify.model.cases import ALIGNMENTS, Sizes
from kernel_lsp.verify.probes.finder import CHEAP, COMPUTABLE, Budget, PlanFinder, distinct, with_new_outcomes
from kernel_lsp.verify.probes.launch_uniform import UNROLLED, GridConditions
from kernel_lsp.verify.probes.sizes import beyond, far_sizes

MAX_SIZES = 6
"""Maximum sizes of each kind."""
MAX_EDGES = 6
"""Maximum sizes at variant boundaries of a plan: the last size of one variant and the first of the next."""
MAX_THRESHOLDS, LARGEST_THRESHOLD = 6, 1 << 14
"""Maximum constants that kernels compare sizes with, and the largest of them. Both sides of each are tried."""
MAX_LITERALS = 24
"""Maximum constants of one text, spread from the smallest to the largest: a table may hold thousands."""
SMALL = 2
"""The other dims of a large size."""
LEAST_LITERAL = 1_000
"""Smallest constant that is used: every candidate already runs at sizes beyond smaller ones."""
LARGEST_LITERAL = 1 << 21
LARGEST_PRODUCT = 1 << 23
BOUND = Budget(1 << 31, or_captured=True)
"""For a plan that is only bound: operators leave larger tensors to PyTorch."""
MAX_COMPARED = 4
"""Maximum sizes from kernels' comparisons: each is another case."""
MAX_TRIED = 160
"""Maximum sizes tried for them. One takes about 0.1 ms."""
MAX_PAIRS = 3
"""Maximum sizes of two dims at once: each is another case."""
MAX_PAIRS_TRIED = 200
"""Maximum sizes tried for them. One takes about 0.5 ms."""
MAX_SCANNED = 1_200
"""Maximum sizes scanned where two sides were equal nowhere yet: one in a thousand sizes has any given remainder by a
three-digit number."""
MAX_NUMBERS = 6
"""Maximum constants for them, the largest ones: small ones are lanes and unrolled loops, and small cases have them."""
MAX_DIVISORS = 4
MAX_BASES = 6
N_STEPS = 3
"""Steps of a secant: predicates are mostly linear in one dim."""
_INTEGER = re.compile(r"(?<![\w.])(?:0[xX](?P<hex>[0-9a-fA-F']+)|(?P<decimal>[1-9][0-9']*))[uUlL]*(?![\w.])")
_POWER = re.compile(r"(?<![\w.])1[uUlL]*\s*<<\s*(?P<exponent>[0-9]{1,2})(?![\w.])")


def pointed_sizes(finder: PlanFinder, known: Sequence[Sizes]) -> list[Sizes]:
    """Return the deciding sizes and those beyond literals, except `known` ones. Raises PlanError for a broken plan."""
    deciding = deciding_sizes(finder, known)
    return [*deciding, *sizes_beyond_literals(finder, [*known, *deciding])]


def deciding_sizes(finder: PlanFinder, known: Sequence[Sizes]) -> list[Sizes]:
    """Return sizes inside the contract at which some step takes another variant, or template instance, than at any of
    the `known` ones. Raises UnwrittenError where none is taken, also at sizes too large to run."""
    seen = {place for sizes in known for place in enumerate(finder.decisions(sizes))}
    numbers = sorted({n for expression in _deciding(finder.operation) for n in _integers(expression)})
    around = dict.fromkeys(size for number in numbers for size in (number, number + 1, number - 1))
    found: list[Sizes] = []
    for sizes in _with_one_of(finder, around, known):
        if len(found) < MAX_SIZES and finder.is_possible(sizes):
            new = set(enumerate(finder.decisions(sizes))) - seen
            found += [sizes] if new else []
            seen |= new
        elif finder.admits(sizes, BOUND):
            _refuse_unwritten(finder, sizes)
    edges = [*_edges(finder, numbers), *_ends(finder)]
    return [*found, *distinct(edges, [*known, *found])]


def sizes_beyond_literals(finder: PlanFinder, known: Sequence[Sizes]) -> list[Sizes]:
    """Return sizes inside the contract beyond a large constant of the code or of a grid that no known size exceeds. A
    fixed grid may leave out what is behind it. Each symbol grows alone, or together with those of the same captured
    size."""
    bases = (finder.small(SMALL), finder.small(1), finder.captured, *known)
    found: list[Sizes] = []
    for literal in _spread(sorted(large_literals(finder.prepared.text) | _large_grids(finder.operation))):
        for symbol in finder.symbols if len(found) < MAX_SIZES else ():
            largest = max((sizes[symbol.name] for sizes in (*known, *found)), default=0)
            alike = tuple(other for other in finder.symbols if other.captured == symbol.captured)
            larger = (
                finder.with_sizes(base, together, size, align)
                for size in (beyond(literal), literal + 1)
                for together in dict.fromkeys(((symbol,), alike))
                for base in bases
                for align in (1, 4, 32)
            )
            tried = (sizes for sizes in larger if sizes[symbol.name] > literal)
            sizes = finder.find(tried, COMPUTABLE) if largest <= literal else None
            if sizes is not None:
                found.append(sizes)
    return found[:MAX_SIZES]


def compared_sizes(finder: PlanFinder, built: Built, known: Sequence[Sizes]) -> list[Sizes]:
    """Return sizes inside the contract at which some launch-uniform predicate of a kernel has an outcome that it has at
    none of the `known` ones, e.g. `D == 777`. Predicates are found in the PTX and evaluated without running anything.
    The other dims are as captured where that is cheap, else small."""
    decisions = _Decisions(finder, built)
    tried = itertools.islice(_with_numbers(finder, decisions.numbers), MAX_TRIED)
    found = with_new_outcomes(tried, decisions.at, known, MAX_COMPARED)
    found += _thresholds(finder, decisions, [*known, *found])
    return [*found, *_paired_sizes(decisions, [*known, *found])]


def larger_sizes(finder: PlanFinder, built: Built, known: Sequence[Sizes]) -> list[Sizes]:
    """Return sizes beyond those of every candidate, for large constants in its text, and for new outcomes of
    launch-uniform predicates."""
    large = frozenset(n for n in _literals(finder.prepared.text) if n > LARGEST_LITERAL)
    return far_sizes(finder, large, _Decisions(finder, built).at, known)


def singles_out_a_block(finder: PlanFinder, built: Built) -> bool:
    """Check whether some launch at the captured sizes compares the block index with that of an inner block."""
    return _Decisions(finder, built).single_out_a_block(finder.captured)


def large_literals(text: str) -> set[int]:
    """Return the integers in the code, `1 << 20` among them, that a size or a number of elements may be compared
    with."""
    return {number for number in _literals(text) if LEAST_LITERAL <= number <= LARGEST_LITERAL}


def _large_grids(operation: Operation) -> set[int]:
    launches = (step for step in operation.steps if isinstance(step, Launch))
    numbers = (number for launch in launches for size in launch.grid for number in _integers(size))
    return {number for number in numbers if LEAST_LITERAL <= number <= LARGEST_LITERAL}


def _literals(text: str) -> set[int]:
    code = mask_literals(text)
    numbers = {1 << int(match["exponent"]) for match in _POWER.finditer(code)}
    for match in _INTEGER.finditer(code):
        digits = (match["hex"] or match["decimal"]).replace("'", "")
        numbers.add(int(digits, 16 if match["hex"] else 10))
    return numbers


class _Decisions:
    """The launch-uniform predicates of a kernel, evaluated at any size."""

    def __init__(self, finder: PlanFinder, built: Built) -> None:
        self.finder = finder
        self._conditions = _conditions_of(built.ptx, tuple(built.symbols.items()))
        self.numbers = {n for conditions in self._conditions.values() for n in conditions.numbers}

    def at(self, sizes: Sizes) -> set[tuple[object, ...]]:
        """Return every outcome, with its launch."""
        return {
            (place, step.kernel, *outcome)
            for place, step in self._launches(sizes)
            for outcome in self._conditions[step.kernel].outcomes(step)
        }

    def sides(self, sizes: Sizes) -> dict[tuple[object, ...], bool]:
        """Return the side of each chosen threshold, by its launch and index."""
        return {
            (place, step.kernel, where): side
            for place, step in self._launches(sizes)
            for where, side in self._conditions[step.kernel].sides(step).items()
        }

    def single_out_a_block(self, sizes: Sizes) -> bool:
        """Check whether some launch compares with an inner block."""
        return any(self._conditions[step.kernel].singles_out_a_block(step) for _, step in self._launches(sizes))

    def pairs(self, sizes: Sizes) -> set[tuple[object, ...]]:
        """Return the outcomes of comparisons of each chosen value, alone and with every other one."""
        found: set[tuple[object, ...]] = set()
        for place, step in self._launches(sizes):
            conditions = self._conditions[step.kernel]
            outcomes = conditions.outcomes(step)
            chosen = [one for one in outcomes if one[0] in conditions.chosen]
            found |= {(place, step.kernel, one) for one in chosen}
            found |= {(place, step.kernel, one, other) for one in chosen for other in outcomes}
        return found

    def distances(self, sizes: Sizes) -> dict[tuple[int, int], int]:
        """Return the difference between the sides of each chosen equality, by its launch and index."""
        return {
            (place, nth): distance
            for place, step in self._launches(sizes)
            for nth, distance in self._conditions[step.kernel].distances(step).items()
        }

    def _launches(self, sizes: Sizes) -> list[tuple[int, BoundLaunch]]:
        """Return the launches with their indices. Empty where the plan cannot be bound or launches a kernel that was
        not built."""
        try:
            bound = self.finder.bind(sizes)
        except PlanError:
            return []
        launches = [(place, step) for place, step in enumerate(bound.steps) if isinstance(step, BoundLaunch)]
        return launches if all(step.kernel in self._conditions for _, step in launches) else []


@lru_cache(maxsize=N_REMEMBERED)
def _conditions_of(ptx: str, symbols: tuple[tuple[str, str], ...]) -> Mapping[str, GridConditions]:
    """Return each kernel's predicates, by name expression."""
    functions = read_ptx(ptx).functions
    return {name: GridConditions(functions.get(symbol) or Function(symbol, ())) for name, symbol in symbols}


def _with_numbers(finder: PlanFinder, numbers: Iterable[int]) -> Iterator[Sizes]:
    """Yield cheap sizes with one symbol equal to a number, to its neighbour, or to a quotient of two of the numbers."""
    counted = sorted(n for n in numbers if 0 < n <= LARGEST_LITERAL)
    around = [m for n in _spread(counted) for m in (n, n + 1, n - 1)]
    quotients = [n // m for n in counted for m in counted if 1 < m < n]
    for size in dict.fromkeys(n for n in (*around, *quotients) if n > 0):
        for symbol in finder.task.symbols:
            for sizes in _with_numbers_of(finder, symbol, (size,)):
                if finder.is_possible(sizes):
                    yield sizes


def _with_numbers_of(finder: PlanFinder, symbol: Symbol, numbers: Iterable[int]) -> Iterator[Sizes]:
    """Yield the symbol with each number; the others are as captured where that is cheap, else small."""
    for size in numbers:
        cheap, any_other = (finder.with_sizes(b, [symbol], size) for b in (finder.captured, finder.small(SMALL)))
        yield cheap if finder.admits(cheap, CHEAP) else any_other


def _edges(finder: PlanFinder, numbers: Sequence[int]) -> list[Sizes]:
    """Return neighbouring sizes between which some step's decision changes, around each of the numbers."""

    def changing(row: list[Sizes]) -> list[Sizes]:
        comes_to = [finder.decisions(sizes) for sizes in row]
        places = [nth for nth in range(len(row) - 1) if comes_to[nth] != comes_to[nth + 1]]
        return [sizes for nth, sizes in enumerate(row) if nth in places or nth - 1 in places]

    return _of_each(finder, numbers, changing)


def _ends(finder: PlanFinder) -> list[Sizes]:
    """Return the last size inside the contract, for each number in it."""
    numbers = sorted({n for line in finder.operation.where for n in _integers(line.expression)})

    def last(row: list[Sizes]) -> list[Sizes]:
        behind = {name: 2 * size - row[-2][name] for name, size in row[-1].items()}
        return [] if finder.holds(behind) else row[-1:]

    return _of_each(finder, numbers, lambda row: last(row) if row else [])


def _of_each(finder: PlanFinder, numbers: Sequence[int], chosen: Callable[[list[Sizes]], list[Sizes]]) -> list[Sizes]:
    """Choose among the neighbours of each number, by each symbol. The others are small, else captured."""
    found = list[Sizes]()
    for number, symbol in itertools.product(numbers[:MAX_THRESHOLDS], finder.symbols):
        bases = (finder.small(SMALL), finder.captured)
        rows = (_neighbours(finder, base, symbol, number) for base in bases)
        found += next(filter(None, map(chosen, rows)), [])
    return distinct(found)[:MAX_EDGES]


def _neighbours(finder: PlanFinder, base: Sizes, symbol: Symbol, number: int) -> list[Sizes]:
    """Return the symbol before, at and after the number, spaced by the contract's alignment, up to the first size
    outside the contract. Empty where fewer than two are inside."""
    for alignment in ALIGNMENTS:
        last = number // alignment * alignment
        row: list[Sizes] = []
        for size in (last - alignment, last, last + alignment):
            sizes = {**base, symbol.name: size}
            is_bounded = symbol.minimum <= size <= (symbol.maximum or size)
            if size > 0 and is_bounded and finder.is_possible(sizes):
                row.append(sizes)
            elif row:
                break
        if len(row) > 1:
            return row
    return []


def _thresholds(finder: PlanFinder, decisions: _Decisions, known: Sequence[Sizes]) -> list[Sizes]:
    """Return neighbouring sizes between which some value crosses a threshold in a kernel."""
    found: list[Sizes] = []
    if not any(decisions.sides(sizes) for sizes in known[:1]):
        return []
    counted = sorted(n for n in decisions.numbers if UNROLLED < n <= LARGEST_THRESHOLD)
    for number, symbol in itertools.product(counted[-MAX_THRESHOLDS:], finder.task.symbols):
        row = [
            sizes
            for sizes in _with_numbers_of(finder, symbol, (number - 1, number, number + 1))
            if finder.is_possible(sizes)
        ]
        sides = [decisions.sides(sizes) for sizes in row]
        for nth in range(len(row) - 1):
            if any(side != sides[nth + 1].get(place, side) for place, side in sides[nth].items()):
                found += [sizes for sizes in row[nth : nth + 2] if sizes not in (*known, *found)]
    return found[:MAX_EDGES]


def _spread(numbers: Sequence[int]) -> list[int]:
    """Return at most `MAX_LITERALS` of the numbers, with the first and the last."""
    if len(numbers) <= MAX_LITERALS:
        return list(numbers)
    return [numbers[position * (len(numbers) - 1) // (MAX_LITERALS - 1)] for position in range(MAX_LITERALS)]


def _refuse_unwritten(finder: PlanFinder, sizes: Sizes) -> None:
    try:
        finder.bind(sizes)
    except UnwrittenError:
        raise
    except PlanError:  # e.g. a grid beyond its limit: the operator falls back to PyTorch there
        return


def _deciding(operation: Operation) -> Iterator[Expression]:
    for step in operation.steps:
        if isinstance(step, Launch | LibraryStep) and step.condition is not None:
            yield step.condition
        if isinstance(step, Launch):
            yield from (argument for argument in step.template_arguments if isinstance(argument, Expression))
            yield from (part for size in step.grid for part in parts(size) if isinstance(part, Call))


def _integers(expression: Expression) -> set[int]:
    """Return the positive integers in the expression."""
    values = (part.value for part in parts(expression) if isinstance(part, Constant))
    return {int(value) for value in values if value > 0 and (isinstance(value, int) or value.is_integer())}


def _with_one_of(finder: PlanFinder, around: Iterable[int], known: Sequence[Sizes]) -> Iterator[Sizes]:
    """Yield small sizes, then known ones, with one symbol replaced by each of these sizes."""
    for size in around:
        for symbol in finder.symbols if size > 0 else ():
            for base in (finder.small(SMALL), *known):
                yield finder.with_sizes(base, [symbol], size)


def _paired_sizes(decisions: _Decisions, known: Sequence[Sizes]) -> list[Sizes]:
    """Return sizes at which some comparison, or two together, have outcomes that they have at none of the `known` ones,
    which no size of a single dim need have."""
    finder = decisions.finder
    if len(finder.symbols) < 2 or not any(decisions.pairs(sizes) for sizes in known):
        return []
    chosen = sorted(n for n in decisions.numbers if 1 < n <= LARGEST_PRODUCT)[-MAX_NUMBERS:]
    computed = itertools.chain(_of_numbers(finder, chosen), _of_equal_sides(decisions, chosen))
    possible = filter(finder.is_possible, itertools.islice(computed, MAX_PAIRS_TRIED))
    found = with_new_outcomes(possible, decisions.pairs, known, MAX_PAIRS)
    if len(found) < MAX_PAIRS and _has_sides_never_equal(map(decisions.distances, (*known, *found))):
        scanned = filter(finder.is_possible, _one_by_one(finder))
        found += with_new_outcomes(scanned, decisions.pairs, [*known, *found], 1)
    return found


def _has_sides_never_equal(distances: Iterable[Mapping[tuple[int, int], int]]) -> bool:
    """Check whether the sides of some chosen comparison were equal nowhere."""
    return bool(set.intersection(*({at for at, distance in some.items() if distance} for some in distances)))


def _of_numbers(finder: PlanFinder, numbers: Sequence[int]) -> Iterator[Sizes]:
    """Yield two dims whose product is a number, or just above it; two of the numbers, or just above both."""
    for number in reversed(numbers):
        root = math.isqrt(number)
        for one, other in (*_factors(number), (root + 1, root + 1), (1, number)):
            yield from _with_pair(finder, one, other)
    for beyond_one, beyond_other in ((0, 0), (1, 1), (0, 1), (1, 0)):
        for one, other in itertools.combinations(reversed(numbers), 2):
            yield from _with_pair(finder, one + beyond_one, other + beyond_other)


def _factors(number: int) -> list[tuple[int, int]]:
    """Return pairs of factors above one, the closest to each other first."""
    divisors = (d for d in range(math.isqrt(number), 1, -1) if number % d == 0)
    return [(d, number // d) for d in itertools.islice(divisors, MAX_DIVISORS)]


def _with_pair(finder: PlanFinder, one: int, other: int) -> Iterator[Sizes]:
    for first, second in itertools.permutations(finder.symbols, 2):
        yield finder.with_sizes(finder.with_sizes(finder.small(SMALL), [first], one), [second], other)


def _of_equal_sides(decisions: _Decisions, numbers: Sequence[int]) -> Iterator[Sizes]:
    """Yield sizes at which two sides are equal, for each dim with a few sizes of the others."""
    finder = decisions.finder
    others = list(dict.fromkeys((*(n + 1 for n in numbers), SMALL + 1, SMALL)))[:MAX_BASES]
    for base in (*map(finder.small, others), finder.captured):
        for symbol in finder.symbols:
            for equality in decisions.distances(base):
                yield from _secant(decisions, base, symbol.name, equality)


def _one_by_one(finder: PlanFinder) -> Iterator[Sizes]:
    """Yield consecutive sizes of the last dim."""
    small = finder.small(SMALL + 1)
    return (finder.with_sizes(small, finder.symbols[-1:], size) for size in range(1, MAX_SCANNED))


def _secant(decisions: _Decisions, base: Sizes, name: str, equality: tuple[int, int]) -> Iterator[Sizes]:
    """Yield sizes with another size of one dim that converge to equal sides."""

    def distance(size: int) -> int | None:
        return decisions.distances({**base, name: size}).get(equality)

    before, here = base[name], base[name] + 1
    far, near = distance(before), distance(here)
    for _ in range(N_STEPS):
        if far is None or near is None or near == far:
            return
        to = here - round(near * (here - before) / (near - far))
        sizes = {**base, name: to}
        if to in (before, here) or to < 1 or not decisions.finder.is_possible(sizes):
            return
        yield sizes
        before, far, here, near = here, near, to, distance(to)
