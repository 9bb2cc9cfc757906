"""Place tensors at other addresses, for a kernel whose results may depend on addresses.

Predicates on addresses are found in the PTX, and their outcomes are evaluated without running anything. For other uses
there are addresses with all bits set, with none, adjacent ones, and random ones.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

from kernel_lsp.core.plan import BoundLaunch, BoundOperation
from kernel_lsp.core.verdict import Built
from kernel_lsp.ptx.run.layout import WINDOW_HALF, WINDOW_SHIFT, first_buffer_window, window_base
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.code_facts.address_dependence import asks_for_an_address
from kernel_lsp.verify.code_facts.launch_uniform import FIRST_THREAD, GridConditions
from kernel_lsp.verify.model.cases import PAGE_BYTES, Case
from kernel_lsp.verify.model.environment import MAX_PAGES, Circumstances

Places = Mapping[str, int]
"""Page offset by tensor, as in `Circumstances`."""
PATTERNS = (0, -1, MAX_PAGES - 1, -MAX_PAGES, MAX_PAGES // 3, -MAX_PAGES // 3)
"""Page offsets of all tensors: bits that are all zeros, all ones, and alternating, on both sides of the middle."""
N_AT_RANDOM = 12
"""Random layouts in addition to those found, for predicates that are evaluated per element."""
GAP_PAGES = 2
"""Pages between two neighbours at the border of their windows."""
MAX_FOUND = 8
MAX_NUMBERS = 16
"""Maximum constants of one kernel that its address predicates compare with."""
N_TRIED = 256
"""Random layouts that are searched for new outcomes. One takes about 0.1 ms."""


def pointed_places(built: Built, case: Case, bound: BoundOperation) -> list[Places]:
    """Return the layouts that a case is to run in. Empty for a kernel that does not use addresses as values."""
    statements = read_ptx(built.ptx, "").statements
    launches = [(step, built.symbols.get(step.kernel, step.kernel)) for step in _launches(bound)]
    asking = [(step, symbol) for step, symbol in launches if asks_for_an_address(statements, symbol, step)]
    if not asking:
        return []
    names = [tensor.name for tensor in bound.tensors]
    draw = random.Random(case.seed)
    questions = [(step, GridConditions(statements, symbol, FIRST_THREAD)) for step, symbol in asking]
    tried = itertools.chain(_by_numbers(names, questions), (_at_random(names, draw) for _ in range(N_TRIED)))
    found = _with_new_outcomes(case, bound, questions, tried)
    patterns = [*(dict.fromkeys(names, pages) for pages in PATTERNS), *_neighbours(bound)]
    return [*patterns, *found, *(_at_random(names, draw) for _ in range(N_AT_RANDOM))]


def addresses_in(case: Case, bound: BoundOperation, places: Places) -> dict[str, int]:
    """Return the address of each tensor, as the executor lays them out in order."""
    first, circumstances = first_buffer_window(len(bound.tensors), 0), Circumstances(pages=places)
    return {
        tensor.name: window_base(first + position) + circumstances.offset_of(case, tensor)
        for position, tensor in enumerate(bound.tensors)
    }


# --- below


def _launches(bound: BoundOperation) -> Iterator[BoundLaunch]:
    return (step for step in bound.steps if isinstance(step, BoundLaunch))


def _neighbours(bound: BoundOperation) -> Iterator[Places]:
    """Yield layouts with adjacent tensors: first before second and third before fourth, then second before third and so
    on. Each tensor has a window of the address space to itself, and begins or ends with it."""
    half = WINDOW_HALF // PAGE_BYTES
    for is_first in (0, 1):
        yield {
            tensor.name: GAP_PAGES - half
            if position % 2 != is_first
            else half - tensor.n_bytes // PAGE_BYTES - GAP_PAGES
            for position, tensor in enumerate(bound.tensors)
        }


def _at_random(names: list[str], draw: random.Random) -> Places:
    return {name: draw.randrange(-MAX_PAGES, MAX_PAGES) for name in names}


def _by_numbers(names: list[str], questions: list[tuple[BoundLaunch, GridConditions]]) -> Iterator[Places]:
    """Yield layouts with a constant of the predicates in the address bits, at every position, for all tensors alike."""
    numbers = sorted({number for _, conditions in questions for number in conditions.numbers})[:MAX_NUMBERS]
    for number, shift in itertools.product(numbers, range(WINDOW_SHIFT)):
        pages = (number << shift) // PAGE_BYTES
        if 0 < pages < MAX_PAGES:
            yield dict.fromkeys(names, pages)


def _with_new_outcomes(
    case: Case, bound: BoundOperation, questions: list[tuple[BoundLaunch, GridConditions]], tried: Iterator[Places]
) -> list[Places]:
    """Return the layouts in which some predicate has an outcome that no earlier layout had."""
    seen, found = _outcomes(case, bound, questions, {}), list[Places]()
    for places in tried:
        new = _outcomes(case, bound, questions, places) - seen
        seen |= new
        found += [places] if new else []
        if len(found) == MAX_FOUND:
            break
    return found


def _outcomes(
    case: Case, bound: BoundOperation, questions: list[tuple[BoundLaunch, GridConditions]], places: Places
) -> set[tuple[object, ...]]:
    addresses = addresses_in(case, bound, places)
    return {
        (position, *outcome)
        for position, (launch, conditions) in enumerate(questions)
        for outcome in conditions.outcomes(launch, addresses)
    }
