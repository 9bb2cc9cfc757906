"""Choose sizes by a candidate's own code: both sides of its plan's predicates, beyond the large constants in its text,
and every outcome of its kernels' launch-uniform predicates.

A kernel that is correct only up to a million elements, and a plan with an untested variant for long rows, pass every
check at fixed sizes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from kernel_lsp.core.expression import Call, Constant, Expression, parts
from kernel_lsp.core.plan import BoundLaunch, Launch, LibraryStep, Operation
from kernel_lsp.core.task import Symbol, Task
from kernel_lsp.core.verdict import Built
from kernel_lsp.errors import PlanError
from kernel_lsp.plan.binding import UnwrittenError
from kernel_lsp.toolchain.integrity.masking import mask_literals
from kernel_lsp.toolchain.integrity.ptx_text import N_REMEMBERED, read_ptx
from kernel_lsp.verify.model.cases import ALIGNMENTS, Sizes, clamped
from kernel_lsp.verify.probes.finder import CHEAP, COMPUTABLE, Budget, PlanFinder, distinct, with_new_outcomes
from kernel_lsp.verify.probes.launch_uniform import UNROLLED, GridConditions
from kernel_lsp.verify.probes.sizes import beyond, far_sizes
from kernel_lsp.verify.probes.two_dim_conditions import paired_sizes

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
    for sizes in _with_one_of(finder.task, around, known):
        if len(found) < MAX_SIZES and finder.is_possible(sizes):
            new = set(enumerate(finder.decisions(sizes))) - seen
            found += [sizes] if new else []
            seen |= new
        elif finder.admits(sizes, BOUND):
            _refuse_unwritten(finder, sizes)
    edges = [*_edges(finder, numbers), *_ends(finder)]
    return [*found, *distinct(edges, [*known, *found])]


def sizes_beyond_literals(finder: PlanFinder, known: Sequence[Sizes]) -> list[Sizes]:
    """Return sizes inside the contract beyond a large constant in the code that no known size exceeds. Each symbol
    grows alone, or together with those of the same captured size."""
    bases = (finder.small(SMALL), finder.small(1), finder.captured, *known)
    found: list[Sizes] = []
    for literal in _spread(sorted(large_literals(finder.prepared.text))):
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
    numbers = sorted(n for n in decisions.numbers if n <= LARGEST_PRODUCT)
    return [*found, *paired_sizes(finder, numbers, decisions.launches, [*known, *found])]


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
        self._finder = finder
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

    def launches(self, sizes: Sizes) -> list[tuple[int, BoundLaunch, GridConditions]]:
        """Return the launches with their indices and predicates."""
        return [(place, step, self._conditions[step.kernel]) for place, step in self._launches(sizes)]

    def _launches(self, sizes: Sizes) -> list[tuple[int, BoundLaunch]]:
        """Return the launches with their indices. Empty where the plan cannot be bound or launches a kernel that was
        not built."""
        try:
            bound = self._finder.bind(sizes)
        except PlanError:
            return []
        launches = [(place, step) for place, step in enumerate(bound.steps) if isinstance(step, BoundLaunch)]
        return launches if all(step.kernel in self._conditions for _, step in launches) else []


@lru_cache(maxsize=N_REMEMBERED)
def _conditions_of(ptx: str, symbols: tuple[tuple[str, str], ...]) -> Mapping[str, GridConditions]:
    """Return each kernel's predicates, by name expression."""
    functions = read_ptx(ptx).functions
    return {name: GridConditions(functions[symbol].body if symbol in functions else ()) for name, symbol in symbols}


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


def _with_one_of(task: Task, around: Iterable[int], known: Sequence[Sizes]) -> Iterator[Sizes]:
    """Yield small sizes, then known ones, with one symbol replaced by each of these sizes."""
    small = {symbol.name: clamped(symbol, SMALL, 1) for symbol in task.symbols}
    for size in around:
        for symbol in task.symbols if size > 0 else ():
            for base in (small, *known):
                yield {**base, symbol.name: clamped(symbol, size, 1)}
