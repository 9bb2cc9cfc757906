"""Compute a case's expected results: in fp64, by PyTorch at the declared dtypes, and in fp64 on inputs perturbed by one
rounding. Uses a GPU where one is lent, which no candidate uses meanwhile."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from ..capture.backward import GRADIENT
from ..capture.captured import Captured
from ..capture.program import quiet, user_outputs
from ..capture.validation import call_original
from ..cases.case import Case, differentiate, leaves_of, placeholder_values, widened
from ..cases.families import GRADIENT_FAMILIES, GRADIENT_SCALES, NARROW_SCALE
from ..cases.input_generation import draw
from ..cases.special_values import (
    MINUS_INF_ROWS,
    MIXED,
    SPECIAL_VALUES,
    STAND_INS,
    without_special,
    without_zeros,
)
from ..failure import Failure, TargetFailure, raised_by_user, short_message
from ..hide_cuda import without_cuda
from .attention import attention_of_seen, has_attention
from .case_filter import is_judged_at_ties, sums_products
from .constant_results import is_constant, is_fixed
from .discontinuities import beside_jumps, few_of, has_computed_jumps
from .fp64_reference import Seen, run_exact
from .lost_nans import (
    N_WAYS,
    FromTheLowest,
    Lost,
    WithoutNans,
    from_the_lowest,
    lost_in,
    lost_nowhere,
    may_lose_nans,
    other_starts,
)
from .nan_gradient_modes import STAND_INS as STAND_INS_OF_NAN
from .nan_gradient_modes import NansAs
from .perturbation import response
from .selection_outputs import Chosen, chosen_among
from .tie_orders import Orders, are_left_open
from .unspecified_results import undecided

CPU = torch.device("cpu")
INFINITE_ROWS = (MINUS_INF_ROWS, "special_inf", "special_minus_inf")
"""Families in which a whole window, or all of a few numbers, may be infinite."""


@dataclass(frozen=True)
class Results:
    """The expected outputs: in fp64, by PyTorch at the declared dtypes, and in fp64 on inputs perturbed by one rounding
    (empty where that makes no sense).

    `note` describes a fallback; `eager_bytes` is PyTorch's memory beyond its inputs on a GPU. `undecided` masks
    unspecified integers of each result, and gradients that depend on a NaN's branch (empty where there are none).
    `may_lose_nans`: the result has numbers in place of NaNs that are correct as well (empty where none has). `chosen`
    are the elements that each result's unspecified integers index (empty where no order decides).
    """

    expected: list[torch.Tensor]
    native: list[torch.Tensor]
    perturbed: list[torch.Tensor]
    note: str
    eager_bytes: int = 0
    undecided: list[torch.Tensor] = field(default_factory=list)
    may_lose_nans: list[bool] = field(default_factory=list)
    chosen: list[Chosen | None] = field(default_factory=list)


def results_of(captured: Captured, case: Case, family: str, seed: int, is_backward: bool, gpu: int | None) -> Results:
    """Return the results of a case, computed on the GPU of that index or on the CPU, and left there. Fills in the
    case's gradients. Raises TargetFailure for sizes or values that the user's code refuses."""
    run = _Run(captured, family, seed, is_backward)
    with quiet(), without_cuda():
        if gpu is not None:
            with contextlib.suppress(Failure, RuntimeError):
                # E.g. a tensor that the code creates on the CPU, or too little memory: falls back to the CPU.
                return _on_gpu(run, case, gpu)
        return run.results(case, CPU)


def give_back_memory(gpu: int | None) -> None:
    """Free unused memory, which a candidate may need."""
    if gpu is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def result_dtypes(captured: Captured, is_backward: bool) -> list[torch.dtype]:
    """Return the declared dtypes of the outputs, or of the gradients that exist."""
    if not is_backward:
        return _declared_outputs(captured)
    assert captured.backward is not None
    pairs = zip(captured.backward.of, captured.backward.results)
    return [captured.program.fake_inputs[position].dtype for position, result in pairs if result is not None]


# --- below: running


def _on_gpu(run: _Run, case: Case, gpu: int) -> Results:
    """Compute on the GPU with TF32 off: its precision is below the declared dtype's."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device("cuda", gpu)
    with torch.cuda.device(device), torch.device(device):
        return run.results(case, device)


@dataclass(frozen=True)
class _Run:
    """One direction of a captured target on one family."""

    captured: Captured
    family: str
    seed: int
    is_backward: bool

    def results(self, case: Case, device: torch.device) -> Results:
        here = case.on(device)
        expected = self._expected(here, case)
        here = replace(here, gradients=[gradient.to(device) for gradient in case.gradients])
        before = _start_counting(device)
        native, note = self._native(here, expected)
        eager_bytes = _peak_bytes(device) - before
        is_infinite = self.family in (*SPECIAL_VALUES, *INFINITE_ROWS)
        plain = self._without_hidden(here, expected, native) if is_infinite else expected
        expected = self._without_absorbed(here, plain, native) if self.family in SPECIAL_VALUES else plain
        is_exact = self.family in SPECIAL_VALUES or is_judged_at_ties(self.captured, self.family)
        perturbed = [] if is_exact else self._response(here, expected)
        ways = self._without_nans(here)
        by_order = self._by_order(here, expected)
        still_open = self._undecided(here, expected, ways, is_exact)
        expected = self._from_the_lowest(here, expected, native)
        lost = [
            lost_nowhere(e) if self._is_fixed(e) else one
            for one, e in zip(self._lost(here, plain, native, ways), plain)
        ]
        any_of = _either(still_open, [self._any_of(*each) for each in zip(lost, plain, expected, native)])
        chosen = chosen_among(self.captured, here, by_order, any_of) if by_order else []
        marks = _either(by_order, any_of)
        may_lose = [bool(one.where.any()) for one in lost]
        expected = [torch.where(one.where, one.result, e) for one, e in zip(lost, expected)] or expected
        expected = list(map(or_nan, expected, native)) if is_infinite else expected
        expected = self._or_nan_of_factors(here, expected, native)
        return Results(expected, native, perturbed, note, eager_bytes, marks, may_lose, chosen)

    def _expected(self, case: Case, original: Case) -> list[torch.Tensor]:
        """Return the fp64 results: outputs, or the gradients of the wanted arguments. Fills in the original's
        gradients."""
        values = placeholder_values(self.captured, case)
        try:
            if not self.is_backward:
                with torch.no_grad():
                    return run_exact(self.captured.program, values)
            leaves = leaves_of(self.captured, [widened(value) for value in values])
            outputs = run_exact(self.captured.program, leaves)
            original.gradients = self._gradients(outputs)
            gradients = [gradient.to(outputs[0].device).double() for gradient in original.gradients]
            return differentiate(self.captured, outputs, leaves, gradients)
        except Exception as error:  # any operator may refuse these sizes or values, with any exception
            raise _refused(self.captured, error) from None

    def _without_hidden(
        self, case: Case, expected: list[torch.Tensor], native: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Accept, as well as PyTorch's own result, that of attention that skips masked elements. PyTorch adds its mask
        to the scores on a CPU, so that an infinite key gives NaN in all rows that do not see it."""
        if self.is_backward or not has_attention(self.captured.program):
            return expected
        with torch.no_grad():
            seen = run_exact(self.captured.program, placeholder_values(self.captured, case), attention_of_seen)
        open_ = [torch.isnan(e) & torch.isnan(n) & torch.isfinite(s) for e, n, s in zip(expected, native, seen)]
        # PyTorch returns zeros for scores of only minus infinity, while its documented formula gives NaN.
        open_ = [
            o | (torch.isfinite(e) & torch.isfinite(n) & torch.isnan(s))
            for o, e, n, s in zip(open_, expected, native, seen)
        ]
        return [torch.where(where, s, e) for where, s, e in zip(open_, seen, expected)]

    def _without_absorbed(
        self, case: Case, expected: list[torch.Tensor], native: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Accept a second correct result where a special value only meets a zero that the code inserted: the number
        without both, as in kernels for padding, masks and triangular or diagonal factors. The zero turns a special
        value into NaN, never into infinity. A zero of the inputs does not count: skipping it would drop the value that
        it meets."""
        for changed in _changed_together(case.inputs):
            missing = [torch.isnan(e) & torch.isnan(n) for e, n in zip(expected, native)]
            if not any(bool(one.any()) for one in missing):
                break
            inputs = [
                [
                    without_special(value, n) if position in changed else value
                    for position, value in enumerate(case.inputs)
                ]
                for n in STAND_INS
            ]
            high, low = (
                self._expected(replace(case, inputs=[without_zeros(value) for value in ordinary]), replace(case))
                for ordinary in inputs
            )
            absorbed = [(a == b) & torch.isfinite(a) & one & ~is_constant(a) for a, b, one in zip(high, low, missing)]
            if any(bool(where.any()) for where in absorbed):
                left_out = self._expected(replace(case, inputs=inputs[0]), replace(case))
                expected = [torch.where(where, a, one) for where, a, one in zip(absorbed, left_out, expected)]
        return expected

    def _without_nans(self, case: Case) -> list[list[torch.Tensor]]:
        """Return the results where maxima, minima and limits drop NaN, in each way; empty without any."""
        if self.family not in SPECIAL_VALUES or not may_lose_nans(self.captured):
            return []
        ways = []
        for way in range(N_WAYS):
            with WithoutNans(way):
                ways.append(self._expected(case, replace(case)))
        return ways

    def _lost(
        self, case: Case, plain: list[torch.Tensor], native: list[torch.Tensor], ways: list[list[torch.Tensor]]
    ) -> list[Lost]:
        """Return the droppable NaNs of each result in these ways, in addition to PyTorch's own; empty without any."""
        if not ways:
            return []
        others: list[list[torch.Tensor]] = []
        for mode in [] if self.is_backward else other_starts(self.captured):
            with WithoutNans(0), mode:
                others.append(self._expected(case, replace(case)))
        found = zip(plain, native, zip(*ways), zip(*others) if others else [()] * len(plain))
        return [lost_in(e, n, of_ways, of_others) for e, n, of_ways, of_others in found]

    def _any_of(self, lost: Lost, plain: torch.Tensor, expected: torch.Tensor, native: torch.Tensor) -> torch.Tensor:
        """Return where any number is accepted: where operations that drop NaN have several results, where skipping a
        zero's partner gives another, and where NaN arises from infinities, in a kernel's own order of sums."""
        if not plain.is_floating_point():
            return lost.any_of
        missing = torch.isnan(plain) & torch.isnan(native) & (not self._is_fixed(plain))
        is_other = lost.where & ~torch.isnan(expected) & (lost.result != expected)
        return lost.any_of | (missing & is_other) | (missing & (self.family in INFINITE_ROWS))

    def _is_fixed(self, result: torch.Tensor) -> bool:
        """Check whether the result is one number for ordinary inputs with a few special ones."""
        return self.family != MIXED and is_fixed(result)

    def _or_nan_of_factors(
        self, case: Case, expected: list[torch.Tensor], native: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Accept NaN in place of PyTorch's number where an infinite factor contributes: an unmasked score of minus
        infinity gives NaN in many online sums."""
        if self.family != "special_inf" or not sums_products(self.captured):
            return expected
        inputs = [without_special(value, math.nan) for value in case.inputs]
        reached = map(torch.isnan, self._expected(replace(case, inputs=inputs), replace(case)))
        return [
            torch.where(nan & torch.isfinite(n), math.nan, e) if e.is_floating_point() else e
            for nan, e, n in zip(reached, expected, native)
        ]

    def _from_the_lowest(
        self, case: Case, expected: list[torch.Tensor], native: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Accept the initial value of many kernels in place of the infinity of a maximum over nothing else."""
        if self.is_backward or self.family not in INFINITE_ROWS or not may_lose_nans(self.captured):
            return expected
        with FromTheLowest():
            return list(map(from_the_lowest, expected, native, self._expected(case, replace(case))))

    def _undecided(
        self, case: Case, expected: Sequence[torch.Tensor], ways: Sequence[Sequence[torch.Tensor]], is_exact: bool
    ) -> list[torch.Tensor]:
        """Return the elements near a discontinuity of the code; for gradients, those that depend on a NaN's side of a
        threshold."""
        if self.is_backward:
            return self._undecided_gradients(case, expected, ways)
        if is_exact or not has_computed_jumps(self.captured):
            return []
        program, values = self.captured.program, placeholder_values(self.captured, case)
        with torch.no_grad():
            beside = [run_exact(program, values, seen=Seen("rounding", partial(beside_jumps, sign=s))) for s in (1, -1)]
        return list(map(few_of, undecided(expected, beside, among_floats=True)))

    def _by_order(self, case: Case, expected: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the integers that depend on the order of equal elements, where it is undefined; empty without any."""
        if self.is_backward or not are_left_open(self.captured) or all(e.is_floating_point() for e in expected):
            return []
        program, values = self.captured.program, placeholder_values(self.captured, case)
        with torch.no_grad():
            reordered = (run_exact(program, values, seen=seen) for seen in Orders(self.seed))  # one at a time is kept
            return undecided(expected, reordered, among_floats=False)

    def _undecided_gradients(
        self, case: Case, expected: Sequence[torch.Tensor], ways: Sequence[Sequence[torch.Tensor]]
    ) -> list[torch.Tensor]:
        if self.family not in SPECIAL_VALUES:
            return []
        others = [*ways]
        for stand_in in STAND_INS_OF_NAN:
            leaves = leaves_of(self.captured, [widened(value) for value in placeholder_values(self.captured, case)])
            outputs = run_exact(self.captured.program, leaves)
            gradients = [gradient.double() for gradient in case.gradients]
            with NansAs(stand_in):
                others.append(differentiate(self.captured, outputs, leaves, gradients))
        return _either(undecided(expected, others, among_floats=True), self._of_nans(case, expected))

    def _of_nans(self, case: Case, expected: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return where the gradient of a NaN element is a number in PyTorch, as for abs(x): NaN is accepted there."""
        backward = self.captured.backward
        assert backward is not None, "gradients are of a backward pass"
        wanted = [position for position, result in zip(backward.of, backward.results) if result is not None]
        values = placeholder_values(self.captured, case)
        return [torch.isnan(values[p]) & ~torch.isnan(gradient) for p, gradient in zip(wanted, expected)]

    def _response(self, case: Case, expected: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return response(self.captured, case, expected, family=self.family, seed=self.seed, is_backward=self.is_backward)

    def _native(self, case: Case, expected: list[torch.Tensor]) -> tuple[list[torch.Tensor], str]:
        """Run the user's own code at the declared dtypes. Returns the rounded reference and a note where torch has no
        kernel for it."""
        captured = self.captured
        try:
            if not self.is_backward:
                with torch.no_grad():
                    return call_original(captured, case.inputs, case.state), ""
            leaves = leaves_of(captured, placeholder_values(captured, case))
            inputs, state = list(case.inputs), dict(case.state)
            for placeholder, leaf in zip(captured.program.placeholders, leaves):
                if placeholder.role == "input":
                    inputs[placeholder.index] = leaf
                else:
                    state[placeholder.node] = leaf
            outputs = call_original(captured, inputs, state)
            return differentiate(captured, outputs, leaves, case.gradients), ""
        except (RuntimeError, NotImplementedError) as error:
            if "not implemented for" not in str(error):
                raise _refused(captured, error) from None
            dtypes = result_dtypes(captured, self.is_backward)
            note = f"PyTorch cannot run this on a CPU ({short_message(error)}): its result is the rounded reference"
            return [result.to(dtype) for result, dtype in zip(expected, dtypes)], note
        except Exception as error:  # as in _expected
            raise _refused(captured, error) from None

    def _gradients(self, outputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return random gradients of the floating outputs, at their declared dtypes, on the CPU."""
        family, exponent = GRADIENT_FAMILIES.get(self.family, "normal"), GRADIENT_SCALES.get(self.family, 0)
        captured, dtypes = self.captured, _declared_outputs(self.captured)
        assert captured.backward is not None, "gradients are for a backward pass"
        found = []
        with CPU:
            for p in captured.backward.outputs:
                name, shape = GRADIENT + captured.output_names[p], tuple(outputs[p].shape)
                scale = 2.0 ** (exponent / NARROW_SCALE if dtypes[p] == torch.float16 else exponent)
                found.append(draw(family, shape, dtypes[p], self.seed, name) * scale)
        return found


def _either(one: list[torch.Tensor], other: list[torch.Tensor]) -> list[torch.Tensor]:
    """Combine two lists of masks, either of which may be empty."""
    return [a | b for a, b in zip(one, other)] if one and other else one or other


def _changed_together(inputs: Sequence[torch.Tensor]) -> list[set[int]]:
    """Return the positions of the inputs whose special values are replaced together: of all, then of each alone. One
    infinity may have a result where another is absorbed: a key far below all others, and a masked value."""
    special = [p for p, v in enumerate(inputs) if v.is_floating_point() and not bool(torch.isfinite(v).all())]
    return [set(special), *([{position} for position in special] if len(special) > 1 else [])]


def or_nan(expected: torch.Tensor, native: torch.Tensor) -> torch.Tensor:
    """Accept NaN in place of an infinity: logarithms of sums, online sums and long products give NaN in many correct
    formulas, which hides as little."""
    return torch.where(torch.isinf(expected) & torch.isinf(native), torch.nan, expected)


def _start_counting(device: torch.device) -> int:
    """Return the bytes in use on a GPU, the base of a peak; 0 on the CPU, where memory is not counted."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)


def _peak_bytes(device: torch.device) -> int:
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def _refused(captured: Captured, error: BaseException) -> TargetFailure:
    source = captured.source
    return raised_by_user(
        error,
        "running the target on test inputs",
        source["file"],
        line=source["line"],
        next_step="capture with sizes at which the target runs",
    )


def _declared_outputs(captured: Captured) -> list[torch.dtype]:
    return [node.meta["val"].dtype for node in user_outputs(captured.program.functional)]
