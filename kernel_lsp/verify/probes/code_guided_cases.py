"""Choose cases by a built candidate's own code, and drop those that it need not pass. They are known once it is
compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kernel_lsp.core.plan import BoundOperation
from kernel_lsp.core.verdict import Built
from kernel_lsp.toolchain.integrity.ptx_text import read_ptx
from kernel_lsp.verify.model.cases import (
    N_BEFORE_WIDE,
    Case,
    OperationKind,
    Sizes,
    captured_sizes,
    cheapest,
    graph_of,
    pointed_values_case,
    variant_cases,
    wide_cases,
)
from kernel_lsp.verify.model.resolved_kernel import Prepared
from kernel_lsp.verify.probes.code_guided_sizes import compared_sizes, larger_sizes
from kernel_lsp.verify.probes.float_indices import sizes_beyond_exact_places, sizes_beyond_narrow_places
from kernel_lsp.verify.probes.float_integer_sums import families_of_sums, sizes_beyond_exact_sums
from kernel_lsp.verify.probes.index_cases import cases_beyond_exact_indices
from kernel_lsp.verify.probes.long_sums import has_one_long_sum
from kernel_lsp.verify.probes.mined_constants import pointed_values, sizes_with_room
from kernel_lsp.verify.probes.rounding_edges import rounding_cases

EQUAL_TERMS = "constant_rows"
"""The family of a long floating sum: its terms have one sign, and are equal."""
_ATOMIC_SUM = re.compile(r"(?:atom|red)\..*\badd\..*\bf32\b")


def with_pointed_cases(
    prepared: Prepared, direction: OperationKind, built: Built, plan: Sequence[tuple[Case, BoundOperation]], seed: int
) -> list[tuple[Case, BoundOperation]]:
    """Return the cases of one direction, and cases of the sizes and constants that its kernels compare with. Large ones
    come last, so that they do not consume the others' time."""
    known, captured = [dict(sizes) for sizes in dict.fromkeys(c.sizes for c, _ in plan)], captured_sizes(prepared.task)
    found, values = compared_sizes(prepared, direction, built, known), pointed_values(built, prepared.task.forward)
    cases = wide_cases(direction, found, captured, seed)
    variants = variant_cases(direction, cheapest(prepared.task, direction, found), captured, seed + 20)
    if values:
        sizes = sizes_with_room(plan, len(values))
        cases.append(pointed_values_case(direction, sizes, captured, values, seed))
        cases += [replace(case, values=values, seed=case.seed + 10) for case in cases[:-1]]
    cases += rounding_cases(prepared.task, direction, known, seed)
    large = [
        *sizes_beyond_exact_places(prepared, direction, built),
        *sizes_beyond_narrow_places(prepared, direction, built),
        *larger_sizes(prepared, direction, built, [*known, *found]),
    ]
    last = wide_cases(direction, [s for nth, s in enumerate(large) if s not in large[:nth]], captured, seed)
    last += [*variants, *_long_sums(prepared, direction, built, captured, seed)]
    more, most = ([(case, prepared.bind(direction, dict(case.sizes))) for case in some] for some in (cases, last))
    every = [*plan[:N_BEFORE_WIDE], *more, *plan[N_BEFORE_WIDE:], *most]
    return [one for one in every if one[0].family != "subnormal"] if _flushes(built) else every


def _long_sums(
    prepared: Prepared, direction: OperationKind, built: Built, captured: Sizes, seed: int
) -> Iterator[Case]:
    """Yield sums and rows so long that errors of the summation order and of narrow indices show."""
    yield from cases_beyond_exact_indices(prepared, direction, built, seed)
    for nth, sizes in enumerate(sizes_beyond_exact_sums(prepared, direction, built)):
        for family in families_of_sums(graph_of(prepared.task, direction)):
            case = Case(direction, tuple(sorted(sizes.items())), family, seed + 82 + nth, "forward")
            yield replace(case, may_not_end=True)
    if direction == "forward" and has_one_long_sum(prepared.task.forward, captured):
        yield Case(direction, tuple(sorted(captured.items())), EQUAL_TERMS, seed + 90, "forward", is_captured=True)


def _flushes(built: Built) -> bool:
    """Check whether a kernel adds f32 atomically outside shared memory: a GPU flushes subnormal numbers there (PTX ISA
    9.0, `atom`), in PyTorch's own atomic additions, too."""
    opcodes = (statement.opcode for statement in read_ptx(built.ptx, "").statements)
    return any(_ATOMIC_SUM.match(opcode) and ".shared" not in opcode for opcode in opcodes)
