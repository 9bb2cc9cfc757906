"""Where tensors lie for a kernel that asks for it: places where what it computes of addresses comes out in every way.

They are found in the PTX, and tried without running anything; for what depends on more than addresses there are places
with all bits set, with none, next to each other, and some at random.
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
"""Pages by tensor, as `Circumstances` has them."""
PATTERNS = (0, -1, MAX_PAGES - 1, -MAX_PAGES, MAX_PAGES // 3, -MAX_PAGES // 3)
"""Of all tensors: bits that are all zeros, all ones, and every other one, on both sides of the middle."""
N_AT_RANDOM = 12
"""Beside those that are found: for what is computed for each element by itself."""
GAP_PAGES = 2
"""Between neighbours and the border of their parts."""
MAX_FOUND = 8
MAX_NUMBERS = 16
"""Of one kernel, that its conditions compare bits of addresses with."""
N_TRIED = 256
"""Places at random among which new ones are looked for. One takes about a tenth of a millisecond."""


def pointed_places(built: Built, case: Case, bound: BoundOperation) -> list[Places]:
    """Where else the tensors of a case are to lie. None for a kernel that does not ask."""
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
    """The address of each tensor, as the executor has them in order."""
    first, circumstances = first_buffer_window(len(bound.tensors), 0), Circumstances(pages=places)
    return {
        tensor.name: window_base(first + position) + circumstances.offset_of(case, tensor)
        for position, tensor in enumerate(bound.tensors)
    }


# --- below


def _launches(bound: BoundOperation) -> Iterator[BoundLaunch]:
    return (step for step in bound.steps if isinstance(step, BoundLaunch))


def _neighbours(bound: BoundOperation) -> Iterator[Places]:
    """The first tensor right before the second, the third before the fourth; and the second before the third, ...: each
    has a part of the address space to itself, and begins or ends with it."""
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
    """Places with a number of the conditions in their bits, wherever it fits, for all tensors alike."""
    numbers = sorted({number for _, conditions in questions for number in conditions.numbers})[:MAX_NUMBERS]
    for number, shift in itertools.product(numbers, range(WINDOW_SHIFT)):
        pages = (number << shift) // PAGE_BYTES
        if 0 < pages < MAX_PAGES:
            yield dict.fromkeys(names, pages)


def _with_new_outcomes(
    case: Case, bound: BoundOperation, questions: list[tuple[BoundLaunch, GridConditions]], tried: Iterator[Places]
) -> list[Places]:
    """Those at which some condition comes out as at none before."""
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
