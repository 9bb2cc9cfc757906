"""Choose the cases that a candidate is checked with, and bind its launches in each."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from kernel_lsp.core.task import Task
from kernel_lsp.verify.cpu.device import WATCHED_ORDER
from kernel_lsp.verify.model.cases import (
    N_BEFORE_WIDE,
    SCREEN_FAMILIES,
    Case,
    OperationKind,
    Sizes,
    captured_sizes,
    cheapest,
    configured_sizes,
    equal_integer_cases,
    fresh_case,
    full_cases,
    hidden_cases,
    octave_cases,
    screen_cases,
    variant_cases,
    vast_cases,
    wide_cases,
)
from kernel_lsp.verify.model.progress import Plan
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.probes.code_guided_sizes import pointed_sizes
from kernel_lsp.verify.probes.index_cases import index_cases
from kernel_lsp.verify.probes.multi_block_sizes import several_blocks_cases, several_blocks_sizes
from kernel_lsp.verify.probes.small_sizes import (
    Freedom,
    captured_rows,
    freedom_of,
    hidden_sizes,
    least_sizes,
    many_rows,
    reduced_sizes,
)
from kernel_lsp.verify.probes.wide_sizes import MAX_VAST_HERE, MAX_WIDE_ELEMENTS, vast_sizes, wide_sizes

Depth = Literal["screen", "full"]

FRESH_SEED_BITS = 31
N_WATCHED = 2
"""Number, from 1, of the wide case that is watched for races: it has many rows, and follows the one with long rows."""
N_BEFORE_FRESH = 2
"""Cases before the fresh one: the captured sizes and the first small ones. The rest follows as time allows."""


@dataclass(frozen=True)
class CaseChoice:
    """Chooses the cases of one task's candidates. `screen_families` are the forward's in a screen; a GPU runs more. No
    candidate can know the fresh seed."""

    task: Task
    seed: int
    has_gpu: bool
    screen_families: Sequence[str] = SCREEN_FAMILIES
    fresh_seed: int = field(default_factory=lambda: secrets.randbits(FRESH_SEED_BITS))

    def plan(self, prepared: Prepared, direction: OperationKind, depth: Depth) -> Plan:
        """Return the cases of one direction with their launches. The captured sizes come first, to be profiled.

        Raises PlanError when the plan does not bind, ContractError when it excludes the captured sizes.
        """
        captured = captured_sizes(self.task)

        def holds(sizes: Sizes) -> bool:
            return prepared.holds(direction, sizes)

        freedom = freedom_of(self.task, direction, holds)
        reduced = reduced_sizes(self.task, direction, holds, freedom)
        given = Case(direction, tuple(sorted(captured.items())), "given", self.seed, "forward", is_captured=True)
        if depth == "screen":
            families = self.screen_families if direction == "forward" else SCREEN_FAMILIES
            chosen = screen_cases(direction, reduced, captured, self.seed, families)
        else:
            chosen = self._full(prepared, direction, reduced, freedom)
        cases = [given, *(case for case in chosen if case != given)]
        bound = {sizes: prepared.bind(direction, dict(sizes)) for sizes in dict.fromkeys(case.sizes for case in cases)}
        return [(case, bound[case.sizes]) for case in cases]

    def _full(
        self, prepared: Prepared, direction: OperationKind, reduced: Sequence[Sizes], freedom: Freedom
    ) -> list[Case]:
        task, seed, captured = self.task, self.seed, captured_sizes(self.task)

        def holds(sizes: Sizes) -> bool:
            return prepared.holds(direction, sizes)

        chosen = full_cases(direction, reduced, captured, seed, [s for s in configured_sizes(task) if holds(s)])
        chosen.insert(N_BEFORE_FRESH, fresh_case(task, direction, holds, reduced, self.fresh_seed))
        least = least_sizes(task, direction, holds, freedom)
        if least is not None and least not in (captured, *reduced):
            chosen += wide_cases(direction, [least], captured, seed - 1)
        rows = captured_rows(task, direction, holds)
        if rows is not None and rows not in reduced:
            chosen += variant_cases(direction, [rows], captured, seed)
        many = many_rows(task, direction, holds, reduced) or (reduced[0] if reduced else captured)
        chosen += octave_cases(direction, many, captured, seed)
        wide = wide_sizes(task, direction, holds, freedom)
        known = [sizes for sizes in (captured, *reduced, *wide) if holds(sizes)]
        chosen += equal_integer_cases(task, direction, wide, captured, seed)
        places = index_cases(task, direction, holds, wide, seed)
        pointed = pointed_sizes(prepared, direction, known)
        wide += pointed
        chosen += variant_cases(direction, cheapest(task, direction, pointed), captured, seed + 10)
        watched = [dict(c.sizes) for c in chosen if (c.family, c.thread_order) == ("normal", WATCHED_ORDER)]
        alone = several_blocks_sizes(prepared, direction, watched, [*known, *wide])
        chosen[N_BEFORE_WIDE:N_BEFORE_WIDE] = [
            *several_blocks_cases(direction, alone, seed),
            *wide_cases(direction, wide, captured, seed, N_WATCHED),
            *places,
        ]
        most = MAX_WIDE_ELEMENTS if self.has_gpu else MAX_VAST_HERE
        vast = vast_sizes(task, direction, lambda sizes: prepared.can_bind(direction, sizes), freedom, most)
        chosen += [replace(case, may_not_end=not self.has_gpu) for case in vast_cases(direction, vast, captured, seed)]
        if self.has_gpu:
            chosen += hidden_cases(direction, hidden_sizes(task, direction, holds, seed), captured, seed)
        return chosen
