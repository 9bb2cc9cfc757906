"""Compute a case's expected results: in fp64, by PyTorch at the declared dtypes, and in fp64 on inputs perturbed by one
rounding. Uses a GPU where one is lent, which no candidate uses meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..capture.captured import Captured
from ..capture.exported_program import quiet
from ..cases.case_values import Case, placeholder_values
from ..cases.families import own_generator
from ..failure import Failure
from ..gpu.device import once_there_is_memory
from ..host import without_cuda
from ..operators import is_a
from .alternatives import Answers, accept_alternatives, either
from .cancellation import (
    MAX_PLAIN_RMS,
    is_proportional,
    may_cancel,
    may_jump,
    moved_by_steps,
    takes_roots_of_differences,
)
from .fp64_reference import CPU, ReferenceRun
from .roundings import of_either_sign, unit_of, with_rounded_steps
from .sampling import Sample
from .selection_outputs import Chosen, chosen_among

EXACT_FAMILIES = ("small_integers", "halves", "one_hot", "needles", "zeros", "pointed_values")
"""Families of numbers that lie exactly on thresholds of the code, and whose sums are exact, or that are few."""
SAME_FAMILIES = ("constant_rows", "negative_zeros")
"""Further families of few different numbers in a row."""
DECISIVE_FAMILIES = ("large",)
"""Families whose products have rounding errors above one. A softmax of them is nearly one-hot, and an error decides
between two scores that are nearly equal."""
N_DRAWS = 8
"""Perturbations drawn for such a softmax. One moves two scores towards each other with a probability of 1/4."""
FEW_VALUES = 32
"""Maximum values of a channel of which a batch norm may amplify a rounding: of two values it leaves the sign of their
difference, so that PyTorch's f32 is by 0.1 to 0.8 (relative L2) off its fp64 in an EfficientNet that has batch norms of
two values one after the other, and a rounding of the inputs alone moves that by a hundredth of it."""
MAX_DRAWN_ELEMENTS = 1 << 18
"""Maximum elements of a case's tensors for several draws. Among more rows one draw meets nearly equal scores, too, and
their response counts for all."""

FEW_OUTPUTS = 8
"""Maximum elements of an output whose response is the largest of several: one draw's for a sum of 2048 values that
nearly cancel may be 1.4e-9 (relative L2), where PyTorch's f32 is up to 1.8e-6 off."""


def response(run: ReferenceRun, case: Case, expected: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results perturbed by one rounding. Where a few exact numbers lie on the code's thresholds, crossing
    one is not a rounding: of two opposite perturbations the smaller response counts. Where roundings decide between
    nearly equal scores, batch norms of few values amplify them, or an output has few elements, the largest of several
    responses counts. Where terms may cancel, the response to a rounding of each step counts, if it is larger."""
    moved = _response_of_inputs(run, case, expected)
    families = (*EXACT_FAMILIES, *SAME_FAMILIES)
    cancelled = [may_cancel(run, families, e, m) for e, m in zip(expected, moved)]
    if not any(cancelled):
        return moved
    has_roots = takes_roots_of_differences(run) and _n_elements(case) <= MAX_DRAWN_ELEMENTS
    n_draws = N_DRAWS if _is_small(case, expected) or has_roots else 2
    draws = [moved, *(_response_of_steps(run, case, expected, draw) for draw in range(n_draws))]
    return [
        _farthest(e, of_one) if is_cancelled else of_one[0]
        for e, is_cancelled, *of_one in zip(expected, cancelled, *draws)
    ]


def _response_of_steps(
    run: ReferenceRun, case: Case, expected: Sequence[torch.Tensor], draw: int
) -> Sequence[torch.Tensor]:
    """Return the results with each step perturbed by one rounding, of code that jumps on few numbers the nearer of two
    opposite ones; the expected ones where that has no meaning, or a large response is no multiple of the roundings."""
    moved, is_of_few = moved_by_steps(run, case, 1, draw), run.family in (*EXACT_FAMILIES, *SAME_FAMILIES)
    back = moved_by_steps(run, case, -1, draw) if moved is not None and is_of_few and may_jump(run) else moved
    if moved is None or back is None:
        return expected
    found = [_nearer(e, a, b) if e.is_floating_point() else e for e, a, b in zip(expected, moved, back)]
    if not any(_is_large(e, f) for e, f in zip(expected, found)):
        return found
    halves = moved_by_steps(run, case, 0.5, draw) or expected
    steady = (not _is_large(e, f) or is_proportional(e, m, h) for e, f, m, h in zip(expected, found, moved, halves))
    return [f if is_steady else e for e, f, is_steady in zip(expected, found, steady)]


def _is_large(expected: torch.Tensor, moved: torch.Tensor) -> bool:
    """Check whether a response is too large to be taken for a rounding error as it is."""
    is_float = expected.is_floating_point()
    return is_float and bool((moved - expected).norm() > MAX_PLAIN_RMS * expected.numel() ** 0.5)


def _response_of_inputs(run: ReferenceRun, case: Case, expected: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    moved, is_amplified = _perturbed(run, case, 1)
    if run.family in EXACT_FAMILIES and not is_amplified:
        back, _ = _perturbed(run, case, -1)
        return [_nearer(e, a, b) if e.is_floating_point() else a for e, a, b in zip(expected, moved, back)]
    if not is_amplified and not _is_small(case, expected) and not _decides(run, case):
        return moved
    draws = [moved, *(_perturbed(run, case, 1, draw)[0] for draw in range(1, N_DRAWS))]
    return [_farthest(e, of_one) if e.is_floating_point() else of_one[0] for e, *of_one in zip(expected, *draws)]


def _decides(run: ReferenceRun, case: Case) -> bool:
    """Check whether roundings may decide which element a softmax of products chooses."""
    is_decisive = run.family in DECISIVE_FAMILIES and run.captured.has("exponential") and run.captured.has("library")
    return is_decisive and _n_elements(case) <= MAX_DRAWN_ELEMENTS


def _is_small(case: Case, expected: Sequence[torch.Tensor]) -> bool:
    """Check whether an output has so few elements that one draw says little of their rounding errors."""
    is_few = any(e.is_floating_point() and e.numel() <= FEW_OUTPUTS for e in expected)
    return is_few and _n_elements(case) <= 2 * MAX_DRAWN_ELEMENTS


def _n_elements(case: Case) -> int:
    return sum(value.numel() for value in (*case.inputs, *case.state.values()))


@dataclass
class _Roundings:
    """Perturbs steps inside functions. `is_amplified`: a batch norm of few values, behind a product, was met."""

    generator: torch.Generator
    sign: int
    amplified: tuple[str, ...]
    has_product: bool = False
    is_amplified: bool = False

    def __call__(self, op: str, arguments: Sequence[Any], result: Any, dtype: torch.dtype) -> Any:
        self.has_product |= is_a(op, "product", "convolution")
        if self.has_product and is_a(op, "over_batch"):
            values = arguments[0]
            self.is_amplified |= values.numel() <= FEW_VALUES * values.shape[1]
        return with_rounded_steps(
            op, arguments, result, dtype, self.generator, sign=self.sign, amplified=self.amplified
        )


def _amplified(captured: Captured) -> tuple[str, ...]:
    """Return the kinds of operations whose errors the code may amplify."""
    kinds = ["product"] if captured.has("exponential", "over_batch") else []
    return (*kinds, *(["convolution"] if captured.has("over_batch") else []))


def _perturbed(run: ReferenceRun, case: Case, sign: int, draw: int = 0) -> tuple[list[torch.Tensor], bool]:
    """Return the fp64 results on inputs, and steps inside functions, perturbed by one rounding of the kernels' type,
    and whether batch norms amplify it. The response is the error of a backward-stable algorithm; PyTorch's own error on
    one draw may be smaller by chance. The other `sign` reverses all perturbations; another `draw` is independent."""
    captured = run.captured
    placed = placeholder_values(captured, case)
    generator = torch.Generator(placed[0].device if placed else CPU)
    names = ("rounding", str(draw)) if draw else ("rounding",)
    generator.manual_seed(own_generator(run.seed, *names).initial_seed())
    held = _asked_for(captured)

    def widen(value: Any) -> Any:
        return _but_held(_moved(value, sign, generator), value, held) if isinstance(value, torch.Tensor) else value

    moved = _Roundings(generator, sign, _amplified(captured))

    def gradients(_: list[torch.Tensor]) -> list[torch.Tensor]:
        return [_moved(gradient, sign, generator) for gradient in case.gradients]

    return run.exact(placed, gradients, widen=widen, moved=moved), moved.is_amplified


def _asked_for(captured: Captured) -> list[float]:
    """Return the numbers that the code tests for equality: a rounding off such a number changes the branch."""
    asking = (node["arguments"][1] for node in captured.forward_text.nodes if is_a(node["op"], "equality"))
    return [float(number) for number in asking if isinstance(number, (int, float))]


def _but_held(moved: torch.Tensor, value: torch.Tensor, held: Sequence[float]) -> torch.Tensor:
    """Return `moved`, with the elements of `value` that equal a held number unchanged."""
    if not held or not value.is_floating_point():
        return moved
    numbers = torch.tensor(held, dtype=value.dtype, device=value.device)
    return torch.where(torch.isin(value, numbers), value.double(), moved)


def _nearer(to: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return of each two elements the one that is not farther away."""
    return torch.where((one - to).abs() <= (other - to).abs(), one, other)


def _farthest(to: torch.Tensor, draws: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the draw whose finite elements are the farthest away, as a whole."""
    return max(draws, key=lambda one: float((one - to).nan_to_num(0.0, 0.0, 0.0).norm()))


def _moved(value: torch.Tensor, sign: int, generator: torch.Generator) -> torch.Tensor:
    """Return float64 values with each element perturbed up or down by half a unit of its last place; narrower types
    count as f32, which sums are kept in. In place: two tensors of 8 bytes an element exist at a time."""
    if not value.is_floating_point():
        return value
    factors = of_either_sign(value, sign * unit_of(value.dtype) / 2, generator).add_(1.0)
    return factors.mul_(value.double())


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

    def sliced(self, sample: Sample) -> Results:
        """Return the slices of results without `chosen` elements."""
        of = sample.of_results
        return replace(
            self,
            expected=of(self.expected),
            native=of(self.native),
            perturbed=of(self.perturbed),
            undecided=of(self.undecided),
        )


def results_of(captured: Captured, case: Case, family: str, seed: int, is_backward: bool, gpu: int | None) -> Results:
    """Return the results of a case, computed on the GPU of that index or on the CPU, and left there. Fills in the
    case's gradients. Raises TargetFailure for sizes or values that the user's code refuses."""
    run = ReferenceRun(captured, family, seed, is_backward)
    with quiet(), without_cuda():
        if gpu is not None:
            with contextlib.suppress(Failure, RuntimeError):
                # E.g. a tensor that the code creates on the CPU, or too little memory: falls back to the CPU.
                return once_there_is_memory(gpu, lambda: _on_gpu(run, case, gpu), lambda: give_back_memory(gpu))
        return _results(run, case, CPU)


def give_back_memory(gpu: int | None) -> None:
    """Free unused memory, which a candidate may need."""
    if gpu is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _on_gpu(run: ReferenceRun, case: Case, gpu: int) -> Results:
    """Compute on the GPU with TF32 off: its precision is below the declared dtype's."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    device = torch.device("cuda", gpu)
    with torch.cuda.device(device), torch.device(device):
        return _results(run, case, device)


def _results(run: ReferenceRun, case: Case, device: torch.device) -> Results:
    here = case.on(device, run.captured.kept)
    expected = run.expected(here, case)
    here = replace(here, gradients=[gradient.to(device) for gradient in case.gradients])
    before = _start_counting(device)
    native, note = run.native(here, expected)
    eager_bytes = (torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0) - before
    answers = Answers(run, here, native, expected)
    perturbed = [] if answers.is_exact else response(run, here, expected)
    accept_alternatives(answers)
    chosen = chosen_among(run.captured, here, answers.by_order, answers.any_of) if answers.by_order else []
    marks = either(answers.by_order, answers.any_of)
    return Results(answers.expected, native, perturbed, note, eager_bytes, marks, answers.lost, chosen)


def _start_counting(device: torch.device) -> int:
    """Return the bytes in use on a GPU, the base of a peak; 0 on the CPU, where memory is not counted."""
    if device.type != "cuda":
        return 0
    torch.cuda.reset_peak_memory_stats(device)
    return torch.cuda.memory_allocated(device)
