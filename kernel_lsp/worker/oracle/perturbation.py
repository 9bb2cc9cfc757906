"""Measure the response of results to one rounding of the inputs, and of steps inside functions: the error of a
backward-stable algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.captured import Captured
from ..cases.case_values import Case, differentiate, leaves_of, placeholder_values
from ..cases.families import own_generator
from ..operators import is_a
from .fp64_reference import ReferenceRun, run_exact
from .roundings import of_either_sign, unit_of, with_rounded_steps

CPU = torch.device("cpu")
EXACT_FAMILIES = ("small_integers", "halves", "one_hot", "needles", "zeros", "pointed_values")
"""Families of numbers that lie exactly on thresholds of the code, and whose sums are exact, or that are few."""
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


def response(run: ReferenceRun, case: Case, expected: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the results perturbed by one rounding. Where a few exact numbers lie on the code's thresholds, crossing
    one is not a rounding: of two opposite perturbations the smaller response counts. Where roundings decide between
    nearly equal scores, or batch norms of few values amplify them, the largest of several responses counts."""
    moved, is_amplified = _perturbed(run, case, 1)
    if run.family in EXACT_FAMILIES and not is_amplified:
        back, _ = _perturbed(run, case, -1)
        return [_nearer(e, a, b) if e.is_floating_point() else a for e, a, b in zip(expected, moved, back)]
    if not is_amplified and not _decides(run, case):
        return moved
    draws = [moved, *(_perturbed(run, case, 1, draw)[0] for draw in range(1, N_DRAWS))]
    return [_farthest(e, of_one) if e.is_floating_point() else of_one[0] for e, *of_one in zip(expected, *draws)]


def _decides(run: ReferenceRun, case: Case) -> bool:
    """Check whether roundings may decide which element a softmax of products chooses."""
    is_decisive = run.family in DECISIVE_FAMILIES and run.captured.has("exponential") and run.captured.has("library")
    return is_decisive and sum(value.numel() for value in (*case.inputs, *case.state.values())) <= MAX_DRAWN_ELEMENTS


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
    if not run.is_backward:
        with torch.no_grad():
            results = run_exact(captured.program, placed, moved=moved, widen=widen)
        return results, moved.is_amplified
    leaves = leaves_of(captured, [widen(value) for value in placed])
    outputs = run_exact(captured.program, leaves, moved=moved)
    gradients = [_moved(gradient, sign, generator) for gradient in case.gradients]
    return differentiate(captured, outputs, leaves, gradients), moved.is_amplified


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
    count as f32, which sums are kept in."""
    if not value.is_floating_point():
        return value
    return value.double() * (1.0 + of_either_sign(value.double(), sign * unit_of(value.dtype) / 2, generator))
