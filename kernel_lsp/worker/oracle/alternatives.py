"""Accept alternatives to PyTorch's one value: a table of rows, applied in this order to the fp64 results.

docs/checks.md has the same table. A row says which values of PyTorch's it concerns, what a kernel may have instead,
when it applies, and how the answers change: a result is replaced where another one is accepted beside PyTorch's own,
and masked where any value is. `kernel_lsp/verify/oracle` has the rows that need the kernel's results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch

from ..capture.validation import differentiate, leaves_of
from ..cases.case_values import Case, placeholder_values, widened
from ..cases.families import MINUS_INF_ROWS, MIXED, SPECIAL_VALUES, STAND_INS, without_special, without_zeros
from ..operators import is_a
from .cancellation import moved_by_steps
from .case_filter import is_judged_at_ties
from .fp64_reference import ReferenceRun, Seen, attention_by_its_formula, attention_of_seen, has_attention, run_exact
from .lost_nans import (
    N_WAYS,
    STAND_INS_OF_NAN,
    FromTheLowest,
    Lost,
    dropping_nans,
    from_the_lowest,
    lost_in,
    lost_nowhere,
    may_lose_nans,
    other_starts,
    selecting_by,
)
from .selection_outputs import (
    N_DRAWN,
    Orders,
    are_left_open,
    beside_jumps,
    few_of,
    has_computed_jumps,
    is_constant,
    is_fixed,
    moved_by_order,
    undecided,
    uses_indices,
)

INFINITE_ROWS = (MINUS_INF_ROWS, "special_inf", "special_minus_inf")
"""Families in which a whole window, or all of a few numbers, may be infinite."""
STEEP_SCORE = 2.0**24
"""Minimum score whose rounding in f32 multiplies a weight by e or more. For bf16 inputs of
1e4 the gradients of queries by PyTorch's own FlashAttention, efficient and cuDNN backward reached 1.8e11, 3.7e8 and 4e6
on an H200, where they are 0."""
N_SAMPLED_ROWS = 1024
"""Queries and keys that are multiplied to find the magnitude of the scores."""


@dataclass
class Answers:
    """The results of a case that are accepted so far: PyTorch's own (`native`), and `expected`, first those in fp64.

    `plain` are those before any NaN is dropped. `any_of` masks the elements for which any value is correct, `by_order`
    the integers that the order of equal elements decides (each empty where there are none); `lost` tells of each result
    whether it has numbers in place of PyTorch's NaNs.
    """

    run: ReferenceRun
    case: Case
    native: list[torch.Tensor]
    expected: list[torch.Tensor]
    plain: list[torch.Tensor] = field(init=False)
    any_of: list[torch.Tensor] = field(default_factory=list)
    by_order: list[torch.Tensor] = field(default_factory=list)
    lost: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plain = self.expected

    @property
    def is_special(self) -> bool:
        """Check whether some inputs are NaN or infinite."""
        return self.run.family in SPECIAL_VALUES

    @property
    def is_infinite(self) -> bool:
        """Check whether some inputs, or whole rows, are NaN or infinite."""
        return self.run.family in (*SPECIAL_VALUES, *INFINITE_ROWS)

    @property
    def is_exact(self) -> bool:
        """Check whether a rounding of the inputs has no meaning: they are special, or lie on the code's steps."""
        return self.is_special or is_judged_at_ties(self.run.captured, self.run.family)

    @cached_property
    def without_nans(self) -> list[list[torch.Tensor]]:
        """Compute the results where maxima, minima and limits drop NaN, in each way; empty without any."""
        if not self.is_special or not may_lose_nans(self.run.captured):
            return []
        ways = []
        for way in range(N_WAYS):
            with dropping_nans(way):
                ways.append(self.again())
        return ways

    def again(self, inputs: list[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """Compute the fp64 results once more: on these inputs, or under a mode of the caller."""
        case = self.case if inputs is None else replace(self.case, inputs=inputs)
        return self.run.expected(case, replace(case))

    def exactly(self, seen: Seen) -> list[torch.Tensor]:
        """Compute the fp64 outputs with the first arguments of some operations replaced."""
        with torch.no_grad():
            return run_exact(self.run.captured.program, self.values(), seen=seen)

    def differentiated(self, seen: Seen) -> list[torch.Tensor]:
        """Compute the fp64 gradients with the first arguments of some operations replaced."""
        captured = self.run.captured
        leaves = leaves_of(captured, [widened(value) for value in self.values()])
        outputs = run_exact(captured.program, leaves, seen=seen)
        return differentiate(captured, outputs, leaves, [gradient.double() for gradient in self.case.gradients])

    def values(self) -> list[torch.Tensor]:
        """Return the values of the program's placeholders."""
        return placeholder_values(self.run.captured, self.case)

    def is_fixed(self, result: torch.Tensor) -> bool:
        """Check whether the result is one number for ordinary inputs with a few special ones."""
        return self.run.family != MIXED and is_fixed(result)


@dataclass(frozen=True)
class Alternative:
    """A row of the table. `accept` changes the answers of a case to which the row `applies`."""

    name: str
    pytorch: str
    kernel: str
    applies: Callable[[Answers], bool]
    accept: Callable[[Answers], None]


def _masked_attention(of: Answers) -> None:
    """Accept, as well as PyTorch's own result, that of attention that skips masked elements. PyTorch adds its mask to
    the scores on a CPU, so that an infinite key gives NaN in all rows that do not see it. For scores of only minus
    infinity it returns zeros, while its documented formula gives NaN."""
    with torch.no_grad():
        seen = run_exact(of.run.captured.program, of.values(), attention_of_seen)
    hidden = [torch.isnan(e) & torch.isnan(n) & torch.isfinite(s) for e, n, s in zip(of.expected, of.native, seen)]
    unseen = [torch.isfinite(e) & torch.isfinite(n) & torch.isnan(s) for e, n, s in zip(of.expected, of.native, seen)]
    of.expected = [torch.where(h | u, s, e) for h, u, s, e in zip(hidden, unseen, seen, of.expected)]
    of.plain = of.expected


def _has_steep_weights(of: Answers) -> bool:
    """Check for the backward of an attention in 16 bits whose scores are larger than f32 can tell from their sums."""
    if not of.run.is_backward or not has_attention(of.run.captured.program):
        return False
    largest: list[float] = []

    def noting(query: torch.Tensor, key: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        few = query.flatten(0, -2)[:N_SAMPLED_ROWS] @ key.flatten(0, -2)[:N_SAMPLED_ROWS].mT
        largest.append(float(few.abs().max()) / math.sqrt(query.shape[-1]))
        return torch.nn.functional.scaled_dot_product_attention(query, key, *others, **options)

    if any(value.is_floating_point() and value.element_size() != 2 for value in of.values()):
        return False
    with torch.no_grad():
        run_exact(of.run.captured.program, of.values(), noting)
    return max(largest, default=0.0) > STEEP_SCORE


def _steep_weights(of: Answers) -> None:
    of.any_of = either(of.any_of, [torch.ones_like(e, dtype=torch.bool) for e in of.expected])


def _absorbed(of: Answers) -> None:
    """Accept a second correct result where a special value only meets a zero that the code inserted: the number without
    both, as in kernels for padding, masks and triangular or diagonal factors. The zero turns a special value into NaN,
    never into infinity. A zero of the inputs does not count: skipping it would drop the value that it meets."""
    for changed in _changed_together(of.case.inputs):
        missing = [torch.isnan(e) & torch.isnan(n) for e, n in zip(of.expected, of.native)]
        if not any(bool(one.any()) for one in missing):
            break
        inputs = [
            [without_special(value, n) if at in changed else value for at, value in enumerate(of.case.inputs)]
            for n in STAND_INS
        ]
        high, low = (of.again([without_zeros(value) for value in ordinary]) for ordinary in inputs)
        absorbed = [(a == b) & torch.isfinite(a) & one & ~is_constant(a) for a, b, one in zip(high, low, missing)]
        if any(bool(where.any()) for where in absorbed):
            left_out = of.again(inputs[0])
            of.expected = [torch.where(where, a, one) for where, a, one in zip(absorbed, left_out, of.expected)]


def _order_of_equals(of: Answers) -> None:
    reordered = (of.exactly(seen) for seen in Orders(of.run.seed))  # one at a time is kept
    of.by_order = undecided(of.expected, reordered, among_floats=False)


def _decided_by_order(of: Answers) -> None:
    """Mask the floats that another order of equal elements changes. The gradient of a selected one goes to any of
    them."""
    orders = Orders(of.run.seed)
    drawn = islice(orders, N_DRAWN)
    results = map(of.differentiated if of.run.is_backward else of.exactly, drawn)
    of.any_of = either(of.any_of, moved_by_order(of.expected, results, orders))


def _sides_of_steps(of: Answers) -> None:
    beside = [of.exactly(Seen("rounding", partial(beside_jumps, sign=sign))) for sign in (1, -1)]
    of.any_of = list(map(few_of, undecided(of.expected, beside, among_floats=True)))


def _may_divide_zeros(of: Answers) -> bool:
    """Check for NaN of finite inputs in code that divides by a tensor."""
    nodes = of.run.captured.forward_text.nodes
    return (
        not of.is_infinite
        and any(is_a(node["op"], "division") and isinstance(node["arguments"][-1], dict) for node in nodes)
        and any(bool((torch.isnan(e) & torch.isnan(n)).any()) for e, n in zip(of.expected, of.native))
    )


def _zeros_by_zeros(of: Answers) -> None:
    """Mask NaN of a zero over a zero where a rounding of each step leaves more of the first: 255 / 255 - 1 is 0, and
    6e-8 as an fma of 255 * (1 / 255). Zeros of the inputs stay zeros."""
    moved = moved_by_steps(of.run, of.case, 1, 0)
    if moved is not None:
        missing = [torch.isnan(e) & torch.isnan(n) & torch.isinf(m) for e, n, m in zip(of.expected, of.native, moved)]
        of.any_of = either(of.any_of, missing)


def _nan_gradients(of: Answers) -> None:
    """Mask the gradients that differ with a NaN's side of a threshold, or between PyTorch's ways to compute attention,
    and those of NaN elements that are a number in PyTorch, as for abs(x)."""
    captured, others = of.run.captured, [*of.without_nans]
    for stand_in in STAND_INS_OF_NAN:
        leaves = leaves_of(captured, [widened(value) for value in of.values()])
        outputs = run_exact(captured.program, leaves)
        gradients = [gradient.double() for gradient in of.case.gradients]
        with selecting_by(stand_in):
            others.append(differentiate(captured, outputs, leaves, gradients))
    if has_attention(captured.program):
        with attention_by_its_formula():
            others.append(of.again())
    assert captured.backward is not None, "gradients are of a backward pass"
    pairs = zip(captured.backward.of, captured.backward.results)
    wanted, values = [position for position, result in pairs if result is not None], of.values()
    of_nans = [torch.isnan(values[p]) & ~torch.isnan(gradient) for p, gradient in zip(wanted, of.expected)]
    of.any_of = either(of.any_of, either(undecided(of.expected, others, among_floats=True), of_nans))


def _initial_extremes(of: Answers) -> None:
    with FromTheLowest():
        of.expected = list(map(from_the_lowest, of.expected, of.native, of.again()))


def _dropped_nans(of: Answers) -> None:
    others: list[list[torch.Tensor]] = []
    for mode in [] if of.run.is_backward else other_starts(of.run.captured):
        with dropping_nans(0), mode:
            others.append(of.again())
    found = zip(of.plain, of.native, zip(*of.without_nans), zip(*others) if others else [()] * len(of.plain))
    lost = [lost_nowhere(e) if of.is_fixed(e) else lost_in(e, n, ways, starts) for e, n, ways, starts in found]
    any_of = [_any_number(of, *each) for each in zip(lost, of.plain, of.expected, of.native)]
    of.any_of = either(of.any_of, any_of)
    of.lost = [bool(one.where.any()) for one in lost]
    of.expected = [torch.where(one.where, one.result, e) for one, e in zip(lost, of.expected)]


def _any_number(
    of: Answers, lost: Lost, plain: torch.Tensor, expected: torch.Tensor, native: torch.Tensor
) -> torch.Tensor:
    """Return where any number is accepted: where operations that drop NaN have several results, where skipping a zero's
    partner gives another, and where NaN arises from infinities, in a kernel's own order of sums."""
    if not plain.is_floating_point():
        return lost.any_of
    missing = torch.isnan(plain) & torch.isnan(native) & (not of.is_fixed(plain))
    is_other = lost.where & ~torch.isnan(expected) & (lost.result != expected)
    return lost.any_of | (missing & is_other) | (missing & (of.run.family in INFINITE_ROWS))


def _nan_for_infinity(of: Answers) -> None:
    """Accept NaN in place of an infinity: logarithms of sums, online sums and long products give NaN in many correct
    formulas, which hides as little."""
    of.expected = [
        torch.where(torch.isinf(e) & torch.isinf(n), torch.nan, e) if e.is_floating_point() else e
        for e, n in zip(of.expected, of.native)
    ]


def _nan_of_factors(of: Answers) -> None:
    """Accept NaN in place of PyTorch's number where an infinite factor contributes: an unmasked score of minus infinity
    gives NaN in many online sums."""
    reached = map(torch.isnan, of.again([without_special(value, math.nan) for value in of.case.inputs]))
    of.expected = [
        torch.where(nan & torch.isfinite(n), math.nan, e) if e.is_floating_point() else e
        for nan, e, n in zip(reached, of.expected, of.native)
    ]


ALTERNATIVES = (
    Alternative(
        "masked attention",
        "NaN from a masked infinity in `scaled_dot_product_attention`, or zeros where every visible score is -inf",
        "the same, or the result of its documented formula, which never reads masked elements",
        lambda of: of.is_infinite and not of.run.is_backward and has_attention(of.run.captured.program),
        _masked_attention,
    ),
    Alternative(
        "steep weights",
        "in the backward of an attention in 16 bits, gradients of weights that are made again as "
        "`exp(score - log(sum))`, with scores above 2^24, whose f32 neighbours are 2 apart",
        "any value",
        _has_steep_weights,
        _steep_weights,
    ),
    Alternative(
        "absorbed by zero",
        "NaN from an infinity or NaN times a zero *in the code* (mask, padding, triangle)",
        "NaN, or the number without both",
        lambda of: of.is_special,
        _absorbed,
    ),
    Alternative(
        "equal elements",
        "an index among equal elements (`topk`, `sort`, `argsort`, `kthvalue`, `median`, `mode`)",
        "the index of any equal element, no index twice in `topk`, `sort`, `argsort`; any value computed from an index",
        lambda of: (
            not of.run.is_backward
            and are_left_open(of.run.captured)
            and not all(e.is_floating_point() for e in of.expected)
        ),
        _order_of_equals,
    ),
    Alternative(
        "decided by order",
        "a gradient of one of several equal elements, or a float computed from its index, that another order of equal "
        "elements changes by more than 1e-4 of the largest",
        "any value",
        lambda of: are_left_open(of.run.captured) and (of.run.is_backward or uses_indices(of.run.captured)),
        _decided_by_order,
    ),
    Alternative(
        "steps",
        "one in a thousand elements within four units of a step of `round`, `floor`, `ceil` or `trunc`",
        "any value",
        lambda of: not of.run.is_backward and not of.is_exact and has_computed_jumps(of.run.captured),
        _sides_of_steps,
    ),
    Alternative(
        "zero by zero",
        "NaN of a computed zero over a zero, which a rounding of each step makes an infinity",
        "any value",
        _may_divide_zeros,
        _zeros_by_zeros,
    ),
    Alternative(
        "gradients of NaN",
        "a gradient decided by a NaN, a number as the gradient of a NaN element (`abs`), or as that of an element that "
        "a causal mask hides from a row with a NaN, where the formula of attention gives NaN",
        "any value: the forward result shows the NaN, or the verdict warns",
        lambda of: of.run.is_backward and of.is_special,
        _nan_gradients,
    ),
    Alternative(
        "initial extremes",
        "an infinity as the extreme of nothing else",
        "the infinity, or FLT_MAX of its sign",
        lambda of: not of.run.is_backward and of.run.family in INFINITE_ROWS and may_lose_nans(of.run.captured),
        _initial_extremes,
    ),
    Alternative(
        "dropped NaN",
        "NaN from an input, through a maximum, minimum or limit (`relu`, `clamp`, `amax`, `max_pool2d`, `elu`), or the "
        "index of such a NaN (`argmax`); not where every number is one constant",
        "NaN, or with the warning `nan-lost` the result without it, as `fmaxf`, `fminf` and `x > 0 ? x : 0` give; any "
        "value where that result is ambiguous, or where inf - inf or 0 * inf made the NaN",
        lambda of: bool(of.without_nans),
        _dropped_nans,
    ),
    Alternative(
        "NaN for an infinity",
        "an infinity beside non-finite inputs",
        "the same infinity, or NaN",
        lambda of: of.is_infinite,
        _nan_for_infinity,
    ),
    Alternative(
        "NaN of a factor",
        "a number with an infinite factor in a product or convolution",
        "that number, or NaN",
        lambda of: of.run.family == "special_inf" and of.run.captured.has("library"),
        _nan_of_factors,
    ),
)


def accept_alternatives(of: Answers) -> Answers:
    """Apply the table to the results of a case."""
    for row in ALTERNATIVES:
        if row.applies(of):
            row.accept(of)
    return of


def either(one: list[torch.Tensor], other: list[torch.Tensor]) -> list[torch.Tensor]:
    """Combine two lists of masks, either of which may be empty."""
    return [a | b for a, b in zip(one, other)] if one and other else one or other


def _changed_together(inputs: Sequence[torch.Tensor]) -> list[set[int]]:
    """Return the positions of the inputs whose special values are replaced together: of all, then of each alone. One
    infinity may have a result where another is absorbed: a key far below all others, and a masked value."""
    special = [p for p, v in enumerate(inputs) if v.is_floating_point() and not bool(torch.isfinite(v).all())]
    return [set(special), *([{position} for position in special] if len(special) > 1 else [])]
