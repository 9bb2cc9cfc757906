"""Choose sizes of two dims at once by a candidate's own predicates: `if (B * D == 12345)`, `D == 100 * B`, and two
predicates that hold together at no other size, `B > 100 && D > 3000`.

    found = paired_sizes(finder, numbers, launches_at, known)   # beyond those of single dims

Nothing runs: the kernels' comparisons are evaluated for each size that is tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from kernel_lsp.core.plan import BoundLaunch
from kernel_lsp.verify.model.cases import Sizes, captured_sizes, clamped
from kernel_lsp.verify.probes.finder import PlanFinder, with_new_outcomes
from kernel_lsp.verify.probes.launch_uniform import GridConditions

MAX_FOUND = 3
"""Maximum sizes found: each is another case."""
MAX_TRIED = 200
"""Maximum sizes tried for them. One takes about 0.5 ms."""
MAX_SCANNED = 1_200
"""Maximum sizes scanned where two sides were equal nowhere yet: one in a thousand sizes has any given remainder by a
three-digit number."""
MAX_NUMBERS = 6
"""Maximum constants, the largest ones: small ones are lanes and unrolled loops, and small cases have them."""
MAX_DIVISORS = 4
MAX_BASES = 6
SMALL = 2
N_STEPS = 3
"""Steps of a secant: predicates are mostly linear in one dim."""

Launches = Sequence[tuple[int, BoundLaunch, GridConditions]]
"""Launches with their indices and predicates."""
Outcome = tuple[object, ...]


def paired_sizes(
    finder: PlanFinder,
    numbers: Sequence[int],
    launches_at: Callable[[Sizes], Launches],
    known: Sequence[Sizes],
) -> list[Sizes]:
    """Return sizes at which some comparison, or two together, have outcomes that they have at none of the `known` ones.
    `numbers` are the comparisons' constants."""
    if len(finder.task.symbols) < 2 or not any(_outcomes(launches_at(sizes)) for sizes in known):
        return []
    chosen = sorted(n for n in numbers if n > 1)[-MAX_NUMBERS:]
    computed = itertools.chain(_of_numbers(finder, chosen), _of_equal_sides(finder, chosen, launches_at))

    def outcomes_at(sizes: Sizes) -> set[Outcome]:
        return _outcomes(launches_at(sizes))

    possible = filter(finder.is_possible, itertools.islice(computed, MAX_TRIED))
    found = with_new_outcomes(possible, outcomes_at, known, MAX_FOUND)
    if len(found) < MAX_FOUND and _has_sides_never_equal(map(launches_at, (*known, *found))):
        found += with_new_outcomes(filter(finder.is_possible, _one_by_one(finder)), outcomes_at, [*known, *found], 1)
    return found


def _has_sides_never_equal(launched: Iterable[Launches]) -> bool:
    """Check whether the sides of some chosen comparison were equal nowhere."""
    distances = [_distances(launches).items() for launches in launched]
    return bool(set.intersection(*({at for at, distance in some if distance} for some in distances)))


def _outcomes(launches: Launches) -> set[Outcome]:
    """Return the outcomes of comparisons of each chosen value, alone and in pairs."""
    found: set[Outcome] = set()
    for place, launch, conditions in launches:
        outcomes = conditions.outcomes(launch)
        chosen = [one for one in outcomes if one[0] in conditions.chosen]
        found |= {(place, launch.kernel, one) for one in chosen}
        found |= {(place, launch.kernel, one, other) for one in chosen for other in outcomes}
    return found


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
    symbols = finder.task.symbols
    for first, second in itertools.permutations(symbols, 2):
        sizes = {symbol.name: clamped(symbol, SMALL, 1) for symbol in symbols}
        yield {**sizes, first.name: clamped(first, one, 1), second.name: clamped(second, other, 1)}


def _of_equal_sides(
    finder: PlanFinder,
    numbers: Sequence[int],
    launches_at: Callable[[Sizes], Launches],
) -> Iterator[Sizes]:
    """Yield sizes at which two sides are equal, for each dim with a few sizes of the others."""
    symbols, captured = finder.task.symbols, captured_sizes(finder.task)
    others = list(dict.fromkeys((*(n + 1 for n in numbers), SMALL + 1, SMALL)))[:MAX_BASES]
    bases = [{symbol.name: clamped(symbol, size, 1) for symbol in symbols} for size in others]
    for base in (*bases, captured):
        for symbol in symbols:
            for equality in _distances(launches_at(base)):
                yield from _secant(finder, base, symbol.name, equality, launches_at)


def _one_by_one(finder: PlanFinder) -> Iterator[Sizes]:
    """Yield consecutive sizes of the last dim."""
    small = {symbol.name: clamped(symbol, SMALL + 1, 1) for symbol in finder.task.symbols}
    last = finder.task.symbols[-1]
    return ({**small, last.name: clamped(last, size, 1)} for size in range(1, MAX_SCANNED))


def _distances(launches: Launches) -> dict[tuple[int, int], int]:
    return {
        (place, nth): distance
        for place, launch, conditions in launches
        for nth, distance in conditions.distances(launch).items()
    }


def _secant(
    finder: PlanFinder,
    base: Sizes,
    name: str,
    equality: tuple[int, int],
    launches_at: Callable[[Sizes], Launches],
) -> Iterator[Sizes]:
    """Yield sizes with another size of one dim that converge to equal sides."""

    def distance(size: int) -> int | None:
        return _distances(launches_at({**base, name: size})).get(equality)

    before, here = base[name], base[name] + 1
    far, near = distance(before), distance(here)
    for _ in range(N_STEPS):
        if far is None or near is None or near == far:
            return
        to = here - round(near * (here - before) / (near - far))
        sizes = {**base, name: to}
        if to in (before, here) or to < 1 or not finder.is_possible(sizes):
            return
        yield sizes
        before, far, here, near = here, near, to, distance(to)
